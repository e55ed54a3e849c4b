"""The two durable places behind two narrow ports, and `Log`, the door to both. Decides nothing."""

from statelog.storage.kafka import OffsetRange
from statelog.storage.log.log import Log, LogDescription

__all__ = ["Log", "LogDescription", "OffsetRange"]
