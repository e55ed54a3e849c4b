"""The two durable places behind two narrow ports, and `Log`, the door to both. Decides nothing."""

from statelog.storage.kafka import OffsetRange
from statelog.storage.log.log import Log, LogDescription
from statelog.storage.log.opening import open  # noqa: A004 - statelog.open

__all__ = ["Log", "LogDescription", "OffsetRange", "open"]
