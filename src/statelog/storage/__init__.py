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
from statelog.storage.ledger_client import LastRecord, LedgerClient, ValidCommit
from statelog.storage.local.disk import DiskHook
from statelog.storage.log.log import Log, LogDescription
from statelog.storage.log.opening import open  # noqa: A004 - statelog.open
from statelog.storage.log.ports import KafkaSource, StoreSource
from statelog.storage.store import FileInfo, Store

__all__ = [
    "Delivery",
    "DeliveryStatus",
    "DiskHook",
    "FileInfo",
    "Kafka",
    "KafkaSource",
    "LastRecord",
    "LedgerClient",
    "Log",
    "LogDescription",
    "OffsetRange",
    "Producer",
    "Reader",
    "Record",
    "Store",
    "StoreSource",
    "TopicDescription",
    "TopicSpec",
    "ValidCommit",
    "open",
]
