"""`LogOptions`: what a caller says of a log, for one that is made, and for one that is there and has to agree. Pure."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from statelog.errors import ConfigError
from statelog.schemas.choices import one_of
from statelog.schemas.descriptor import Descriptor, HashRule, check_hashing
from statelog.schemas.keys.key_groups import KeyType
from statelog.schemas.values.schema import ValueSchema, parse_value_schema

__all__ = ["LogOptions", "NewLog", "check_replicas", "new_log"]

_MOST_REPLICAS = 10_000  # What the client can say.


class NewLog(NamedTuple):
    """A log that is about to be made: every option checked, and nothing left out."""

    partitions: int
    key_groups: int
    key_type: KeyType
    hash_rule: HashRule
    prefix_bytes: int | None
    value_schema: ValueSchema | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How a log is made: `create=LogOptions(partitions=32)`. A log that is there has to agree with what is said.

    None says nothing: a new log has 8 `partitions` and 128 `key_groups`, keys of `key_type` "bytes" and the `hash_rule`
    "crc32". With "crc32-prefix" keys whose first `prefix_bytes` are equal lie in one key group. `value_schema` is the
    text of an Avro record schema; values are opaque bytes without.
    """

    partitions: int | None = None
    key_groups: int | None = None
    key_type: KeyType | str | None = None
    hash_rule: HashRule | str | None = None
    prefix_bytes: int | None = None
    value_schema: str | None = None

    def given(self) -> set[str]:
        """The names of the options that say something."""
        return {one.name for one in fields(self) if getattr(self, one.name) is not None}

    def check(self, descriptor: Descriptor, schemas: Callable[[], Collection[ValueSchema]]) -> None:
        """Raise ConfigError if a log is not what these options say, and name all that differs.

        `schemas` gives every value schema of the log: one that the log has moved on from still agrees with it.
        """
        different = [*self._differing(descriptor), *self._differing_schema(schemas)]
        if different:
            raise ConfigError(
                f"the log {descriptor.name} was made with other options: {', '.join(different)}",
                log=descriptor.name,
                hint="Leave them out to open the log as it is, or choose another name",
            )

    def _differing(self, descriptor: Descriptor) -> Iterator[str]:
        kinds = {"key_type": KeyType, "hash_rule": HashRule}
        for name in ("partitions", "key_groups", "prefix_bytes", *kinds):
            wanted, found = getattr(self, name), getattr(descriptor, name)
            if wanted is not None and (one_of(kinds[name], name, wanted) if name in kinds else wanted) != found:
                yield f"{name} is {found} and not {wanted}"

    def _differing_schema(self, schemas: Callable[[], Collection[ValueSchema]]) -> Iterator[str]:
        if self.value_schema is not None:
            wanted = parse_value_schema(self.value_schema, 1)
            if wanted.avsc not in {known.avsc for known in schemas()}:
                yield "value_schema is not one of the log's, to which evolve_value_schema adds one"


def new_log(said: LogOptions) -> NewLog:
    """The log that these options make. Raises ConfigError for what no log can be."""
    groups = _whole("key_groups", 128 if said.key_groups is None else said.key_groups, 65536, "65536")
    partitions = 8 if said.partitions is None else said.partitions
    new = NewLog(
        partitions=_whole("partitions", partitions, groups, f"key_groups, which is {groups}"),
        key_groups=groups,
        key_type=one_of(KeyType, "key_type", said.key_type or KeyType.BYTES),
        hash_rule=one_of(HashRule, "hash_rule", said.hash_rule or HashRule.CRC32),
        prefix_bytes=said.prefix_bytes,
        value_schema=None if said.value_schema is None else parse_value_schema(said.value_schema, 1),
    )
    check_hashing(new.hash_rule, new.key_type, new.prefix_bytes)
    return new


def check_replicas(replication_factor: object) -> None:
    """Raise ConfigError for a number of replicas that no topic can have."""
    _whole("replication_factor", replication_factor, _MOST_REPLICAS, str(_MOST_REPLICAS))


def _whole(name: str, value: object, most: int, most_text: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r} and must be a whole number from 1 to {most_text}")
    return value
