"""The texts of options of `format("statelog")`, by names whose case Spark has dropped: flags, numbers, lists, keys, and
where the log is. Pure.

An unknown option is refused by name, with the known ones beside it, because an option that is silently ignored is a
guarantee that silently is not there.
"""

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple, cast

from statelog.errors import ConfigError
from statelog.log import Where
from statelog.log.where import check_where
from statelog.schemas.key_groups import read_ranges
from statelog.schemas.names import check_name, whole_in
from statelog.store.url import option_text, option_value

_KAFKA = "kafka."
_STORAGE = "storage."
"""What the names of options begin with that are handed on to Kafka's client, or to the store."""
_MISSING_HINT = (
    "Name the log: .option('log', 'flights'). Of a table in its catalog Spark hands over no OPTIONS: "
    "use CREATE TEMPORARY VIEW, or SELECT ... FROM t WITH (log = 'flights', ...)"
)


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """The options by lower-cased names, as Spark hands them over."""
    return {name.lower(): value for name, value in options.items()}


def _below(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The options whose names begin with a prefix, without it."""
    return {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix)}


def refuse_unknown(given: Mapping[str, str], known: Collection[str], what: str, *, own: Collection[str] = ()) -> None:
    """Raise ConfigError for an option that is neither known nor one of Spark's `own`; `what` is the use."""
    names = {name.lower() for name in (*known, *own)}
    unknown = sorted(name for name in given if name not in names and not name.startswith((_KAFKA, _STORAGE)))
    if unknown:
        hint = f"Known are {', '.join(known)}, kafka.* and storage.*"
        if any(word in name for name in unknown for word in ("offsets", "timestamp", "subscribe", "dataloss")):
            hint = (
                f"What Spark's Kafka source has as startingOffsets is startingPosition, for streams and changes. {hint}"
            )
        raise ConfigError(f"unknown option {', '.join(unknown)} for a {what}", hint=hint)


def listed(text: str) -> tuple[str, ...]:
    """The parts of a list that commas separate."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def flag(given: Mapping[str, str], name: str) -> bool:
    """True or false; false if it is not given. Raises ConfigError."""
    text = given.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"the option {name} is {text!r}", hint="Give true or false")
    return text == "true"


def number(given: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    """A whole number, at least `least`; None if it is not given. Raises ConfigError."""
    text = given.get(name.lower())
    if text is None:
        return None
    found = whole_in(text)
    if found is None or found < least:
        raise ConfigError(f"the option {name} is {text!r}", hint=f"Give a whole number, {least} or more")
    return found


def numbers(given: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    """Numbers and ranges, as `read_ranges` takes them. None if it is not given. Raises ConfigError."""
    text = given.get(name.lower())
    return None if text is None else read_ranges(text, f"the option {name}")


def key_texts(text: str) -> tuple[str, ...]:
    """Keys, as texts: separated by commas, or a JSON list, for keys that hold one. Raises ConfigError for none."""
    found = listed(text)
    if text.lstrip().startswith("["):
        try:
            parsed: object = json.loads(text)
        except ValueError:
            parsed = None
        keys = cast("list[object]", parsed) if isinstance(parsed, list) else [None]
        if not all(isinstance(key, str | int) and not isinstance(key, bool) for key in keys):
            raise ConfigError("the option keys is no JSON list of keys", hint='Give keys such as ["a", "b"], or a,b')
        found = tuple(str(key) for key in keys)
    if not found:
        raise ConfigError("the option keys is empty", hint="Leave it out for all keys")
    return found


class LogAddress(NamedTuple):
    """A log by name, and where it is."""

    log: str
    where: Where


def log_address(options: Mapping[str, str]) -> LogAddress:
    """The log that the options name, and where it is. Raises ConfigError, InvalidName."""
    given = lowered(options)
    name = given.get("log") or given.get("path")
    if given.get("path", name) != name:
        raise ConfigError("the option log and the path name different logs", hint="Give one of them")
    if not name:
        raise ConfigError("the option log is missing", hint=_MISSING_HINT)
    if not given.get("root"):
        raise ConfigError("the option root is missing", hint="Name the URL below which the log's directory lies")
    kafka = _below(given, _KAFKA)
    if "bootstrap.servers" not in kafka:
        raise ConfigError("the option kafka.bootstrap.servers is missing", hint="Name at least one broker as host:port")
    storage = {one: option_value(one, text, origin="the options") for one, text in _below(given, _STORAGE).items()}
    unsafe = listed(given.get("allowunsafe", ""))
    where = Where(kafka, given["root"], storage_options=storage, allow_unsafe=unsafe)
    return LogAddress(check_name("log", name), where)


def address_options(log: str, where: Where) -> dict[str, str]:
    """The options that say where the log is, as `log_address` reads them. Raises ConfigError for what is no `Where`,
    and for ports: tasks in other processes have no use for them.
    """
    check_where(where)
    if not isinstance(where.root, str):
        raise ConfigError("Spark's tasks need the root as a URL", hint='Where(kafka, "s3://bucket/logs")')
    return {
        "log": log,
        "root": where.root,
        "allowUnsafe": ",".join(where.allow_unsafe),
        **{f"{_KAFKA}{name}": value for name, value in where.kafka_settings().items()},
        **{f"{_STORAGE}{name}": option_text(value) for name, value in where.storage_options.items()},
    }
