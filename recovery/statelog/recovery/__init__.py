"""Recovery: the state of a log, out of a snapshot and the committed tail. Writes nothing to the log but its lease."""

from statelog.recovery.applied import Applied
from statelog.recovery.at import At, AtCheckpoint, AtPosition
from statelog.recovery.cache_shared import CacheSettings
from statelog.recovery.opener import NoCache
from statelog.recovery.portion import Portion
from statelog.recovery.progress import Phase, Progress
from statelog.recovery.recover import Recovery, recover, recover_dict
from statelog.recovery.rocksdb import read_rocksdb_state
from statelog.recovery.rocksdb_state import ResumePoint, RocksdbState
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.snapshot import recover_snapshot
from statelog.recovery.spill import SpillStatistics
from statelog.recovery.statistics import RecoveryStatistics
from statelog.recovery.stream import Stream

__all__ = [
    "Applied",
    "At",
    "AtCheckpoint",
    "AtPosition",
    "CacheSettings",
    "NoCache",
    "Phase",
    "Portion",
    "Progress",
    "Recovery",
    "RecoverySettings",
    "RecoveryStatistics",
    "ResumePoint",
    "RocksdbState",
    "SpillStatistics",
    "Stream",
    "read_rocksdb_state",
    "recover",
    "recover_dict",
    "recover_snapshot",
]
