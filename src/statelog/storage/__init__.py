"""The two durable places behind two narrow ports, and `Log`, the door to both. Decides nothing."""

from statelog.storage.kafka import Kafka, Producer
from statelog.storage.log.log import Log, LogDescription, open  # noqa: A004 - statelog.open
from statelog.storage.log.loss import accept_data_loss, accept_ledger_loss
from statelog.storage.log.options import LogOptions
from statelog.storage.log.where import Where
from statelog.storage.store import Store

__all__ = [
    "Kafka",
    "Log",
    "LogDescription",
    "LogOptions",
    "Producer",
    "Store",
    "Where",
    "accept_data_loss",
    "accept_ledger_loss",
    "open",
]
