"""Configuration: defaults < TOML file < environment (STATELOG_*) < flags, merged into one frozen value.

Layers are pure values; `config_layers` and `named_layers` read their files.

A directory may be someone else's: a clone, a download, a shared disk. If a file in it named the brokers, they would
receive the password in the user's environment.

Invariants:
- An unknown key is refused. The error names file, key and the nearest known key.
- Messages and reprs show a value of the tables `kafka` and `storage` only if its name says that it is no secret.
- A file that was found, not named, must be the user's own, and no secret from another source goes to an address in it.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from statelog.errors import ConfigError, NotFound
from statelog.kafka.config import TOKEN, client_config, is_secret_setting
from statelog.kafka.config import secret_of as setting_of
from statelog.log.config_keys import FREE_TABLES, KEYS, LOGS, MATERIALIZER, Key, setting_text
from statelog.secrets import merge_secrets
from statelog.store.url import is_secret_option, mask_options, mask_url, option_value
from statelog.store.url import secret_of as option_of

DEFAULT_REPLICATION_FACTOR = 3
_PREFIX = "STATELOG_"
_FOREIGN = re.compile(
    # Variables that Kubernetes and Compose set for services and ports, and those of this project's other programs.
    r"(?:.+_)?SERVICE_(?:HOST|PORT(?:_.+)?)"
    r"|(?:.+_)?PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?"
    r"|LOG|IMAGE|(?:TEST|DEMO|BENCH)_.+"
)
_SERVERS = "bootstrap.servers"
_NAMED = "STATELOG_CONFIG"
_OF_MACHINE = "sasl.oauthbearer.metadata.authentication.type"
"""Makes Kafka's client log in with a token of the machine's own."""
_HOSTS = ("account_host", "endpoint_url")
"""Options that name the receiver of Azure's or Google's token, which may come from the machine."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConfigLayer:
    """The settings of one origin: values by key path, and the free tables."""

    origin: str
    values: Mapping[str, object] = field(default_factory=dict[str, object])
    kafka: Mapping[str, str] = field(default_factory=dict[str, str])
    storage: Mapping[str, object] = field(default_factory=dict[str, object])
    logs: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """The configuration of one run. `kafka` holds librdkafka settings without the address, `storage` fsspec options.
    `materializer` holds the settings that were set for all logs, `logs` those for one log, by its name.
    """

    bootstrap: str | None = None
    root: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict[str, str])
    storage: Mapping[str, object] = field(default_factory=dict[str, object])
    allow_unsafe: tuple[str, ...] = ()
    replication_factor: int = DEFAULT_REPLICATION_FACTOR
    materializer: Mapping[str, object] = field(default_factory=dict[str, object])
    logs: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    origins: tuple[str, ...] = ()

    def of_log(self, name: str) -> "Config":
        """Return the configuration for this log, whose own settings override those of all logs."""
        return replace(self, materializer={**self.materializer, **self.logs.get(name, {})})

    def kafka_settings(self) -> dict[str, str]:
        """Return all settings of the Kafka client. Raises ConfigError without a broker, and for a refused setting."""
        address = _required(self.bootstrap, "bootstrap", "the Kafka brokers as host:port", self.origins)
        settings = {**self.kafka, _SERVERS: address}
        client_config(settings)
        return settings

    def root_url(self) -> str:
        """Return the root URL. Raises ConfigError if there is none."""
        return _required(self.root, "root", "the URL below which the directories of logs lie", self.origins)

    def masked(self) -> dict[str, object]:
        """Return it for people, every secret replaced by asterisks."""
        shown = client_config({_SERVERS: "masked:0", **self.kafka}).masked()
        return {
            "bootstrap": mask_url(self.bootstrap or ""),
            "root": mask_url(self.root or ""),
            "kafka": {name: value for name, value in shown.items() if name != _SERVERS},
            "storage": mask_options(self.storage),
            "allow_unsafe": list(self.allow_unsafe),
            "replication_factor": self.replication_factor,
            MATERIALIZER: dict(self.materializer),
            LOGS: {name: dict(settings) for name, settings in self.logs.items()},
        }

    def __repr__(self) -> str:
        return f"Config({self.masked()!r})"


def file_layer(text: str, path: str) -> ConfigLayer:
    """Parse a TOML file into a layer. Raises ConfigError naming file, key and the nearest known key."""
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # TOML's, or Python's for numbers with thousands of digits.
        raise ConfigError("the configuration file is not TOML", file=path, problem=str(error)) from None
    tables = {name: _table(name, document.pop(name, {}), path) for name in (*FREE_TABLES, MATERIALIZER, LOGS)}
    of_all = {f"{MATERIALIZER}.{name}": value for name, value in tables[MATERIALIZER].items()}
    values = dict(_known(name, value, path) for name, value in {**document, **of_all}.items())
    kafka = dict(_flattened(tables["kafka"], "", path))
    logs = {name: _of_log(name, value, path) for name, value in tables[LOGS].items()}
    return _checked(ConfigLayer(origin=path, values=values, kafka=kafka, storage=tables["storage"], logs=logs))


def environment_layer(environment: Mapping[str, str]) -> ConfigLayer:
    """Read STATELOG_* variables: `STATELOG_ROOT`, `STATELOG_KAFKA__SASL_PASSWORD`, `STATELOG_STORAGE__KEY`.

    Unknown ones raise ConfigError with the likely name, except those that orchestrators and other programs set.
    """
    by_variable = {key.variable: key for key in KEYS.values()}
    values: dict[str, object] = {}
    kafka: dict[str, str] = {}
    storage: dict[str, object] = {}
    for variable, text in environment.items():
        if not text or variable == _NAMED:
            continue  # Empty means not set, as in container files.
        if variable.startswith(f"{_PREFIX}KAFKA__"):
            kafka[variable.removeprefix(f"{_PREFIX}KAFKA__").lower().replace("_", ".")] = text
        elif variable.startswith(f"{_PREFIX}STORAGE__"):
            name = variable.removeprefix(f"{_PREFIX}STORAGE__").lower()
            storage[name] = option_value(name, text, origin=variable)
        elif variable in by_variable:
            key = by_variable[variable]
            values[key.path] = _read(key, text, variable)
        elif variable.startswith(_PREFIX) and not _FOREIGN.fullmatch(name := variable.removeprefix(_PREFIX)):
            raise ConfigError(f"unknown variable {variable}", key=variable, hint=_likely_variable(name, by_variable))
    return _checked(ConfigLayer(origin="the environment", values=values, kafka=kafka, storage=storage))


def flag_layer(values: Mapping[str, object], kafka: Iterable[str], storage: Iterable[str]) -> ConfigLayer:
    """Read flags: `values` by key path (None: not given), `--kafka NAME=VALUE` and `--storage NAME=VALUE`."""
    given = {path: _read(KEYS[path], value, KEYS[path].flag) for path, value in values.items() if value is not None}
    settings = dict(_pair("--kafka", text) for text in kafka)
    said = dict(_pair("--storage", text) for text in storage)
    options = {name: option_value(name, text, origin="--storage") for name, text in said.items()}
    return _checked(ConfigLayer(origin="the flags", values=given, kafka=settings, storage=options))


def merge(layers: Iterable[ConfigLayer]) -> Config:
    """Merge layers into a configuration; later ones override earlier ones. Tables are merged key by key."""
    values: dict[str, object] = {}
    kafka: dict[str, str] = {}
    storage: dict[str, object] = {}
    logs: dict[str, Mapping[str, object]] = {}
    origins: list[str] = []
    for layer in layers:
        logs |= layer.logs
        values.update(layer.values)
        kafka = merge_secrets(kafka, layer.kafka, setting_of)
        storage = merge_secrets(storage, layer.storage, option_of)
        origins.append(layer.origin)
    prefix = f"{MATERIALIZER}."
    return Config(
        bootstrap=cast("str | None", values.get("bootstrap")),
        root=cast("str | None", values.get("root")),
        kafka=kafka,
        storage=storage,
        allow_unsafe=cast("tuple[str, ...]", values.get("allow_unsafe", ())),
        replication_factor=cast("int", values.get("replication_factor", DEFAULT_REPLICATION_FACTOR)),
        materializer={path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)},
        logs=logs,
        origins=tuple(origins),
    )


# ---- reading one layer


def _of_log(log: str, value: object, file: str) -> dict[str, object]:
    """Return the materializer's settings for one log."""
    given = _table(f"{LOGS}.{log}", value, file)
    return {name: _known(f"{MATERIALIZER}.{name}", one, file)[1] for name, one in given.items()}


def _known(path: str, value: object, file: str) -> tuple[str, object]:
    if path not in KEYS:
        known = [*KEYS, *FREE_TABLES, MATERIALIZER, LOGS]
        near = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
        hint = f"The nearest known key is {near[0]!r}" if near else f"Known keys: {', '.join(known)}"
        raise ConfigError(f"the configuration has no key {path!r}", file=file, key=path, hint=hint)
    return path, _read(KEYS[path], value, file)


def _read(key: Key, value: object, origin: str) -> object:
    try:
        return key.read(value)
    except ConfigError as error:
        shown = mask_url(value) if isinstance(value, str) else str(value)
        raise ConfigError(
            f"{key.path} is invalid: {error.message}", origin=origin, key=key.path, value=shown, hint=error.hint
        ) from None


def _table(name: str, value: object, file: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is a table", file=file, key=name, hint=f"Write [{name}] and its keys below it")
    return cast("dict[str, object]", value)


def _flattened(table: Mapping[str, object], prefix: str, file: str) -> Generator[tuple[str, str]]:
    """Yield Kafka's dotted names, whether they were quoted or became TOML tables."""
    for name, value in table.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flattened(cast("dict[str, object]", value), f"{dotted}.", file)
            continue
        try:
            yield dotted, setting_text(value)
        except ConfigError as error:
            raise ConfigError(f"the Kafka setting {dotted}: {error.message}", file=file, key=dotted) from None


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{flag} is given without NAME=VALUE", flag=flag)
    return name, value


def _checked(layer: ConfigLayer) -> ConfigLayer:
    """Return the layer with one name for the brokers. Raises ConfigError if its two names differ."""
    address, kafka = layer.values.get("bootstrap"), dict(layer.kafka)
    other = kafka.pop(_SERVERS, address)
    if address not in (None, other):
        problem, hint = "bootstrap and kafka.bootstrap.servers name different brokers", "Keep one of them"
        raise ConfigError(problem, origin=layer.origin, hint=hint)
    return layer if other == address else replace(layer, values={**layer.values, "bootstrap": other}, kafka=kafka)


def _required(value: str | None, name: str, what: str, origins: Iterable[str]) -> str:
    if value is None:
        hint = (
            f"Set {name} in statelog.toml, {_PREFIX}{name.upper()} or --{name};"
            " `statelog dev start` prints both for a development broker"
        )
        raise ConfigError(f"{name} is missing: {what}", looked_in=", ".join(origins) or "nowhere", hint=hint)
    return value


def _likely_variable(name: str, known: Iterable[str]) -> str:
    for table in FREE_TABLES:
        if name.startswith(f"{table.upper()}_"):
            rest = name.removeprefix(f"{table.upper()}_")
            return f"Write two underscores between {table.upper()} and the setting: {_PREFIX}{table.upper()}__{rest}"
    names = [one.removeprefix(_PREFIX) for one in known]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"The nearest known one is {_PREFIX}{near[0]}" if near else "docs/cli.md lists the variables; unset this one"


# ---- the sources of a run


_LOCAL_FILE = Path("statelog.toml")


def config_layers(file: str | None, environment: Mapping[str, str], flags: ConfigLayer) -> list[ConfigLayer]:
    """Read the layers of a run, weakest first. Raises NotFound for a named file that does not exist, ConfigError.

    A file that was found in the working directory, not named, must be the user's own, and receives no secret.
    """
    named = file or environment.get(_NAMED)
    found = Path(named) if named else _default_file(environment)
    stronger = [environment_layer(environment), flags]
    if found is None:
        return stronger
    is_unnamed = not named and found == _LOCAL_FILE
    layer = file_layer(read_text(found, "configuration file", is_own=is_unnamed), str(found))
    if is_unnamed:
        check_found_file(layer, stronger)
    return [layer, *stronger]


def named_layers(environment: Mapping[str, str]) -> list[ConfigLayer]:
    """Read the file that the environment names, if any, and the environment over it. Raises NotFound, ConfigError."""
    named = environment.get(_NAMED)
    files = [file_layer(read_text(Path(named), "configuration file"), named)] if named else []
    return [*files, environment_layer(environment)]


def _default_file(environment: Mapping[str, str]) -> Path | None:
    candidates = [_LOCAL_FILE]
    with suppress(RuntimeError):  # A user may have no home.
        home = Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
        candidates.append(home / "statelog" / "statelog.toml")
    return next((path for path in candidates if path.is_file()), None)


def read_text(path: Path, what: str, *, is_own: bool = False) -> str:
    """Read a file that the user named, or that must be the user's own (`is_own`). Raises NotFound; ConfigError if it
    is not, or cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:  # Windows editors begin a file with a byte order mark.
            if is_own:  # Checked on the open file: its name may soon be another's.
                there = os.fstat(file.fileno())
                check_owner(str(path), there.st_uid, there.st_mode, os.getuid())
            return file.read()
    except FileNotFoundError:
        raise NotFound(f"the {what} does not exist", file=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the {what} cannot be read", file=str(path), problem=problem) from None


# ---- a file that was found, not named


def check_owner(path: str, owner: int, mode: int, user: int) -> None:
    """Raise ConfigError for a file that neither this user nor root owns, or that everybody may write."""
    if owner not in (user, 0):
        raise _refused("it belongs to another user", path)
    if mode & 0o002:
        raise _refused("every user may write to it", path)


def check_found_file(file: ConfigLayer, stronger: Sequence[ConfigLayer]) -> None:
    """Raise ConfigError if secrets of `stronger` layers would go where `file` says, or if it names code to run."""
    kafka = _left(file.kafka, [layer.kafka for layer in stronger])
    storage = _left(file.storage, [layer.storage for layer in stronger])
    if TOKEN in kafka:
        raise _refused(f"its kafka.{TOKEN} names code that would run", file.origin)
    sent_to = [f"kafka.{name}" for name in kafka if name == _OF_MACHINE]
    root = str(merge([file, *stronger]).root).lower()
    if not (root.startswith("s3") or any(is_secret_option(name) for name in file.storage)):  # S3's requests are signed.
        sent_to += [f"storage.{name}" for name in storage if name in _HOSTS]
    if sent_to:
        raise _refused(f"its {sent_to[0]} would send a token of this machine, or of yours, away", file.origin)
    read = [f"kafka.{name}" for name in kafka if name.endswith(".file")]
    read += [f"storage.{name}" for name in storage if option_of(name)]
    if read:
        raise _refused(f"its {read[0]} names a file whose content would be sent", file.origin)
    named = _left(file.values, [layer.values for layer in stronger])
    secret_settings = [f"kafka.{name}" for layer in stronger for name in layer.kafka if is_secret_setting(name)]
    secret_options = [f"storage.{name}" for layer in stronger for name in layer.storage if is_secret_option(name)]
    for sent, settings, address in ((secret_settings, kafka, "bootstrap"), (secret_options, storage, "root")):
        places = [*settings, *(name for name in named if name == address)]
        if sent and places:
            to = ", ".join(places)
            raise _refused(
                f"{sent[0]} comes from elsewhere, and would be sent to the address in the file's {to}", file.origin
            )


def _left(given: Mapping[str, object], stronger: Sequence[Mapping[str, object]]) -> list[str]:
    return [name for name in given if not any(name in layer for layer in stronger)]


def _refused(why: str, path: str) -> ConfigError:
    return ConfigError(
        f"the configuration file of this directory is not used: {why}",
        file=path,
        hint=f"If you trust it, name it: --config {path} or STATELOG_CONFIG={path}; else change directory",
    )
