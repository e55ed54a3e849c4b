"""The contracts of statelog as pure values: records, folds, formats, decisions, errors. Never does I/O."""

from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.errors import (
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
from statelog.schemas.handle import Checkpoint, Handle
from statelog.schemas.key_groups import KeyType, key_group_of, key_groups_of, spark_expression
from statelog.schemas.ledger import LossRange
from statelog.schemas.ledger_state import LastCommit
from statelog.schemas.shares import share

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
