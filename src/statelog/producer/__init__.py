"""Writing: the writer and its life, and a coordinator for tasks in other processes. Reads no data chunks."""

from statelog.producer.commits.grant import Grant
from statelog.producer.lifecycle import Life
from statelog.producer.persist import Persist
from statelog.producer.sending.change_maker import Key, Value
from statelog.producer.settings import WriterSettings
from statelog.producer.statistics import Summary, WriterStatistics
from statelog.producer.tasks import Coordinator, TaskGrant, TaskWriter
from statelog.producer.writer import Writer

__all__ = [
    "Coordinator",
    "Grant",
    "Key",
    "Life",
    "Persist",
    "Summary",
    "TaskGrant",
    "TaskWriter",
    "Value",
    "Writer",
    "WriterSettings",
    "WriterStatistics",
]
