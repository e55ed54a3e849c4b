"""The descriptor: what a log is, written once into its directory when the log is created.

Invariants:
- Nothing in the file ever changes. A log whose topics or cluster differ from it is refused, and both values are named;
  unless a manifest says that a person accepted other topics in their place. `at` is the descriptor with those.
- What is read back passes the same checks as what a caller gives: a file is untrusted input.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import cast

from statelog.errors import ConfigError, CorruptDescriptor, IdentityChanged, Misuse
from statelog.schemas.avro import Datum, FileCodec
from statelog.schemas.keys.key_groups import KeyType, check_counts, key_groups_of_partition
from statelog.schemas.ledger.identity import LogIdentity, shown_id
from statelog.schemas.names import check_name

__all__ = ["FORMAT_VERSION", "Descriptor", "HashRule", "verify"]

FORMAT_VERSION = 1
_FILE = FileCodec("descriptor", version=FORMAT_VERSION, error=CorruptDescriptor)


class HashRule(StrEnum):
    """How a key's key group is known: it follows from the key, or the caller names it (then no look-up by key)."""

    CRC32 = "crc32"
    CALLER = "caller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A log's name, identity and fixed counts. `value_schema_id` is its first value schema, 0 for opaque bytes.
    `nonce` is random, so that no two logs have the same descriptor. `made_with` is the identity that the file names,
    where the log has other topics now.

    Raises InvalidName, ConfigError.
    """

    name: str
    identity: LogIdentity
    partitions: int
    key_groups: int
    hash_rule: HashRule
    key_type: KeyType
    value_schema_id: int
    nonce: bytes = field(repr=False)
    made_with: LogIdentity | None = None

    def __post_init__(self) -> None:
        check_name("log", self.name)
        check_counts(self.partitions, self.key_groups)
        if self.value_schema_id < 0:
            raise ConfigError("a value schema id is negative", value_schema_id=self.value_schema_id)

    def at(self, identity: LogIdentity) -> "Descriptor":
        """The descriptor of the same log on the topics of this identity."""
        made_with = self.made_with or self.identity
        return replace(self, identity=identity, made_with=None if identity == made_with else made_with)

    @property
    def seal_key(self) -> bytes:
        """What seals the witnesses of chunks: one that was written for other topics of this log says nothing."""
        if self.made_with is None:
            return self.nonce
        ids = self.identity
        text = "\0".join((ids.cluster_id, ids.data_topic_id, ids.ledger_topic_id))
        return hashlib.sha256(self.nonce + text.encode()).digest()[: len(self.nonce)]

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the file: what the ledger's first record says of its owner."""
        return hashlib.sha256(self.to_bytes()).digest()

    def key_groups_in(self, partitions: Iterable[int]) -> frozenset[int]:
        """The key groups that these partitions hold: what a worker restores that writes them."""
        held = (key_groups_of_partition(partition, self.partitions, self.key_groups) for partition in partitions)
        return frozenset(chain.from_iterable(held))

    def to_bytes(self) -> bytes:
        """The file."""
        return _FILE.encode(
            {
                "name": self.name,
                "identity": (self.made_with or self.identity).to_datum(),
                "partitions": self.partitions,
                "key_groups": self.key_groups,
                "hash_rule": self.hash_rule.value,
                "key_type": self.key_type.value,
                "value_schema_id": self.value_schema_id,
                "nonce": self.nonce,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "Descriptor":
        """From the file's bytes; `path` is for messages. Raises CorruptDescriptor, UnknownFormat."""
        datum = _FILE.decode(data, path)
        try:
            return _from_datum(datum)
        except (Misuse, ValueError) as error:
            raise CorruptDescriptor(f"{path} holds impossible values: {error}", path=path) from error


def _from_datum(datum: Datum) -> Descriptor:
    return Descriptor(
        name=cast("str", datum["name"]),
        identity=LogIdentity.from_datum(datum["identity"]),
        partitions=cast("int", datum["partitions"]),
        key_groups=cast("int", datum["key_groups"]),
        hash_rule=HashRule(cast("str", datum["hash_rule"])),
        key_type=KeyType(cast("str", datum["key_type"])),
        value_schema_id=cast("int", datum["value_schema_id"]),
        nonce=cast("bytes", datum["nonce"]),
    )


def verify(descriptor: Descriptor, found_identity: LogIdentity, found_partitions: int) -> str | None:
    """Compare the descriptor with what the cluster shows. Returns a warning for people, or None if all is equal.

    Partitions that were added later are ignored with that warning: the log's key groups stay where they are.
    Raises IdentityChanged, naming both values, for another cluster, another topic, or fewer partitions.
    """
    expected = descriptor.identity
    _compare(descriptor, "cluster", expected.cluster_id, found_identity.cluster_id)
    _compare(descriptor, "data topic", expected.data_topic_id, found_identity.data_topic_id)
    _compare(descriptor, "ledger topic", expected.ledger_topic_id, found_identity.ledger_topic_id)
    if found_partitions < descriptor.partitions:
        raise IdentityChanged(
            "the data topic has fewer partitions than the log",
            log=descriptor.name,
            expected=descriptor.partitions,
            found=found_partitions,
            hint="The topic was recreated: restore it, or delete the log",
        )
    if found_partitions == descriptor.partitions:
        return None
    return (
        f"the data topic of {descriptor.name} has {found_partitions} partitions, the log uses the first"
        f" {descriptor.partitions}; the added ones are ignored"
    )


def _compare(descriptor: Descriptor, what: str, expected: str, found: str) -> None:
    if expected != found:
        expected, found = shown_id(expected), shown_id(found)
        raise IdentityChanged(
            f"the log was created on {what} {expected}, but this is {what} {found}",
            log=descriptor.name,
            expected=expected,
            found=found,
            hint="Check bootstrap.servers and the root URL; a topic that was deleted and recreated is another topic."
            " If a person accepted that (`statelog accept-loss --ledger`), open the log again",
        )
