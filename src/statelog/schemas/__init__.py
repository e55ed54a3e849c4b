"""The contracts of statelog as pure values: records, folds, formats, decisions, errors. Never does I/O."""

from statelog.errors import (
    BrokerUnavailable,
    CheckpointMismatch,
    CommitRefused,
    Corrupt,
    Damaged,
    DataLoss,
    Fenced,
    Misuse,
    OutcomeUnknown,
    PersistFailed,
    StatelogError,
    Unavailable,
    Unsafe,
)
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.keys.key_groups import KeyType, key_group_of, key_groups_of, spark_expression
from statelog.schemas.keys.shares import share
from statelog.schemas.ledger.handle import Checkpoint, Handle
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.ledger.state import LastCommit

__all__ = [
    "BrokerUnavailable",
    "Checkpoint",
    "CheckpointMismatch",
    "CommitRefused",
    "Corrupt",
    "Damaged",
    "DataLoss",
    "Descriptor",
    "Fenced",
    "Handle",
    "HashRule",
    "KeyType",
    "LastCommit",
    "LossRange",
    "Misuse",
    "OutcomeUnknown",
    "PersistFailed",
    "StatelogError",
    "Unavailable",
    "Unsafe",
    "key_group_of",
    "key_groups_of",
    "share",
    "spark_expression",
]
