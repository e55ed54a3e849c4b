"""The descriptor: a log's identity and fixed settings, written once into its directory when the log is created.

Invariants:
- The file and its version never change, because the ledger's Mark has its hash. A log on other topics or another
  cluster is refused, with both values, unless a manifest says that a person accepted the other topics (`at`).
- A file is untrusted input: it passes the same checks as a caller's values.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statelog.errors import ConfigError, Corrupt, CorruptDescriptor, Fact, IdentityChanged, Misuse
from statelog.schemas.arrays import numbers_of
from statelog.schemas.avro import Datum, FileCodec, datum_of
from statelog.schemas.key_groups import (
    KeyType,
    check_counts,
    check_prefix_bytes,
    key_bytes,
    key_groups_of,
    key_groups_of_partition,
)
from statelog.schemas.ledger.place import LogIdentity, shown_id
from statelog.schemas.names import check_name
from statelog.schemas.topic_policy import MAX_RECORD_BYTES, MIN_RECORD_BYTES

FORMAT_VERSION = 5
_EARLIER = {1: "descriptor-1", 2: "descriptor-2", 3: "descriptor-3", 4: "descriptor-4"}
_FILE = FileCodec("descriptor", version=FORMAT_VERSION, error=CorruptDescriptor, earlier=_EARLIER)
_FILE_1, _FILE_2, _FILE_3, _FILE_4 = (
    FileCodec(name, version=number, error=CorruptDescriptor) for number, name in _EARLIER.items()
)
TTL_S_MAX = 36_525 * 86_400
"""The longest ttl of a log: a hundred years."""


class HashRule(StrEnum):
    """The source of a key's key group: the key, its first bytes, or the caller (then there is no lookup by key)."""

    CRC32 = "crc32"
    CRC32_PREFIX = "crc32-prefix"
    CALLER = "caller"


class ValueFormat(StrEnum):
    """The kind of values without a schema: bytes, or JSON values, which are stored as UTF-8 text."""

    BYTES = "bytes"
    JSON = "json"


def check_hashing(hash_rule: HashRule, key_type: KeyType, prefix_bytes: object) -> None:
    """Raise ConfigError unless key groups can be computed in this way."""
    check_prefix_bytes(prefix_bytes, key_type)
    if (prefix_bytes is None) is (hash_rule is HashRule.CRC32_PREFIX):
        hint = f"Give both for key groups by prefix, such as hash_rule={str(HashRule.CRC32_PREFIX)!r}, prefix_bytes=8"
        raise ConfigError(f"hash_rule is {hash_rule} and prefix_bytes {prefix_bytes}", hint=hint)


def check_ttl(ttl_s: object) -> float:
    """Return a log's ttl in seconds. Raises ConfigError unless it is a positive number of at most a hundred years."""
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s <= TTL_S_MAX:
        hint = f"Give a positive number of seconds, at most {TTL_S_MAX} (100 years)"
        raise ConfigError(f"ttl_s is {ttl_s!r:.100}", hint=hint)
    return float(ttl_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A log's name, identity and fixed counts.

    `value_schema_id`: its first value schema, 0 for opaque bytes.
    `nonce`: random, so that no two logs have the same descriptor.
    `made_with`: the identity in the file, if the log has other topics now.
    `prefix_bytes`: how many first bytes of a key are hashed, None for all.
    `record_bytes_max`: its largest record, Kafka's framing included. Both topics allow as much.
    `value_type`: what values without a schema are.
    `ttl_s`: a put without a due is due so many seconds later. None: it has no due.

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
    prefix_bytes: int | None = None
    record_bytes_max: int = MAX_RECORD_BYTES
    value_type: ValueFormat = ValueFormat.BYTES
    ttl_s: float | None = None

    def __post_init__(self) -> None:
        check_name("log", self.name)
        check_counts(self.partitions, self.key_groups)
        check_hashing(self.hash_rule, self.key_type, self.prefix_bytes)
        if self.value_schema_id < 0:
            raise ConfigError("a value schema id is negative", value_schema_id=self.value_schema_id)
        if self.value_schema_id and self.value_type is ValueFormat.JSON:
            raise ConfigError("a log has JSON values or a value schema", hint="Leave value_type or value_schema out")
        if self.ttl_s is not None:
            check_ttl(self.ttl_s)
        if not MIN_RECORD_BYTES <= self.record_bytes_max <= MAX_RECORD_BYTES:
            raise ConfigError("no log has such a largest record", record_bytes_max=self.record_bytes_max)

    def at(self, identity: LogIdentity) -> "Descriptor":
        """Return the descriptor of the same log on the topics of this identity."""
        made_with = self.made_with or self.identity
        return replace(self, identity=identity, made_with=None if identity == made_with else made_with)

    @property
    def seal_key(self) -> bytes:
        """The key that seals the witnesses of chunks. It differs for other topics of the same log."""
        if self.made_with is None:
            return self.nonce
        ids = self.identity
        text = "\0".join((ids.cluster_id, ids.data_topic_id, ids.ledger_topic_id))
        return hashlib.sha256(self.nonce + text.encode()).digest()[: len(self.nonce)]

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the file. The ledger's Mark carries it."""
        return hashlib.sha256(self.to_bytes()).digest()

    def key_group_of(self, key: bytes | str | int) -> int:
        """Return the key group of a key, by the log's hash. Raises InvalidChange; Misuse where callers name it."""
        self._check_hashed()
        return crc32(key_bytes(key, self.key_type)[: self.prefix_bytes]) % self.key_groups

    def key_groups_of(self, keys: pa.Array) -> NDArray[np.uint16]:
        """Return the key groups of a column of keys of the log's type. Raises Misuse where callers name them."""
        self._check_hashed()
        return key_groups_of(keys, self.key_groups, self.prefix_bytes)

    def check_key_groups(self, changes: pa.Table, damage: type[Corrupt] = Corrupt, **facts: Fact) -> pa.Table:
        """Return the changes. Raise `damage` for a key in another key group than its own, unless callers name them."""
        for batch in changes.to_batches() if self.hash_rule is not HashRule.CALLER else ():
            keys, found = batch.column("key"), numbers_of(batch.column("key_group"))
            strays = np.flatnonzero(found != (own := self.key_groups_of(keys)))
            if len(strays):
                row = int(strays[0])
                message = "a key lies in a key group that is not its own, where no lookup and no delete finds it"
                hint = f"`statelog doctor {self.name} --deep` shows where; docs/troubleshooting.md says what to do"
                facts |= {"key": ascii(keys[row].as_py())[:200], "key_group": int(found[row])}
                raise damage(message, hint=hint, own_key_group=int(own[row]), changes=len(strays), **facts)
        return changes

    def _check_hashed(self) -> None:
        if self.hash_rule is HashRule.CALLER:
            raise Misuse("the callers of this log name the key groups: a key does not determine one", log=self.name)

    def key_groups_in(self, partitions: Iterable[int]) -> frozenset[int]:
        """Return the key groups that these partitions hold."""
        held = (key_groups_of_partition(partition, self.partitions, self.key_groups) for partition in partitions)
        return frozenset(chain.from_iterable(held))

    def to_bytes(self) -> bytes:
        """Return the content of the file, in the earliest version that suffices, so that older releases can read it."""
        is_of_16_mib = self.record_bytes_max == MAX_RECORD_BYTES
        file = (_FILE_1 if self.prefix_bytes is None else _FILE_2) if is_of_16_mib else _FILE_3
        if self.value_type is not ValueFormat.BYTES:
            file = _FILE_4
        if self.ttl_s is not None:
            file = _FILE
        return file.encode(datum_of(self, identity=datum_of(self.made_with or self.identity)))

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "Descriptor":
        """Decode the file; `path` is for messages. Raises CorruptDescriptor, UnknownFormat."""
        return _FILE.decode(data, path, _from_datum)


def _from_datum(datum: Datum) -> Descriptor:
    identity = LogIdentity(**datum["identity"])
    rule, key_type = HashRule(datum["hash_rule"]), KeyType(datum["key_type"])
    value_type = ValueFormat(datum.get("value_type", ValueFormat.BYTES))
    parsed = {"identity": identity, "hash_rule": rule, "key_type": key_type, "value_type": value_type}
    return Descriptor(**dict[str, Any](datum, **parsed))


def verify(descriptor: Descriptor, found_identity: LogIdentity, found_partitions: int) -> str | None:
    """Compare the descriptor with the cluster. Return a warning for people, or None if all is equal.

    Partitions that were added later are ignored with that warning: the log's key groups stay where they are. Raises
    IdentityChanged, with both values, for another cluster, another topic, or fewer partitions.
    """
    for what, name in (("cluster", "cluster_id"), ("data topic", "data_topic_id"), ("ledger topic", "ledger_topic_id")):
        ids = getattr(descriptor.identity, name), getattr(found_identity, name)
        if ids[0] != ids[1]:
            expected, found = map(shown_id, ids)
            message = f"the log was created on {what} {expected}, but this is {what} {found}"
            hint = _OTHER_CLUSTER if what == "cluster" else lost_topic_hint(descriptor.name)
            raise IdentityChanged(message, log=descriptor.name, expected=expected, found=found, hint=hint)
    if found_partitions < descriptor.partitions:
        raise IdentityChanged(
            "the data topic has fewer partitions than the log",
            log=descriptor.name,
            expected=descriptor.partitions,
            found=found_partitions,
            hint=lost_topic_hint(descriptor.name),
        )
    if found_partitions == descriptor.partitions:
        return None
    return (
        f"the data topic of {descriptor.name} has {found_partitions} partitions, the log uses the first"
        f" {descriptor.partitions}; the added ones are ignored"
    )


_OTHER_CLUSTER = (
    "Check bootstrap.servers and the root URL. A log cannot fail over to another cluster, not even to a mirror of its"
    " topics: move it there (`statelog copy`)"
)


def lost_topic_hint(name: str) -> str:
    """Return the hint for a topic that was deleted, or recreated (which makes it another topic)."""
    return (
        "Check bootstrap.servers and the root URL. A deleted topic does not come back: copy the newest snapshot into a"
        f" new log (`statelog copy {name} COPY --snapshot --finish`), or delete the log"
    )
