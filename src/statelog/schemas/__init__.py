"""The contracts of statelog as pure values: records, folds, formats, decisions. Never does I/O."""

from statelog.schemas.changes.replay_plan import ChangeSetId, ReplayPlan
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType, key_group_of, key_groups_of, share, spark_expression
from statelog.schemas.ledger.fold import LedgerFold, Void, VoidReason
from statelog.schemas.ledger.handle import Checkpoint, Entry, Handle, Step
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Metadata, Place
from statelog.schemas.ledger.records import (
    AcceptLoss,
    Commit,
    CommitBody,
    Extent,
    LedgerRecord,
    LossRange,
    Mark,
    Open,
    Restart,
)
from statelog.schemas.ledger.state import LastCommit, LedgerState, LiveEpoch, MetaRecord, PartitionState, WriterState
from statelog.schemas.snapshot.claims import SubscriptionCap
from statelog.schemas.snapshot.manifest import Anchor, Manifest, RunRef
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.schemas.snapshot.run_ref import Cuts
from statelog.schemas.snapshot.runs import RowGroupSpan, RunFile, RunIndex
from statelog.schemas.topic_policy import Rights, Waiver
from statelog.schemas.values.schema import ValueSchema
from statelog.schemas.values.types import ValueField, ValueType

__all__ = [
    "AcceptLoss",
    "Anchor",
    "ChangeSetId",
    "Checkpoint",
    "Commit",
    "CommitBody",
    "Cuts",
    "Descriptor",
    "Entry",
    "Extent",
    "Handle",
    "HashRule",
    "KeyType",
    "LastCommit",
    "LastRecord",
    "LedgerFold",
    "LedgerRecord",
    "LedgerState",
    "LiveEpoch",
    "LogIdentity",
    "LossRange",
    "Manifest",
    "Mark",
    "MetaRecord",
    "Metadata",
    "Open",
    "PartitionState",
    "Place",
    "ReplayPlan",
    "Restart",
    "RetentionPolicy",
    "Rights",
    "RowGroupSpan",
    "RunFile",
    "RunIndex",
    "RunRef",
    "Step",
    "SubscriptionCap",
    "ValueField",
    "ValueSchema",
    "ValueType",
    "Void",
    "VoidReason",
    "Waiver",
    "WriterState",
    "key_group_of",
    "key_groups_of",
    "share",
    "spark_expression",
]
