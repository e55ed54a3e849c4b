"""`statelog.open`: opens a log by name, and creates it first if asked to.

Invariants:
- Any number of processes may open the same name with `create=True` at once: one of them makes the log, all open it.
- An option that is given holds for the log that comes out: one that an existing log contradicts is an error.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from statelog.errors import AlreadyExists, ConfigError, NotFound
from statelog.schemas.choices import one_of
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.keys.key_groups import KeyType
from statelog.schemas.values.schema import ValueSchema, parse_value_schema
from statelog.storage.log.log import Log
from statelog.storage.log.ports import KafkaSource, StoreSource, opened_ports

__all__ = ["LogOptions", "open"]

_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Between two looks at a log that a rival is making: most of its time goes to Kafka's two topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What a caller says of a log; None where it says nothing. Raises ConfigError for an unknown kind or schema."""

    partitions: int | None = None
    key_groups: int | None = None
    key_type: KeyType | str | None = None
    hash_rule: HashRule | str | None = None
    prefix_bytes: int | None = None
    value_schema: str | None = None
    replication_factor: int | None = None

    def given(self) -> dict[str, Any]:
        """The options that say something, as `Log.create` takes them."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in said.items() if value is not None}

    def check(self, descriptor: Descriptor, schemas: Callable[[], Collection[ValueSchema]]) -> None:
        """Raise ConfigError if a log is not what these options say, and name all that differs.

        `schemas` gives every value schema of the log: one that the log has moved on from still agrees with it.
        """
        different = [*self._differing_counts(descriptor), *self._differing_schema(schemas)]
        if different:
            raise ConfigError(
                f"the log {descriptor.name} was made with other options: {', '.join(different)}",
                log=descriptor.name,
                hint="Leave them out to open the log as it is, or choose another name",
            )

    def _differing_counts(self, descriptor: Descriptor) -> Iterator[str]:
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


def open(  # noqa: A001 - the name for users is statelog.open, as it is gzip.open
    name: str,
    *,
    kafka: KafkaSource,
    root: StoreSource,
    create: bool = False,
    partitions: int | None = None,
    key_groups: int | None = None,
    key_type: KeyType | str | None = None,
    hash_rule: HashRule | str | None = None,
    prefix_bytes: int | None = None,
    value_schema: str | None = None,
    replication_factor: int | None = None,
    allow_unsafe: Collection[str] = (),
    storage_options: Mapping[str, object] | None = None,
) -> Log:
    """Open a log; with `create`, make it first if there is none.

        with statelog.open("visits", create=True, **where) as log:
            print(log.describe())

    The options are those of `Log.create`, with its defaults for a new log. An existing log has to agree with each one
    that is given, except for `replication_factor`: how many replicas there are is checked at every open. A
    `value_schema` agrees if the log has it, as its newest or as an earlier one.

    Raises NotFound without `create`; ConfigError, which names the options that differ; and as `Log.open` and
    `Log.create` do.
    """
    options = LogOptions(
        partitions=partitions,
        key_groups=key_groups,
        key_type=key_type,
        hash_rule=hash_rule,
        prefix_bytes=prefix_bytes,
        value_schema=value_schema,
        replication_factor=replication_factor,
    )
    with opened_ports(name, kafka, root, storage_options, allow_unsafe) as (client, store, _):
        place: dict[str, Any] = {"kafka": client, "root": store, "allow_unsafe": allow_unsafe}
        return _open_or_create(name, place, options) if create else _open(name, place, options)


def _open(name: str, place: dict[str, Any], options: LogOptions) -> Log:
    log = Log.open(name, **place)
    options.check(log.descriptor, log.value_schemas.all)
    return log


def _open_or_create(name: str, place: dict[str, Any], options: LogOptions) -> Log:
    """Open; make what is not there; and look again if a rival makes it at the same moment."""
    for pause_s in (*_PAUSES_S, None):
        try:
            return _open(name, place, options)
        except NotFound:
            pass  # There is none, or one whose create is under way, or died: to create it once more completes it.
        try:
            return Log.create(name, **place, **options.given())  # Made by these options: nothing is left to check.
        except AlreadyExists:
            if pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")
