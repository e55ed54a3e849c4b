"""Parse the texts of options of `format("statelog")`: flags, numbers, lists, keys, and where the log is. Pure.

Spark lowers the case of names. An unknown option is refused with the list of known ones: a silently ignored option
would be a silently missing guarantee.
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
"""Prefixes of the options that are passed to Kafka's client, or to the store."""
_MISSING_HINT = (
    "Name the log: .option('log', 'flights'). Spark hands over no OPTIONS of a table in its catalog: use CREATE "
    "TEMPORARY VIEW, or SELECT ... FROM t WITH (log = 'flights', ...)"
)


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by lower-case names, as Spark passes them."""
    return {name.lower(): value for name, value in options.items()}


def _below(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the options whose names begin with a prefix, without it."""
    return {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix)}


def refuse_unknown(given: Mapping[str, str], known: Collection[str], what: str, *, own: Collection[str] = ()) -> None:
    """Raise ConfigError for an option that is neither known nor one of Spark's `own`; `what` is the use."""
    names = {name.lower() for name in (*known, *own)}
    unknown = sorted(name for name in given if name not in names and not name.startswith((_KAFKA, _STORAGE)))
    if unknown:
        hint = f"Use {', '.join(known)}, kafka.* and storage.*"
        if any(word in name for name in unknown for word in ("offsets", "timestamp", "subscribe", "dataloss")):
            hint = f"For streams and changes, the Kafka source's startingOffsets is startingPosition. {hint}"
        raise ConfigError(f"unknown option {', '.join(unknown)} for a {what}", hint=hint)


def listed(text: str) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def flag(given: Mapping[str, str], name: str) -> bool:
    """Parse a boolean; False if it is not given. Raises ConfigError."""
    text = given.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"the option {name} is {text!r}", hint="Give true or false")
    return text == "true"


def number(given: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    """Parse a whole number, at least `least`; None if it is not given. Raises ConfigError."""
    text = given.get(name.lower())
    if text is None:
        return None
    found = whole_in(text)
    if found is None or found < least:
        raise ConfigError(f"the option {name} is {text!r}", hint=f"Give a whole number, {least} or more")
    return found


def numbers(given: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    """Parse numbers and ranges with `read_ranges`; None if it is not given. Raises ConfigError."""
    text = given.get(name.lower())
    return None if text is None else read_ranges(text, f"the option {name}")


def key_texts(text: str) -> tuple[str, ...]:
    """Split keys: separated by commas, or a JSON list for keys with a comma. Raises ConfigError for an empty list."""
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
        raise ConfigError("the option keys is empty", hint="Omit it for all keys")
    return found


class LogAddress(NamedTuple):
    """The name and the location of a log."""

    log: str
    where: Where


def log_address(options: Mapping[str, str]) -> LogAddress:
    """Return the name and the location of the log from the options. Raises ConfigError, InvalidName."""
    given = lowered(options)
    name = given.get("log") or given.get("path")
    if given.get("path", name) != name:
        raise ConfigError("the option log and the path name different logs", hint="Give one of them")
    if not name:
        raise ConfigError("the option log is missing", hint=_MISSING_HINT)
    if not given.get("root"):
        raise ConfigError("the option root is missing", hint="Name the URL that contains the log's directory")
    kafka = _below(given, _KAFKA)
    if "bootstrap.servers" not in kafka:
        raise ConfigError("the option kafka.bootstrap.servers is missing", hint="Name at least one broker as host:port")
    storage = {one: option_value(one, text, origin="the options") for one, text in _below(given, _STORAGE).items()}
    unsafe = listed(given.get("allowunsafe", ""))
    where = Where(kafka, given["root"], storage_options=storage, allow_unsafe=unsafe)
    return LogAddress(check_name("log", name), where)


def address_options(log: str, where: Where) -> dict[str, str]:
    """Return the options with the location of the log, as `log_address` reads them.

    Raises ConfigError if `where` is no `Where`, or has ports, which tasks in other processes cannot use.
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
