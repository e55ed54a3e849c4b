"""`LogAddress`: a log by name, and how to reach it, as options say it. Pure.

Invariants: equal values mean equal connections, so they are the keys of client caches; a repr holds no secret.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from statelog.errors import ConfigError
from statelog.schemas.names import check_name
from statelog.spark.options.parsing import KAFKA, STORAGE, below, listed, lowered
from statelog.storage.kafka.config import client_config
from statelog.storage.store.url import mask_options, mask_url

__all__ = ["LogAddress", "address_options", "log_address"]

_MISSING_HINT = (
    "Name the log: .option('log', 'flights'). Of a table in its catalog Spark hands over no OPTIONS: "
    "use CREATE TEMPORARY VIEW, or SELECT ... FROM t WITH (log = 'flights', ...)"
)


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
        """The storage options with their types: see `address_options`."""
        return {name: _storage_value(name, text) for name, text in self.storage}


def log_address(options: Mapping[str, str]) -> LogAddress:
    """The part of the options that says where the log is. Raises ConfigError, InvalidName."""
    given = lowered(options)
    name = given.get("log") or given.get("path")
    if given.get("path", name) != name:
        raise ConfigError("the option log and the path name different logs", hint="Give one of them")
    if not name:
        raise ConfigError("the option log is missing", hint=_MISSING_HINT)
    if not given.get("root"):
        raise ConfigError("the option root is missing", hint="Name the URL below which the log's directory lies")
    kafka = below(given, KAFKA)
    if "bootstrap.servers" not in kafka:
        raise ConfigError("the option kafka.bootstrap.servers is missing", hint="Name at least one broker as host:port")
    client_config(kafka)
    return LogAddress(
        log=check_name("log", name),
        root=given["root"],
        kafka=tuple(sorted(kafka.items())),
        storage=tuple(sorted(below(given, STORAGE).items())),
        allow_unsafe=listed(given.get("allowunsafe", "")),
    )


def address_options(
    log: str,
    *,
    kafka: Mapping[str, str],
    root: str,
    storage_options: Mapping[str, object] | None,
    allow_unsafe: Collection[str],
) -> dict[str, str]:
    """The options that say where the log is, as `log_address` reads them, out of what functions for Python take."""
    return {
        "log": log,
        "root": root,
        "allowUnsafe": ",".join(allow_unsafe),
        **{f"{KAFKA}{name}": value for name, value in kafka.items()},
        **{f"{STORAGE}{name}": _storage_text(value) for name, value in (storage_options or {}).items()},
    }


def _storage_text(value: object) -> str:
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
