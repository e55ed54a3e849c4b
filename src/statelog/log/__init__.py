"""A log, the door to Kafka and the store: how it is made, opened, described, and what to do about its losses."""

from statelog.log.log import Log, LogDescription, open  # noqa: A004 - statelog.open
from statelog.log.loss import accept_data_loss, accept_ledger_loss
from statelog.log.options import LogOptions
from statelog.log.where import Where

__all__ = [
    "Log",
    "LogDescription",
    "LogOptions",
    "Where",
    "accept_data_loss",
    "accept_ledger_loss",
    "open",
]
