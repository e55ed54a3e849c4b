"""Recovery: the state of a log, out of a snapshot and the committed tail. Writes nothing to the log but its lease."""

from statelog.recovery.cache.opener import NoCache
from statelog.recovery.cache.shared import CacheSettings
from statelog.recovery.planning.at import At, AtCheckpoint, AtPosition
from statelog.recovery.reading.progress import Phase, Progress
from statelog.recovery.recover import Recovery, recover, recover_dict
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.snapshot import recover_snapshot
from statelog.recovery.spill.queue import SpillStatistics
from statelog.recovery.statistics import RecoveryStatistics
from statelog.recovery.streaming.applied import Applied
from statelog.recovery.streaming.portion import Portion
from statelog.recovery.streaming.stream import Stream
from statelog.recovery.targets.rocksdb_read import read_rocksdb_state
from statelog.recovery.targets.rocksdb_state import ResumePoint, RocksdbState

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
