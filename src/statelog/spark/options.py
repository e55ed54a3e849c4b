"""Options of `format("statelog")`: checked once, as frozen values. Pure.

Spark hands options over with lower-cased names. An unknown one is refused by name, with the known ones beside it,
because an option that is silently ignored is a guarantee that silently is not there.

Invariants: equal values mean equal connections, so they are the keys of client caches; a repr holds no secret.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from statelog.errors import ConfigError
from statelog.recovery.planning.at import At, AtCheckpoint, AtPosition
from statelog.schemas.names import check_name
from statelog.storage.kafka.config import client_config
from statelog.storage.store.url import mask_options, mask_url

__all__ = [
    "STATE_NAMES",
    "LogAddress",
    "ReadOptions",
    "WriteOptions",
    "log_address",
    "read_options",
    "storage_text",
    "write_options",
]

_KAFKA = "kafka."
_STORAGE = "storage."
_COMMON = ("log", "path", "root", "allowUnsafe")
_READ = ("keyGroups", "atPosition", "atWriter", "atCheckpoint", "minPartitions", "columns", "includeKeyGroup")
_WRITE = ("writerId", "uniqueKeys", "takeOver", "takeOverFrom", "queryId", "checkpointId", "batchId")
_SPARK = ("checkpointLocation", "queryName")  # Spark adds its own to those of a streaming sink.
STATE_NAMES = ("key", "key_group", "op")
"""Columns whose names belong to statelog."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LogAddress:
    """A log by name, and how to reach it. `kafka` are librdkafka settings, `storage` fsspec options as text."""

    log: str
    root: str
    kafka: tuple[tuple[str, str], ...]
    storage: tuple[tuple[str, str], ...] = ()
    allow_unsafe: tuple[str, ...] = ()

    def __repr__(self) -> str:
        kafka, storage = client_config(dict(self.kafka)).masked(), mask_options(dict(self.storage))
        return f"LogAddress({self.log!r}, root={mask_url(self.root)!r}, kafka={kafka}, storage={storage})"

    def storage_options(self) -> dict[str, object]:
        """The storage options with their types: see `storage_text`."""
        return {name: _storage_value(name, text) for name, text in self.storage}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A batch read: which part of which state. None means all key groups, the newest state, all columns."""

    where: LogAddress
    key_groups: tuple[int, ...] | None = None
    at: At | None = None
    min_partitions: int | None = None
    columns: tuple[str, ...] | None = None
    include_key_group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write. `batch_id` is the micro-batch that a batch write stands for; `checkpoint_location` is '' if Spark's
    configuration names it, or there is none.
    """

    where: LogAddress
    writer: str
    unique_keys: bool = False
    take_over: bool = False
    take_over_from: str | None = None
    query_id: str | None = None
    checkpoint_id: int | None = None
    batch_id: int | None = None
    checkpoint_location: str = ""
    is_stream: bool = False

    @property
    def serves_query(self) -> bool:
        """Whether a streaming query writes, through its sink or through `upsert`."""
        return self.is_stream or self.batch_id is not None


def log_address(options: Mapping[str, str]) -> LogAddress:
    """The part of the options that says where the log is. Raises ConfigError, InvalidName."""
    given = _lowered(options)
    name = given.get("log") or given.get("path")
    if given.get("path", name) != name:
        raise ConfigError("the option log and the path name different logs", hint="Give one of them")
    if not name:
        raise ConfigError("the option log is missing", hint="Name the log: .option('log', 'flights')")
    if not given.get("root"):
        raise ConfigError("the option root is missing", hint="Name the URL below which the log's directory lies")
    kafka = _below(given, _KAFKA)
    if "bootstrap.servers" not in kafka:
        raise ConfigError("the option kafka.bootstrap.servers is missing", hint="Name at least one broker as host:port")
    client_config(kafka)
    return LogAddress(
        log=check_name("log", name),
        root=given["root"],
        kafka=tuple(sorted(kafka.items())),
        storage=tuple(sorted(_below(given, _STORAGE).items())),
        allow_unsafe=_list(given.get("allowunsafe", "")),
    )


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read. Raises ConfigError that names the option."""
    given = _lowered(options)
    _refuse_unknown(given, (*_COMMON, *_READ), "read")
    columns = _list(given.get("columns", ""))
    if "columns" in given and not columns:
        raise ConfigError("the option columns is empty", hint="Leave it out for all columns")
    minimum = _number(given, "minPartitions")
    if minimum == 0:
        raise ConfigError("the option minPartitions is 0", hint="Leave it out, or give at least 1")
    return ReadOptions(
        where=log_address(given),
        key_groups=_key_groups(given["keygroups"]) if "keygroups" in given else None,
        at=_at(given),
        min_partitions=minimum,
        columns=columns or None,
        include_key_group=_flag(given, "includeKeyGroup"),
    )


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a write. Raises ConfigError that names the option, InvalidName."""
    given = _lowered(options)
    known = (*_COMMON, *_WRITE, *(_SPARK if streaming else ()))
    _refuse_unknown(given, known, "write")
    writer = given.get("writerid")
    if not writer:
        raise ConfigError(
            "the option writerId is missing",
            hint="Name this job's writer: a job keeps its name for life, and no two jobs share one",
        )
    checkpoint, batch = _number(given, "checkpointId"), _number(given, "batchId")
    if streaming and (checkpoint is not None or batch is not None):
        raise ConfigError("checkpointId and batchId are for batch writes", hint="A stream numbers its own batches")
    if checkpoint is not None and batch is not None:
        raise ConfigError("checkpointId and batchId exclude each other", hint="Give the one that names your batch")
    return WriteOptions(
        where=log_address(given),
        writer=check_name("writer", writer),
        unique_keys=_flag(given, "uniqueKeys"),
        take_over=_flag(given, "takeOver"),
        take_over_from=given.get("takeoverfrom") or None,
        query_id=given.get("queryid") or None,
        checkpoint_id=checkpoint,
        batch_id=batch,
        checkpoint_location=given.get("checkpointlocation", ""),
        is_stream=streaming,
    )


def storage_text(value: object) -> str:
    """A storage option as the text that `storage_options` reads back: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _storage_value(name: str, text: str) -> object:
    """Text that starts like a JSON object or list, or is true or false, is JSON; all else is text, numbers too."""
    if not text.startswith(("{", "[")) and text not in ("true", "false"):
        return text
    try:
        parsed: object = json.loads(text)
    except ValueError:
        raise ConfigError(f"the option storage.{name} is not JSON", hint="Check its brackets and quotes") from None
    return parsed


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _below(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix)}


def _refuse_unknown(given: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
    names = {name.lower() for name in known}
    unknown = sorted(name for name in given if name not in names and not name.startswith((_KAFKA, _STORAGE)))
    if unknown:
        listed = ", ".join(name for name in known if name not in _SPARK)
        raise ConfigError(
            f"unknown option {', '.join(unknown)} for a {what}",
            hint=f"Known are {listed}, kafka.* and storage.*",
        )


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"the option {name} is {text!r}", hint="Give true or false")
    return text == "true"


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal():
        raise ConfigError(f"the option {name} is {text!r}", hint="Give a whole number, 0 or more")
    return int(text)


def _key_groups(text: str) -> tuple[int, ...]:
    """Numbers and half-open ranges: "0:16,40" are the groups 0 to 15 and 40. None at all is no way to say all."""
    found: set[int] = set()
    for part in _list(text):
        start, colon, end = part.partition(":")
        if not start.isdecimal() or (colon and not end.isdecimal()):
            raise ConfigError(f"the option keyGroups is {text!r}", hint="Give numbers and ranges, such as 0:16,40")
        groups = range(int(start), int(end)) if colon else [int(start)]
        if not groups:
            raise ConfigError(
                f"the option keyGroups has an empty range: {part}", hint="The end of a range is exclusive"
            )
        found.update(groups)
    if not found:
        raise ConfigError("the option keyGroups is empty", hint="Leave it out for all key groups")
    return tuple(sorted(found))


def _at(given: Mapping[str, str]) -> At | None:
    position, checkpoint = _number(given, "atPosition"), _number(given, "atCheckpoint")
    writer = given.get("atwriter")
    if (writer is None) != (checkpoint is None) or (position is not None and writer is not None):
        raise ConfigError(
            "the options that choose the state contradict each other",
            hint="Give atPosition, or atWriter together with atCheckpoint, or none of them",
        )
    if writer is not None and checkpoint is not None:
        return AtCheckpoint(writer, checkpoint)
    return None if position is None else AtPosition(position)
