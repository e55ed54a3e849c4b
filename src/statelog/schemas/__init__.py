"""The contracts of statelog as pure values: records, folds, formats, decisions. Never does I/O."""

from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType, key_group_of, key_groups_of, share, spark_expression
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.place import LogIdentity, Metadata, Place
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.outputs.output import Output
from statelog.schemas.snapshot.claims import SubscriptionCap
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.schemas.topic_policy import Waiver
from statelog.schemas.values.schema import ValueSchema, avsc_from_arrow

__all__ = [
    "Descriptor",
    "Handle",
    "HashRule",
    "KeyType",
    "LastCommit",
    "LogIdentity",
    "LossRange",
    "Metadata",
    "Output",
    "Place",
    "RetentionPolicy",
    "SubscriptionCap",
    "ValueSchema",
    "Waiver",
    "avsc_from_arrow",
    "key_group_of",
    "key_groups_of",
    "share",
    "spark_expression",
]
