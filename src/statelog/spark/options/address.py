"""A log's name and where it is, as options say it. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from statelog.errors import ConfigError
from statelog.schemas.names import check_name
from statelog.spark.options.parsing import KAFKA, STORAGE, below, listed, lowered
from statelog.storage import Where
from statelog.storage.store.url import option_text, option_value

__all__ = ["LogAddress", "address_options", "log_address"]

_MISSING_HINT = (
    "Name the log: .option('log', 'flights'). Of a table in its catalog Spark hands over no OPTIONS: "
    "use CREATE TEMPORARY VIEW, or SELECT ... FROM t WITH (log = 'flights', ...)"
)


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
    kafka = below(given, KAFKA)
    if "bootstrap.servers" not in kafka:
        raise ConfigError("the option kafka.bootstrap.servers is missing", hint="Name at least one broker as host:port")
    storage = {one: option_value(one, text, origin="the options") for one, text in below(given, STORAGE).items()}
    unsafe = listed(given.get("allowunsafe", ""))
    where = Where(kafka, given["root"], storage_options=storage, allow_unsafe=unsafe)
    return LogAddress(check_name("log", name), where)


def address_options(log: str, where: Where) -> dict[str, str]:
    """The options that say where the log is, as `log_address` reads them. Raises ConfigError for ports: tasks in other
    processes have no use for them.
    """
    if not isinstance(where.root, str):
        raise ConfigError("Spark's tasks need the root as a URL", hint='Where(kafka, "s3://bucket/logs")')
    return {
        "log": log,
        "root": where.root,
        "allowUnsafe": ",".join(where.allow_unsafe),
        **{f"{KAFKA}{name}": value for name, value in where.kafka_settings().items()},
        **{f"{STORAGE}{name}": option_text(value) for name, value in where.storage_options.items()},
    }
