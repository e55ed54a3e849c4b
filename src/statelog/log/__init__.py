"""A log, the entry point to Kafka and the store: making, opening and describing it, and accepting its losses."""

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
