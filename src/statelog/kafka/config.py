"""The settings of the Kafka client: the user's for the connection, and those that statelog owns.

This module owns `ClientConfig` and the full librdkafka settings of each kind of client. It connects to nothing, and
reads only files in which a setting says that a secret is.

Settings pass through by librdkafka's own names. Others are refused by name, with the reason. librdkafka refuses a name
that it does not know when the first client is made, with the same ConfigError.

Invariants:
- No user setting can weaken a guarantee of the log, or turn off transport security. None can run code in this process,
  unless it names a token function.
- No secret is ever part of a repr, a message or a fact.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from statelog.errors import ConfigError
from statelog.kafka.token import TokenFunction, name_of, token_by_name
from statelog.schemas.names import whole_in
from statelog.secrets import MASK, check_secrets, mask_text, read_secrets

MAX_MESSAGE_BYTES = 16 << 20
"""The largest record that a client sends, framing included; topics allow the same."""

TOKEN = "token"  # noqa: S105 - the name of a setting
"""The one setting of statelog: the name of the token function."""
_SECRET_NAME = re.compile(r"password|secret|token|pem|key|jaas|oauthbearer\.config", re.IGNORECASE)

_REFUSED = {
    "plugin.library.paths": "it loads code into this process",
    "sasl.kerberos.kinit.cmd": "it runs a shell command",
    "ssl.engine.location": "it loads code into this process",
    "ssl.engine.id": "it loads code into this process",
    "enable.sasl.oauthbearer.unsecure.jwt": "it accepts unsigned tokens",
    "debug": "protocol traces can contain credentials and state",
    "enable.metrics.push": "statelog sends no telemetry",
    **dict.fromkeys((
        "acks", "request.required.acks", "enable.idempotence", "enable.gapless.guarantee", "retries",
        "message.send.max.retries", "max.in.flight", "max.in.flight.requests.per.connection", "partitioner",
        "queuing.strategy", "delivery.report.only.error", "auto.offset.reset", "isolation.level", "check.crcs",
        "enable.auto.commit", "auto.commit.enable", "auto.commit.interval.ms", "enable.auto.offset.store",
        "enable.partition.eof", "allow.auto.create.topics", "offset.store.method", "offset.store.path",
        "group.protocol", "consume.callback.max.messages",
    ), "statelog sets it, because the guarantees of the log rely on it"),
    **dict.fromkeys((
        "group.id", "group.instance.id", "transactional.id", "transaction.timeout.ms", "partition.assignment.strategy",
    ), "statelog names its own groups and transactions"),
    **dict.fromkeys((
        "message.max.bytes", "max.message.bytes", "receive.message.max.bytes", "message.copy.max.bytes",
    ), "statelog sets it to fit the size of its chunks"),
}  # fmt: skip
_REFUSED_PREFIXES = {
    "test.mock.": "it silently replaces the brokers and their security",
    "log.": "protocol traces can contain credentials and state",
    "log_": "logging belongs to Python's logging, logger 'statelog.kafka'",
}
_REFUSED_VALUES = {
    ("enable.ssl.certificate.verification", "false"): "anybody could pose as the broker",
    ("ssl.endpoint.identification.algorithm", "none"): "anybody with any certificate could pose as the broker",
}
_SHELL_SAFE = re.compile(r"[A-Za-z0-9._/@:+-]*")
_EXPANDED = frozenset({"sasl.kerberos.principal", "sasl.kerberos.keytab"})
"""Settings that the client puts into a shell command."""
_IN_FILES = frozenset({
    "sasl.username", "sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.certificate.pem", "ssl.keystore.password",
    "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.pem", "sasl.oauthbearer.assertion.private.key.passphrase",
})  # fmt: skip
"""Settings whose value may be in a file: no rule checks it."""
_CALLBACK = re.compile(r"(^|[._])(cb|callback)$|^(on_|logger$|opaque$)")

_EVERY = {
    "allow.auto.create.topics": "false",
    "enable.metrics.push": "false",
    "socket.nagle.disable": "true",
    "client.id": "statelog",
    "log_level": "5",  # A closing client logs to stderr, past any logger, at level 6.
}
_PRODUCER = {
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": "0",
    "compression.type": "lz4",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
    # From queueing on: a slow link needs minutes for all records in flight. Callers have shorter limits of their own.
    "message.timeout.ms": "300000",
    # A missing topic counts as missing after this time, not after half a minute.
    "topic.metadata.propagation.max.ms": "10000",
    "queue.buffering.max.kbytes": str(256 << 10),
}
_TRANSACTION_MS = 60_000
"""After this time the brokers abort the transaction of a process that stands still: until then readers wait for it."""
_OUTPUT = {
    # Where Java's clients put a key, too.
    "partitioner": "murmur2_random",
    # Another try, in another transaction, finds a new leader sooner than the client does.
    "message.timeout.ms": "30000",
    # A topic was looked up when a message was given to the log: it may only have been deleted since.
    "topic.metadata.propagation.max.ms": "3000",
    # Else it forgets the coordinator of its transaction when it has lost every broker for a moment, and waits for ever:
    # a new client begins with the bootstrap servers again.
    "metadata.recovery.strategy": "none",
}
_MEMBER = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "check.crcs": "true",
    # The pause of a partition with a full queue. By default it is a second, in which a quick loop empties the queue.
    "fetch.queue.backoff.ms": "100",
}
_CONSUMER = {
    **_MEMBER,
    "isolation.level": "read_uncommitted",
    "group.protocol": "classic",
    # A fetch that waits at the end of the log delays the next read.
    "fetch.wait.max.ms": "10",
    "fetch.message.max.bytes": str(2 << 20),
    "fetch.max.bytes": str(64 << 20),
    "receive.message.max.bytes": str(100 << 20),
    "queued.max.messages.kbytes": str(64 << 10),
    "fetch.queue.backoff.ms": "5",
}
_FOLLOWING_WAIT_MS = 20_000
"""How long the fetch of a follower waits at the broker: an idle topic costs one request in that time."""
_SPARING = {"fetch.message.max.bytes": str(64 << 10)}
"""Small enough for single records: a broker returns the first batch whole, of any size."""
_ADMIN = {
    # Requests go to the controller of the last metadata. If that broker is dead, a client that only connects on demand
    # retries a thousand times a second, on all of a core, and learns of another one too late.
    "enable.sparse.connections": "false",
}
_READERS = "statelog-reader"
_PRODUCER_TUNING = (
    "compression.", "linger.ms", "queue.buffering.", "batch.", "message.timeout.ms", "delivery.timeout.ms",
    "request.timeout.ms", "sticky.partitioning.", "topic.metadata.propagation.",
)  # fmt: skip
_CONSUMER_TUNING = (
    "fetch.", "queued.", "max.partition.fetch.bytes", "session.", "heartbeat.", "max.poll.", "client.rack",
)  # fmt: skip
_IN_CLEAR = {"plain": "password", "oauthbearer": "token"}
"""The secret that these mechanisms send as plain text."""
_MECHANISM = ("sasl.mechanism", "sasl.mechanisms")
_REQUEST_TIMEOUT_S = 10.0
_TIMEOUTS = ("message.timeout.ms", "delivery.timeout.ms")
_MIN_TIMEOUT_MS, _MAX_TIMEOUT_MS = 1_000, 900_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClientConfig:
    """Validated settings of the connection to one cluster. Made by `client_config` only.

    settings  librdkafka's names and values as the user gave them, with `bootstrap.servers`
    token     the token function, by name if it has one; None for another login
    read      the secrets that clients got from files: messages of older clients hide older ones, too
    """

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    token: TokenFunction | str | None = None
    read: set[str] = field(default_factory=set[str], compare=False)

    def masked(self) -> dict[str, str]:
        """Return the settings with every secret replaced by asterisks: safe to print and to log."""
        token = {} if self.token is None else {TOKEN: name_of(self.token)}
        shown = {name: MASK if _holds_secret(name) else mask_text(value) for name, value in self.settings.items()}
        return {**shown, **token}

    def __repr__(self) -> str:
        return f"ClientConfig({self.masked()!r})"

    def redact(self, text: str) -> str:
        """Return a text, for example a client's message, without secrets of these settings and URL credentials."""
        given = (value for name, value in self.settings.items() if _holds_secret(name))
        # The longest first: one may be a prefix of another.
        for secret in sorted(filter(None, (*given, *tuple(self.read))), key=len, reverse=True):
            text = text.replace(secret, MASK)
        return mask_text(text)

    def opened(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return a client's properties with the secrets from files. Raises ConfigError for a file without one."""
        opened = read_secrets(properties, secret_of)
        self.read.update(value for name, value in opened.items() if name not in properties and is_secret_setting(name))
        return opened

    @property
    def request_timeout_s(self) -> float:
        """The seconds that brokers have to answer a request: the user's `socket.timeout.ms`, or 10."""
        given = whole_in(self.settings.get("socket.timeout.ms", "").strip())
        return _REQUEST_TIMEOUT_S if given is None else given / 1000


def client_config(settings: Mapping[str, str], token: TokenFunction | str | None = None) -> ClientConfig:
    """Validate the user's librdkafka settings, and the token function: `token`, or the one that a setting names.

    Raises ConfigError that names the setting and the reason.
    """
    given = {name: value for name, value in settings.items() if name != TOKEN}
    if TOKEN in settings and token not in (None, settings[TOKEN]):
        raise ConfigError("there are two token functions", hint=f"Remove the setting {TOKEN}, or kafka_token")
    token = settings.get(TOKEN) if token is None else token
    return _validated(given) if token is None else _with_token(given, token_by_name(token))


def _with_token(settings: Mapping[str, str], token: TokenFunction | str) -> ClientConfig:
    """Validate settings with a token function; the default is TLS."""
    mechanisms = {name: settings[name] for name in _MECHANISM if name in settings} or {_MECHANISM[0]: "OAUTHBEARER"}
    config = _validated({"security.protocol": "SASL_SSL", **settings, **mechanisms})
    others = [name for name, value in mechanisms.items() if value.strip().upper() != "OAUTHBEARER"]
    others += [name for name in settings if name == "security.protocol" and "SASL" not in settings[name].upper()]
    others += [name for name in settings if name.startswith("sasl.oauthbearer.")]
    if others:
        what = f"Kafka setting {others[0]} belongs to another login than a token function"
        raise ConfigError(what, hint=f"Remove {others[0]}, or the token", setting=others[0])
    return replace(config, token=token)


def _validated(settings: Mapping[str, str]) -> ClientConfig:
    servers = settings.get("bootstrap.servers", "") or settings.get("metadata.broker.list", "")
    if not isinstance(cast("object", servers), str):
        raise ConfigError("bootstrap.servers is not text", hint='Write "broker-1:9092,broker-2:9092"')
    if not servers.strip():
        more = "; librdkafka's names have dots, not underscores" if "bootstrap_servers" in settings else ""
        raise ConfigError("bootstrap.servers is missing", hint=f"Name at least one broker as host:port{more}")
    if "metadata.broker.list" in settings:
        raise _refused("metadata.broker.list", "its other name, bootstrap.servers, is the only one that is read")
    for name, value in settings.items():
        _check_setting(name, value)
    check_secrets(settings, secret_of)
    return ClientConfig(bootstrap_servers=mask_text(servers.strip()), settings=dict(settings))


def check_password_in_clear(config: ClientConfig) -> None:
    """Raise ConfigError if these settings send a password or a token as plain text over a network."""
    settings = {name: value.strip().lower() for name, value in config.settings.items()}
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", ""))
    if settings.get("security.protocol") != "sasl_plaintext" or mechanism not in _IN_CLEAR:
        return
    hosts = [server.strip().rpartition("://")[2].rpartition(":")[0] for server in config.bootstrap_servers.split(",")]
    remote = [host for host in hosts if not is_loopback(host)]
    if remote:
        what = f"the mechanism {mechanism.upper()} would send the {_IN_CLEAR[mechanism]} as it is over the network"
        hint = "Use security.protocol SASL_SSL or a SCRAM mechanism; the waiver is called cleartext"
        raise ConfigError(what, hint=hint, host=remote[0])


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches this host."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def producer_properties(config: ClientConfig) -> dict[str, str]:
    """Return all librdkafka settings of a producer: idempotent, acknowledged by all replicas, bounded queue."""
    properties = _merged(config, _PRODUCER, without=_CONSUMER_TUNING)
    # The two names are aliases, of which librdkafka uses the last: keep one.
    alias = properties.pop("delivery.timeout.ms", None)
    return properties if alias is None else {**properties, "message.timeout.ms": alias}


def output_properties(config: ClientConfig, transactional_id: str) -> dict[str, str]:
    """Return all librdkafka settings of a producer of records for any topics, in transactions if it has an id."""
    properties = {**producer_properties(config), **_OUTPUT}
    if not transactional_id:
        return properties
    given_ms = whole_in(properties.get("socket.timeout.ms", "").strip())
    if given_ms is not None and given_ms > _TRANSACTION_MS:  # librdkafka refuses a request that outlasts a transaction.
        properties["socket.timeout.ms"] = str(_TRANSACTION_MS)
    return {**properties, "transactional.id": transactional_id, "transaction.timeout.ms": str(_TRANSACTION_MS)}


def consumer_properties(config: ClientConfig, *, is_sparing: bool = False) -> dict[str, str]:
    """Return all librdkafka settings of a consumer that never resets, never commits and checks every record. One that
    `is_sparing` fetches little behind the wanted records.

    librdkafka requires a group; a reader only assigns, so no group of this name is created.
    """
    own = {**_CONSUMER, **_SPARING} if is_sparing else _CONSUMER
    return {**_merged(config, own, without=_PRODUCER_TUNING), "group.id": _READERS}


def following_properties(config: ClientConfig) -> dict[str, str]:
    """Return all librdkafka settings of a consumer that follows one partition, and whose fetch waits at the broker."""
    given_ms = whole_in(config.settings.get("socket.timeout.ms", "").strip())
    wait_ms = _FOLLOWING_WAIT_MS if given_ms is None else min(_FOLLOWING_WAIT_MS, given_ms // 2)  # Below the time-out.
    return {**consumer_properties(config), "fetch.wait.max.ms": str(wait_ms)}


def member_properties(config: ClientConfig) -> dict[str, str]:
    """Return the librdkafka settings of a group's member, without the group's own: no automatic commit, no reset."""
    return _merged(config, _MEMBER, without=_PRODUCER_TUNING)


def admin_properties(config: ClientConfig) -> dict[str, str]:
    """Return all librdkafka settings of an admin client: the connection, without producing or consuming."""
    return _merged(config, _ADMIN, without=(*_PRODUCER_TUNING, *_CONSUMER_TUNING))


def secret_of(name: str) -> str:
    """Return the setting whose value is in a file that this one names: `sasl.password` for `sasl.password.file`.

    Return an empty text for other names.
    """
    secret = name.removesuffix(".file")
    return secret if secret != name and secret in _IN_FILES else ""


def is_secret_setting(name: str) -> bool:
    """Return whether a setting of this name may hold a secret."""
    return _SECRET_NAME.search(name) is not None


def _holds_secret(name: str) -> bool:
    return is_secret_setting(name) and not secret_of(name)


def _merged(config: ClientConfig, own: Mapping[str, str], *, without: tuple[str, ...]) -> dict[str, str]:
    """Merge the user's settings over our own. Validation has refused user settings that must not win."""
    users = {name: value for name, value in config.settings.items() if not name.startswith(without)}
    return {**_EVERY, **own, **users}


def _check_setting(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise ConfigError(
            f"Kafka setting {name!r} is not text", hint="Write every setting as text, such as 'true' or '30000'"
        )
    reason = _reason_against(name.strip(), value.strip().lower())
    if reason is not None:
        raise _refused(name, reason)
    if name != name.strip() or not name:
        raise ConfigError(f"Kafka setting {name!r} has blanks around its name", setting=name)
    # librdkafka reads 0 as 'wait indefinitely', so a delivery timeout has to be finite.
    is_finite = _MIN_TIMEOUT_MS <= (whole_in(value) or 0) <= _MAX_TIMEOUT_MS
    if name in _TIMEOUTS and not is_finite:
        what = f"{name} is not a whole number of milliseconds between {_MIN_TIMEOUT_MS} and {_MAX_TIMEOUT_MS}"
        hint = "Use 300000, which suits most clusters: it outlasts a change of leader, and a slow link"
        raise ConfigError(what, hint=hint, setting=name)


def _reason_against(name: str, value: str) -> str | None:
    if name in _REFUSED:
        return _REFUSED[name]
    if _CALLBACK.search(name):
        return "callbacks belong to statelog"
    for prefix, reason in _REFUSED_PREFIXES.items():
        if name.startswith(prefix):
            return reason
    if name == "ssl.providers" and ("/" in value or "\\" in value):
        return "a path loads code into this process, and only a name is one of OpenSSL's own"
    if name in _EXPANDED and not _SHELL_SAFE.fullmatch(value):
        return "the client puts it into a shell command, and it has a character that a shell may interpret"
    return _REFUSED_VALUES.get((name, "false" if value in {"0", "f", "no"} else value))


def _refused(name: str, reason: str) -> ConfigError:
    """Make the error without the value, which may be a secret under a misspelt name."""
    return ConfigError(f"Kafka setting {name} is refused: {reason}", hint=f"Remove {name}", setting=name)
