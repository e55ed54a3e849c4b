"""`LogOptions`: how a log is made, as a value. An option that is not given agrees with every existing log."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, Unpack, overload

from statelog.schemas.descriptor import Descriptor, HashRule, ValueFormat
from statelog.schemas.key_groups import KeyType
from statelog.schemas.names import check_kind, parse_enum
from statelog.schemas.topic_policy import Truncation
from statelog.schemas.values.schema import parse_value_schema
from statelog.store.files import ValueSchemas, truncation_of
from statelog.store.port import Store

if TYPE_CHECKING:  # The language has defaults of type variables from Python 3.13 on.
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

_Bytes = Literal[KeyType.BYTES, "bytes"] | None
_Text = Literal[KeyType.STRING, "string"]
_Long = Literal[KeyType.LONG, "long"]
_Fields = dict[str, Any]
_Json = Literal["json"]


class _Other(TypedDict, total=False):
    """The options that do not determine the types of keys and values."""

    partitions: int | None
    key_groups: int | None
    hash_rule: HashRule | str | None
    prefix_bytes: int | None
    ttl_s: float | None
    truncation: str | None
    retention_days: int | None


class _Opaque(_Other, total=False):
    value_schema: None
    value_type: Literal["bytes"] | None


class _Any(_Other, total=False):
    value_schema: str | None
    value_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(Generic[K, V]):
    """How a log is made: `create=LogOptions(partitions=32)`. An existing log must agree with each option that is given.

    partitions      of the data topic; by default 8
    key_groups      by default 128
    key_type        "bytes", the default, "string" or "long"
    hash_rule       "crc32", the default; "crc32-prefix" puts keys with the same first `prefix_bytes` in one key group;
                    with "caller" the caller places keys
    value_schema    the text of an Avro record schema; without one values are opaque bytes, or JSON
    value_type      "bytes", the default, or "json": numbers, text, booleans, lists and dicts
    ttl_s           a put without a due is due after so many seconds; by default it has no due
    truncation      "delete-records", the default: the materializer deletes records that nobody needs; or "retention":
                    Kafka deletes them after `retention_days`, by default 7

    Type checkers learn a table's types from it: `LogOptions(key_type="string")` makes a `Table[str, bytes]`. With a
    `value_schema` values are dicts, JSON values `Any`.
    """

    partitions: int | None = None
    key_groups: int | None = None
    key_type: KeyType | str | None = None
    hash_rule: HashRule | str | None = None
    prefix_bytes: int | None = None
    value_schema: str | None = None
    value_type: str | None = None
    ttl_s: float | None = None
    truncation: str | None = None
    retention_days: int | None = None

    if TYPE_CHECKING:

        @overload
        def __init__(self: "LogOptions[bytes, bytes]", *, key_type: _Bytes = None, **_: Unpack[_Opaque]) -> None: ...
        @overload
        def __init__(
            self: "LogOptions[bytes, Any]", *, key_type: _Bytes = None, value_type: _Json, **_: Unpack[_Other]
        ) -> None: ...
        @overload
        def __init__(
            self: "LogOptions[bytes, _Fields]", *, key_type: _Bytes = None, value_schema: str, **_: Unpack[_Other]
        ) -> None: ...
        @overload
        def __init__(self: "LogOptions[str, bytes]", *, key_type: _Text, **_: Unpack[_Opaque]) -> None: ...
        @overload
        def __init__(
            self: "LogOptions[str, Any]", *, key_type: _Text, value_type: _Json, **_: Unpack[_Other]
        ) -> None: ...
        @overload
        def __init__(
            self: "LogOptions[str, _Fields]", *, key_type: _Text, value_schema: str, **_: Unpack[_Other]
        ) -> None: ...
        @overload
        def __init__(self: "LogOptions[int, bytes]", *, key_type: _Long, **_: Unpack[_Opaque]) -> None: ...
        @overload
        def __init__(
            self: "LogOptions[int, Any]", *, key_type: _Long, value_type: _Json, **_: Unpack[_Other]
        ) -> None: ...
        @overload
        def __init__(
            self: "LogOptions[int, _Fields]", *, key_type: _Long, value_schema: str, **_: Unpack[_Other]
        ) -> None: ...
        @overload
        def __init__(self, *, key_type: KeyType | str | None = None, **_: Unpack[_Any]) -> None: ...
        def __init__(self, **_: Any) -> None: ...

    @staticmethod
    def of(create: "bool | LogOptions") -> "LogOptions":
        """Return the options in `create`. Raises ConfigError if it is neither a bool nor options."""
        check_kind("create", create, bool, LogOptions, example="create=True, or create=LogOptions(partitions=32)")
        return create if isinstance(create, LogOptions) else LogOptions()

    def given(self) -> set[str]:
        """Return the names of the options that are given."""
        return {one.name for one in fields(self) if getattr(self, one.name) is not None}


def differences(
    options: LogOptions, descriptor: Descriptor, store: Store, value_schemas: ValueSchemas
) -> Iterator[str]:
    """Yield the differences between a log and these options, as text."""
    kinds = {"key_type": KeyType, "hash_rule": HashRule, "value_type": ValueFormat}
    for name in ("partitions", "key_groups", "prefix_bytes", "ttl_s", *kinds):
        wanted, found = getattr(options, name), getattr(descriptor, name)
        if wanted is not None and (parse_enum(kinds[name], name, wanted) if name in kinds else wanted) != found:
            yield f"{name} is {found} and not {wanted}"
    if options.value_schema is not None:
        avsc = parse_value_schema(options.value_schema, 1).avsc
        if avsc not in {known.avsc for known in value_schemas.all()}:
            yield "value_schema is not one of the log's, to which evolve_value_schema adds one"
    if options.truncation is not None or options.retention_days is not None:
        said, kept = Truncation.named(options.truncation, options.retention_days), truncation_of(store, descriptor)
        if said.mode is not kept.mode or options.retention_days not in (None, kept.retention_days):
            yield f"truncation is {kept} and not {said}"
