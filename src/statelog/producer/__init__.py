"""Writing: one writer, or a coordinator with tasks in other processes. Never reads data chunks."""

from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.epoch import Grant, TaskGrant
from statelog.producer.guard import Life
from statelog.producer.settings import WriterSettings
from statelog.producer.writer import Writer

__all__ = ["Coordinator", "Grant", "Life", "TaskGrant", "TaskWriter", "Writer", "WriterSettings"]
