"""The two durable places behind two narrow ports, and `Log`, the door to both. Decides nothing."""

from statelog.storage.kafka import (
    Delivery,
    DeliveryStatus,
    Kafka,
    OffsetRange,
    Producer,
    Reader,
    Record,
    TopicDescription,
    TopicSpec,
)
from statelog.storage.ledger_client import LedgerBase, LedgerClient, ValidCommit
from statelog.storage.log.ledger import Ledger
from statelog.storage.log.log import (
    Log,
    LogDescription,
    open,  # noqa: A004 - statelog.open
)
from statelog.storage.log.loss import TopicFate, TopicLoss, accept_data_loss, accept_ledger_loss, accept_topic_loss
from statelog.storage.log.where import KafkaSource, LogOptions, StoreSource, Where
from statelog.storage.store import FileInfo, Store

__all__ = [
    "Delivery",
    "DeliveryStatus",
    "FileInfo",
    "Kafka",
    "KafkaSource",
    "Ledger",
    "LedgerBase",
    "LedgerClient",
    "Log",
    "LogDescription",
    "LogOptions",
    "OffsetRange",
    "Producer",
    "Reader",
    "Record",
    "Store",
    "StoreSource",
    "TopicDescription",
    "TopicFate",
    "TopicLoss",
    "TopicSpec",
    "ValidCommit",
    "Where",
    "accept_data_loss",
    "accept_ledger_loss",
    "accept_topic_loss",
    "open",
]
