"""Recovery: the state of a log, from a snapshot and the committed tail. Writes nothing but its lease."""

from statelog.reading.changes import plan_changes, split_changes
from statelog.reading.plan import AtCheckpoint, AtPosition, AtTime, Plan
from statelog.recovery.cache.opener import NoCache
from statelog.recovery.cache.shared import CacheSettings
from statelog.recovery.changes import newest_changes, read_changes
from statelog.recovery.reading.progress import Progress
from statelog.recovery.recover import Recovery, recover, recover_snapshot
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.streaming.cursor import Cursor
from statelog.recovery.streaming.portion import Portion
from statelog.recovery.streaming.stream import Stream
from statelog.recovery.targets.rocksdb_read import read_rocksdb_state
from statelog.recovery.targets.rocksdb_state import RocksdbState
from statelog.recovery.targets.statistics import RecoveryStatistics

__all__ = [
    "AtCheckpoint",
    "AtPosition",
    "AtTime",
    "CacheSettings",
    "Cursor",
    "NoCache",
    "Plan",
    "Portion",
    "Progress",
    "Recovery",
    "RecoverySettings",
    "RecoveryStatistics",
    "RocksdbState",
    "Stream",
    "newest_changes",
    "plan_changes",
    "read_changes",
    "read_rocksdb_state",
    "recover",
    "recover_snapshot",
    "split_changes",
]
