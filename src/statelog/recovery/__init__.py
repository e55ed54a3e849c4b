"""Recovery: the state of a log, from a snapshot and the committed tail. Writes nothing but its lease."""

from statelog.reading.changes import plan_changes, split_changes
from statelog.reading.plan import At, AtCheckpoint, AtPosition, AtTime, Bound, CommitFacts, CommitSpan, Plan, RunPart
from statelog.recovery.cache.opener import DirectOpener, NoCache, OpenerSettings, RunOpener
from statelog.recovery.cache.run_cache import CacheStatistics
from statelog.recovery.cache.shared import CachedOpener, CacheSettings
from statelog.recovery.changes import newest_changes, read_changes
from statelog.recovery.reading.progress import Phase, Progress
from statelog.recovery.recover import Recovery, recover, recover_snapshot
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.spill.frame import Applied
from statelog.recovery.spill.queue import SpillStatistics
from statelog.recovery.streaming.cursor import Cursor
from statelog.recovery.streaming.portion import Portion
from statelog.recovery.streaming.stream import Stream
from statelog.recovery.targets.monitor import OnProgress
from statelog.recovery.targets.rocksdb_read import read_rocksdb_state
from statelog.recovery.targets.rocksdb_state import ResumePoint, RocksdbState
from statelog.recovery.targets.statistics import RecoveryStatistics

__all__ = [
    "Applied",
    "At",
    "AtCheckpoint",
    "AtPosition",
    "AtTime",
    "Bound",
    "CacheSettings",
    "CacheStatistics",
    "CachedOpener",
    "CommitFacts",
    "CommitSpan",
    "Cursor",
    "DirectOpener",
    "NoCache",
    "OnProgress",
    "OpenerSettings",
    "Phase",
    "Plan",
    "Portion",
    "Progress",
    "Recovery",
    "RecoverySettings",
    "RecoveryStatistics",
    "ResumePoint",
    "RocksdbState",
    "RunOpener",
    "RunPart",
    "SpillStatistics",
    "Stream",
    "newest_changes",
    "plan_changes",
    "read_changes",
    "read_rocksdb_state",
    "recover",
    "recover_snapshot",
    "split_changes",
]
