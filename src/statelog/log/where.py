"""`Where`: where logs are, as a value: the brokers, the root, and the checks waived for this cluster.

It connects to nothing. `opened_ports` makes a log's two ports from its settings, unless the caller brings them. The
maker of a port closes it.

Invariants: equal values mean equal connections, so they are the keys of client caches; a repr holds no secret.
"""

import os
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, cast

from statelog.environment import current_environment
from statelog.errors import ConfigError, Misuse
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import TOKEN, ClientConfig, check_password_in_clear, client_config
from statelog.kafka.port import Kafka, OffsetRange, Reader, Record
from statelog.kafka.token import TokenFunction, check_travels
from statelog.log.config import DEFAULT_REPLICATION_FACTOR, Config, merge, named_layers
from statelog.log.measured import MeasuredKafka, MeasuredStore
from statelog.schemas.names import check_kind, check_log_name, is_log_name
from statelog.schemas.topic_policy import Waiver, parse_waivers
from statelog.store.fsspec import open_store
from statelog.store.port import Store
from statelog.store.url import check_scheme, mask_options, mask_url

KafkaSource = Kafka | Mapping[str, str]
"""A port, or librdkafka's settings for one."""
StoreSource = Store | Callable[[str], Store] | str | PathLike[str]
"""A port, a function that makes the one for a log's name, or the root as URL or path."""
_EXAMPLE = 'Where({"bootstrap.servers": "127.0.0.1:9092"}, root)'
ONE_BROKER = ("replication", "min-insync")
"""The checks that one broker alone cannot pass."""


@dataclass(frozen=True, repr=False)
class Where:
    """Where logs are: the second argument of everything that opens one by its name. It connects to nothing.

        where = Where({"bootstrap.servers": "kafka:9092"}, "s3://bucket/logs")
        with statelog.open("visits", where) as log:
            ...

    kafka               librdkafka's settings: `bootstrap.servers` and those of TLS or SASL; None if there is no Kafka
                        any more, for `recover_snapshot`
    root                the path or URL below which the directories of logs lie
    storage_options     options for fsspec
    allow_unsafe        the checks that are waived for this cluster
    replication_factor  of the topics of logs that are made here
    kafka_token         for a cluster that takes tokens: a function, or its name "package.module:function", that returns
                        a token and its expiry in seconds since 1970 (docs/kafka.md)

    It is hashable. It pickles unless it has a port instead of settings, or a `kafka_token` that other processes cannot
    import. Raises ConfigError for a setting or a waiver that is refused.
    """

    kafka: KafkaSource | None
    root: StoreSource
    _: KW_ONLY
    storage_options: Mapping[str, object] = field(default_factory=dict[str, object])
    allow_unsafe: Collection[str] = ()
    replication_factor: int = DEFAULT_REPLICATION_FACTOR
    kafka_token: TokenFunction | str | None = None

    def __post_init__(self) -> None:
        kafka = cast("object", self.kafka)
        if kafka is not None and not isinstance(kafka, Mapping) and not hasattr(kafka, "describe_topic"):
            what = f"kafka is a mapping of settings, or a Kafka port, and not {type(kafka).__name__}"
            raise ConfigError(what, hint=_EXAMPLE)
        if isinstance(self.kafka, Mapping):
            config = client_config(self.kafka, self.kafka_token)
            object.__setattr__(self, "kafka", MappingProxyType(config.settings))
            object.__setattr__(self, "kafka_token", config.token)
        elif self.kafka_token is not None:
            raise ConfigError("kafka_token goes with settings of the Kafka client", hint="A port logs in by itself")
        parse_waivers(self.allow_unsafe)
        object.__setattr__(self, "root", _checked_root(self.root))
        check_kind("storage_options", self.storage_options, Mapping, example='{"key": "...", "secret": "..."}')
        for name in self.storage_options:
            check_kind("a name in storage_options", name, str, example='{"key": "...", "secret": "..."}')
        object.__setattr__(self, "storage_options", MappingProxyType(_own(self.storage_options)))
        object.__setattr__(self, "allow_unsafe", tuple(self.allow_unsafe))

    @staticmethod
    def local(root: str | PathLike[str], bootstrap: str = "127.0.0.1:9092") -> "Where":
        """Return the broker of `statelog dev start` and a local directory. Waives the checks that need more brokers."""
        return Where({"bootstrap.servers": bootstrap}, root, allow_unsafe=ONE_BROKER, replication_factor=1)

    @staticmethod
    def from_env(environment: Mapping[str, str] | None = None) -> "Where":
        """Read STATELOG_* variables, over the file that STATELOG_CONFIG names, as the command line does (docs/cli.md),
        but no file that is only found. Raises NotFound for a missing file, ConfigError.
        """
        given = os.environ if environment is None else environment
        check_kind("environment", given, Mapping, example='{"STATELOG_BOOTSTRAP": "kafka:9092", ...}, or nothing')
        return configured_where(merge(named_layers(given)))

    def client_config(self) -> ClientConfig:
        """Return the settings for a Kafka client of this process. Raises ConfigError without settings."""
        if not isinstance(self.kafka, Mapping):
            raise ConfigError("settings of the Kafka client are needed here", hint=_EXAMPLE)
        return client_config(self.kafka, self.kafka_token)

    def kafka_settings(self) -> dict[str, str]:
        """Return the settings of the Kafka client as text, for other processes; `token` names the token function.

        Raises ConfigError without settings, and for a `kafka_token` that other processes cannot import.
        """
        settings, token = self.client_config().settings, check_travels(self.kafka_token)
        return dict(settings) if token is None else {**settings, TOKEN: token}

    def __hash__(self) -> int:
        kafka = frozenset(self.kafka.items()) if isinstance(self.kafka, Mapping) else self.kafka
        options = frozenset(self.storage_options)
        return hash((kafka, self.root, options, self.allow_unsafe, self.replication_factor, self.kafka_token))

    def __reduce__(self) -> tuple[Any, ...]:
        kafka = dict(self.kafka) if isinstance(self.kafka, Mapping) else self.kafka
        made = partial(
            type(self),
            storage_options=dict(self.storage_options),
            allow_unsafe=self.allow_unsafe,
            replication_factor=self.replication_factor,
            kafka_token=check_travels(self.kafka_token),
        )
        return made, (kafka, self.root)

    def __repr__(self) -> str:
        kafka = self.client_config().masked() if isinstance(self.kafka, Mapping) else self.kafka
        root = mask_url(self.root) if isinstance(self.root, str) else self.root
        more = f"storage_options={mask_options(self.storage_options)}, allow_unsafe={self.allow_unsafe}"
        return f"Where({kafka!r}, {root!r}, {more}, replication_factor={self.replication_factor})"


def check_where(where: object) -> None:
    """Raise ConfigError unless it is a `Where`: for an address or a root alone, for example."""
    check_kind("where", where, Where, example=_EXAMPLE)


def _own(options: object) -> Any:
    """Return a copy of options, nested ones included; sessions and other objects are shared."""
    if isinstance(options, Mapping):
        return {name: _own(value) for name, value in cast("Mapping[str, object]", options).items()}
    return list(map(_own, cast("list[object]", options))) if isinstance(options, list) else options


def _checked_root(root: object) -> StoreSource:
    if isinstance(root, PathLike):
        root = fspath(cast("PathLike[str]", root))
    if not isinstance(root, str | Store) and not callable(root):
        hint = 'Where(kafka, "/path"), or Where(kafka, "s3://bucket/logs")'
        raise ConfigError(f"root is of type {type(root).__name__}, and not a path or a URL", hint=hint)
    if isinstance(root, str):
        check_scheme(root)
    return cast("StoreSource", root)


def configured_where(config: Config) -> Where:
    """Make the `Where` of a configuration. Raises ConfigError if it lacks the brokers or the root."""
    return Where(
        config.kafka_settings(),
        config.root_url(),
        storage_options=config.storage,
        allow_unsafe=config.allow_unsafe,
        replication_factor=config.replication_factor,
    )


# ---- the ports


class Ports(NamedTuple):
    """A log's two ports, and the checks that its caller waives."""

    kafka: Kafka
    store: Store
    waived: frozenset[Waiver]


@contextmanager
def opened_ports(name: str, where: Where, *, keeps: bool = True) -> Generator[Ports]:
    """Yield the ports of a log, made from settings unless the caller brings them. A client that was made here is closed
    if the block raises, or unless a log `keeps` it. Raises ConfigError, InvalidName.
    """
    check_where(where)
    waived = parse_waivers(where.allow_unsafe)
    check_log_name(name)
    if where.kafka is None:
        raise ConfigError("this Where names no Kafka", hint="Give one: only recover_snapshot works without")
    client = _client(where.client_config(), waived) if isinstance(where.kafka, Mapping) else where.kafka
    is_kept = client is where.kafka
    try:
        yield Ports(_watched_kafka(client, name), opened_store(name, where), waived)
        is_kept = is_kept or keeps
    finally:
        if not is_kept:
            client.close()


@contextmanager
def one_client(where: Where) -> Generator[Where]:
    """Yield the same `Where` with one client for all its logs, which is closed at the end. Raises ConfigError."""
    if not isinstance(where.kafka, Mapping):
        yield where
        return
    client = _client(where.client_config(), parse_waivers(where.allow_unsafe))
    try:
        yield replace(where, kafka=client.lend(), kafka_token=None)
    finally:
        client.close()


def opened_store(name: str, where: Where, *, reported_as: str | None = None) -> Store:
    """Open the port of a log's directory alone. Observers get its requests as those of the log `reported_as`, if given.

    Raises ConfigError, InvalidName.
    """
    check_log_name(name)
    check_where(where)
    if isinstance(where.root, Store):
        store = where.root
    elif callable(where.root):
        store = where.root(name)
    else:
        store = open_store(fspath(where.root), name, where.storage_options)
    observers = current_environment().observers
    if not observers or isinstance(store, MeasuredStore):
        return store
    return MeasuredStore(store, name if reported_as is None else reported_as, observers)


def _watched_kafka(kafka: Kafka, log: str) -> Kafka:
    observers = current_environment().observers
    if isinstance(kafka, MeasuredKafka):
        return kafka.of_log(log)
    return MeasuredKafka(kafka, log, observers) if observers else kafka


def log_names(where: Where) -> list[str]:
    """List the names of possible logs below the root; only opening one shows. Raises StoreUnavailable, ConfigError."""
    return sorted(name for name in opened_store("any", where, reported_as="").siblings() if is_log_name(name))


def _client(config: ClientConfig, waived: frozenset[Waiver]) -> ConfluentKafka:
    if Waiver.CLEARTEXT not in waived:
        check_password_in_clear(config)
    return ConfluentKafka(config, keeps_consumers=True)


# ---- no Kafka


def no_kafka() -> Kafka:
    """Make the port of a log without Kafka: every request but an empty read raises Misuse."""
    return cast("Kafka", _NoKafka())


class _NoKafka:
    def reader(self, _topic: str) -> Reader:
        return self

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Generator[Record]:
        if any(end > start for start, end in ranges.values()):
            _refuse("read", ranges, stall_timeout_s)
        yield from ()

    def close(self) -> None:
        pass

    def __getattr__(self, request: str) -> Callable[..., NoReturn]:
        return partial(_refuse, request)


def _refuse(request: str, *asked: object, **_: object) -> NoReturn:
    raise Misuse(
        "this log was opened without Kafka, to read a snapshot alone",
        asked=" ".join(map(str, (request, *asked))),
        hint="Open it with Log.open to follow it, to write, or to recover a newer state",
    )
