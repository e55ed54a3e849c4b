"""Recovery: the state of a log, from a snapshot and the committed tail. It only writes its lease."""

from statelog.reading import AtCheckpoint, AtPosition, AtTime, Plan, plan_changes
from statelog.recovery.changes import newest_changes, read_changes, split_changes
from statelog.recovery.cursor import Cursor
from statelog.recovery.progress import Progress
from statelog.recovery.recover import Recovery, read, recover, recover_snapshot
from statelog.recovery.rocksdb_state import RocksdbState, read_rocksdb_state
from statelog.recovery.run_cache import CacheSettings
from statelog.recovery.runs import RunOpener
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.stream import Portion, Stream

__all__ = [
    "AtCheckpoint",
    "AtPosition",
    "AtTime",
    "CacheSettings",
    "Cursor",
    "Plan",
    "Portion",
    "Progress",
    "Recovery",
    "RecoverySettings",
    "RocksdbState",
    "RunOpener",
    "Stream",
    "newest_changes",
    "plan_changes",
    "read",
    "read_changes",
    "read_rocksdb_state",
    "recover",
    "recover_snapshot",
    "split_changes",
]
