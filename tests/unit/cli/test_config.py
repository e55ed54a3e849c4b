"""The configuration merges its layers in order, refuses unknown and contradictory settings, and shows no secret."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from statelog.cli.log import init as init_command
from statelog.cli.materialize import command as materialize_command
from statelog.cli.program import program
from statelog.cli.session import Session, materializer_settings
from statelog.errors import ConfigError, NotFound, StatelogError
from statelog.log import Where
from statelog.log.config import (
    Config,
    ConfigLayer,
    check_owner,
    config_layers,
    environment_layer,
    file_layer,
    flag_layer,
    merge,
)
from statelog.log.config_keys import KEYS, duration_s, size_bytes
from statelog.materializer import MaterializerSettings
from statelog.secrets import read_secret
from statelog.testing.broker import cache_directory
from tests.support.rigs.log import TwinLog
from tests.support.rigs.shell import commands_open

CANARY = "canary-4711"
FILE = """
bootstrap = "file:1"
root = "/file"
allow_unsafe = ["replication"]
[kafka]
security.protocol = "SASL_SSL"
"sasl.username" = "me"
socket.keepalive.enable = true
[storage]
client_kwargs = { region_name = "eu" }
[materializer]
interval_s = "5min"
budget_bytes = "64MiB"
keep = 3
"""


def made(text: str = "", environment: dict[str, str] | None = None, flags: ConfigLayer | None = None) -> Config:
    """Return the configuration of a file, an environment and flags."""
    return merge(
        [file_layer(text, "statelog.toml"), environment_layer(environment or {}), flags or ConfigLayer(origin="")]
    )


def test_later_layers_win_key_by_key() -> None:
    """Flags override the environment, and the environment the file. Tables are merged by key."""
    environment = {"STATELOG_BOOTSTRAP": "env:1", "STATELOG_KAFKA__SASL_USERNAME": "env", "STATELOG_INTERVAL_S": "30"}
    flags = flag_layer({"bootstrap": "flag:1", "root": None}, ["sasl.username=flag"], ["key=1"])
    config = made(FILE, environment, flags)

    assert (config.bootstrap, config.root) == ("flag:1", "/file")
    assert config.kafka == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "flag",
        "socket.keepalive.enable": "true",
    }
    assert config.storage == {"client_kwargs": {"region_name": "eu"}, "key": "1"}
    assert config.materializer == {"interval_s": 30.0, "budget_bytes": 64 << 20, "keep": 3}


def test_without_anything_the_defaults_hold() -> None:
    """The defaults are three replicas and no waiver. The error for a missing broker says where to name one."""
    config = merge([])

    assert (config.replication_factor, config.allow_unsafe) == (3, ())
    with pytest.raises(ConfigError, match="bootstrap is missing") as caught:
        config.kafka_settings()
    assert "STATELOG_BOOTSTRAP" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("bootstrp = 'x'", "bootstrp", "bootstrap"),
        ("[materializer]\ninterval = 3", "materializer.interval", "materializer.interval_s"),
        ("[kafak]\nx = 1", "kafak", "kafka"),
        ("interval_s = 3", "interval_s", "materializer.interval_s"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(text: str, key: str, nearest: str) -> None:
    """The error names the file, the key as written, and the key that was probably meant."""
    with pytest.raises(ConfigError) as caught:
        made(text)
    assert caught.value.facts == {"file": "statelog.toml", "key": key}
    assert repr(nearest) in caught.value.hint


def test_a_misspelt_variable_is_refused_and_foreign_ones_are_not() -> None:
    """An unknown variable is an error that names the likely one. Other programs' variables are ignored."""
    for variable, likely in (
        ("STATELOG_BOOTSTRAPP", "STATELOG_BOOTSTRAP"),
        ("STATELOG_KAFKA_SASL_PASSWORD", "STATELOG_KAFKA__SASL_PASSWORD"),
        ("STATELOG_STORAGE_SECRET", "STATELOG_STORAGE__SECRET"),
        ("STATELOG_FANOUTS", "STATELOG_FANOUT"),
        ("STATELOG_MATERIALIZER_INTERVAL_S", "STATELOG_INTERVAL_S"),
        ("STATELOG_QWXYZ", "docs/cli.md"),
    ):
        with pytest.raises(ConfigError, match=variable) as caught:
            environment_layer({variable: CANARY})
        assert likely in caught.value.hint
        assert CANARY not in str(caught.value)
    foreign = {
        "STATELOG_KAFKA_SERVICE_PORT_CLIENT": "9092",
        "STATELOG_KAFKA_PORT": "29092",
        "STATELOG_PORT_9092_TCP_ADDR": "10.0.0.1",
        "STATELOG_IMAGE": "x",
        "STATELOG_SERVICE_HOST": "10.0.0.1",
        "STATELOG_PORT": "tcp://x",
        "STATELOG_TEST_BROKER": "x",
        "HOME": "/",
    }
    assert environment_layer(foreign).values == {}


def test_an_empty_variable_is_not_set() -> None:
    """An empty environment variable does not hide the file's value."""
    assert made("root = '/file'", {"STATELOG_ROOT": ""}).root == "/file"


def test_contradictions_are_refused_by_name() -> None:
    """One origin must not name two brokers. Two origins may, and the stronger one wins."""
    with pytest.raises(ConfigError, match=r"bootstrap and kafka\.bootstrap\.servers"):
        made("bootstrap = 'a:1'\n[kafka]\n'bootstrap.servers' = 'b:1'")
    flags = flag_layer({}, ["bootstrap.servers=b:1"], [])
    assert made("bootstrap = 'a:1'", flags=flags).bootstrap == "b:1"


@pytest.mark.parametrize(
    "text",
    [
        "bootstrap = 3",
        "kafka = 3",
        "[kafka]\nx = [1]",
        "allow_unsafe = 3",
        "[materializer]\nkeep = -1",
        "broken",
        "root = ''",
    ],
)
def test_a_value_of_a_wrong_type_is_refused(text: str) -> None:
    """Values of wrong types, and text that is not TOML, are configuration errors."""
    with pytest.raises(ConfigError):
        made(text)


@pytest.mark.parametrize("name", [key.path for key in KEYS.values()])
def test_every_key_has_one_variable(name: str) -> None:
    """Each key can be set by the environment variable that has its name in capitals."""
    values = {"allow_unsafe": "min-insync", "materializer.engine": "spark"}
    key = KEYS[name]
    assert environment_layer({key.variable: values.get(name, "7")}).values.keys() == {name}
    assert sum(other.variable == key.variable for other in KEYS.values()) == 1


def test_no_secret_is_shown() -> None:
    """Secrets of the tables and credentials in URLs are masked in repr and in the listing for people."""
    config = merge(
        [
            flag_layer(
                {"bootstrap": "a:1", "root": "s3://bucket"},
                [f"sasl.password={CANARY}"],
                [f"secret={CANARY}", f'client_kwargs={{"aws_secret_access_key": "{CANARY}"}}'],
            )
        ]
    )
    assert config.kafka_settings()["sasl.password"] == CANARY
    assert CANARY not in repr(config)
    assert "***" in repr(config)


@pytest.mark.parametrize(
    ("kafka", "storage"),
    [([f"={CANARY}"], []), ([CANARY], []), ([], [f"x={{{CANARY}"]), ([], [CANARY])],
)
def test_no_error_shows_a_value_of_the_free_tables(kafka: list[str], storage: list[str]) -> None:
    """An error never repeats a value, even of a flag that cannot be read: it may be a misplaced secret."""
    with pytest.raises(ConfigError) as caught:
        flag_layer({}, kafka, storage)
    assert CANARY not in str(caught.value)


def test_what_is_said_of_one_log_is_stronger() -> None:
    """A log's own settings override the general ones, also as flags, and do not affect other logs."""
    text = "[materializer]\nkeep = 5\ninterval_s = 9\n[logs.orders]\ninterval_s = '1min'\nengine = 'spark'"
    config = made(text, flags=flag_layer({"materializer.interval_s": "20"}, [], []))
    orders = config.of_log("orders")
    assert orders.materializer == {"keep": 5, "interval_s": 60.0, "engine": "spark"}
    assert materializer_settings(orders).interval_s == 60
    assert materializer_settings(config.of_log("visits")).interval_s == 20


@pytest.mark.parametrize(
    ("asked", "typed"),
    [
        ("statelog.cli.log.held", ("truncate", "log")),
        ("statelog.cli.describe.describe_log", ("describe", "log")),
        ("statelog.cli.describe.describe_log", ("watch", "log")),
        ("statelog.cli.describe.describe_log", ("list",)),
        ("statelog.cli.doctor.examine", ("doctor", "log")),
        ("statelog.cli.copy.copy_log", ("copy", "source", "log")),
        ("statelog.web.views.PageViews", ("serve",)),
    ],
)
def test_whoever_judges_a_log_does_it_by_its_own_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str, typed: tuple[str, ...]
) -> None:
    """Every command that judges a log uses the settings of that log, as its rounds do."""
    found: list[int] = []

    def judge(*arguments: object, **options: object) -> None:
        for one in (*arguments, *options.values()):
            settings: object = cast("Callable[[str], object]", one)("log") if isinstance(one, partial) else one
            found.extend([settings.retention.keep] if isinstance(settings, MaterializerSettings) else [])
        raise NotFound("that is enough")

    def there(_: Session) -> Where:
        return twin.where()

    def names(_: Where) -> list[str]:
        return ["log"]

    twin = TwinLog()
    twin.write({b"k": b"v"})
    file = tmp_path / "there.toml"
    file.write_text("bootstrap = 'here:1'\nroot = 's3://here/logs'\n[materializer]\nkeep = 3\n[logs.log]\nkeep = 5\n")
    commands_open(twin, monkeypatch)
    monkeypatch.setattr(Session, "where", there)
    monkeypatch.setattr("statelog.cli.describe.log_names", names)
    monkeypatch.setattr(asked, judge)
    CliRunner().invoke(program, [*typed, "--config", str(file)])
    assert found == [5]


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("logs = 1", "logs", "below it"),
        ("[logs]\norders = 1", "logs.orders", "below it"),
        ("[logs.orders]\nintervall_s = 1", "materializer.intervall_s", "materializer.interval_s"),
    ],
)
def test_what_is_no_setting_of_a_log_is_refused(text: str, key: str, nearest: str) -> None:
    """An unknown setting of a log is refused by name, with the list of known ones."""
    with pytest.raises(ConfigError) as caught:
        made(text)
    assert caught.value.facts["key"] == key
    assert nearest in caught.value.hint


def test_settings_of_the_materializer_follow() -> None:
    """Configured settings reach the materializer. The default alarm age always exceeds the interval."""
    settings = materializer_settings(made("[materializer]\ninterval_s = '2h'\nkeep = 5\nmin_age_s = 0"))

    assert (settings.interval_s, settings.retention.keep, settings.retention.min_age_s) == (7200.0, 5, 0.0)
    assert settings.alarm_age_s > settings.interval_s
    with pytest.raises(ConfigError, match="alarm_age_s"):
        materializer_settings(made("[materializer]\ninterval_s = '2h'\nalarm_age_s = '1h'"))


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """A byte order mark is skipped at the beginning of a configuration file and of a secret file."""
    (tmp_path / "a.toml").write_text('root = "/r"\n', encoding="utf-8-sig")
    assert merge(config_layers(str(tmp_path / "a.toml"), {}, ConfigLayer(origin="x"))).root == "/r"
    (tmp_path / "secret").write_text("s\r\n", encoding="utf-8-sig")
    assert read_secret("sasl.password.file", str(tmp_path / "secret")) == "s"


def test_the_file_is_the_named_one_or_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named file must exist. The fallbacks are ./statelog.toml, then the user's own file, then none."""
    monkeypatch.chdir(tmp_path)
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    none = ConfigLayer(origin="")
    assert merge(config_layers(None, home, none)).root is None

    (tmp_path / "home" / "statelog").mkdir(parents=True)
    (tmp_path / "home" / "statelog" / "statelog.toml").write_text("root = '/user'")
    assert merge(config_layers(None, home, none)).root == "/user"
    (tmp_path / "statelog.toml").write_text("root = '/here'")
    assert merge(config_layers(None, home, none)).root == "/here"
    (tmp_path / "named.toml").write_text("root = '/named'")
    assert merge(config_layers(None, {**home, "STATELOG_CONFIG": "named.toml"}, none)).root == "/named"
    with pytest.raises(NotFound, match="configuration file"):
        config_layers(str(tmp_path / "missing.toml"), home, none)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("500ms", 0.5), ("5min", 300), ("5m", 300), ("1.5h", 5400), ("2d", 172_800), (7, 7)],
)
def test_durations_have_units(text: object, seconds: float) -> None:
    """A number is seconds. A text has a unit or is seconds, too."""
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 512 << 20), ("64 KiB", 64 << 10), ("1GB", 10**9), ("1.5kib", 1536), ("9", 9), (9, 9)]
)
def test_sizes_have_units(text: object, size: int) -> None:
    """A number is bytes. A text has a unit or is bytes, too."""
    assert size_bytes(text) == size


_HUGE = "9" * 307
_NO_QUANTITIES = ["", "x", "-1s", "5 parsecs", "1e3s", None, True, float("nan"), "0.3B"]


@pytest.mark.parametrize("text", [*_NO_QUANTITIES, _HUGE * 2, 10**400, float("inf"), f"{_HUGE}d", f"{_HUGE}TiB"])
def test_other_quantities_are_refused(text: object) -> None:
    """A quantity that is too large, or is no number with a known unit, is neither a duration nor a size."""
    for read in (duration_s, size_bytes):
        if (read, text) != (duration_s, "0.3B"):
            with pytest.raises(StatelogError):
                read(text)


@pytest.mark.parametrize("command", [init_command, materialize_command], ids=lambda command: str(command.name))
def test_an_error_names_the_flag_that_was_typed(command: click.Command) -> None:
    """An unreadable value of a flag is refused with the flag's own name."""
    named = {one.name.removeprefix("key_of_").replace("__", "."): one for one in command.params if one.name}
    keys = set(named) & set(KEYS)
    assert len(keys) > 2
    for path in keys:
        with pytest.raises(ConfigError) as caught:
            flag_layer({path: object()}, [], [])
        assert caught.value.facts["origin"] in named[path].opts


def test_whoever_has_no_home_needs_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without a home, as in a container, needs none. A path below the home is refused."""

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert len(config_layers(None, {}, flag_layer({}, [], []))) == 2
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(ConfigError, match="not known"):
        flag_layer({"materializer.scratch": "~/scratch"}, [], [])
    with pytest.raises(ConfigError, match="no home"):
        cache_directory()


SECRETS = {"STATELOG_KAFKA__SASL_PASSWORD": CANARY}


@pytest.mark.parametrize(
    ("text", "environment", "flags"),
    [
        ("bootstrap = 'b:1'", SECRETS, []),
        ("[kafka]\nsecurity.protocol = 'PLAINTEXT'", {**SECRETS, "STATELOG_BOOTSTRAP": "mine:1"}, []),
        ("bootstrap = 'b:1'", {}, [f"ssl.key.password={CANARY}"]),
        ("root = 's3://b'", {"STATELOG_STORAGE__SECRET": CANARY}, []),
        (
            "[storage]\nendpoint_url = 'http://b'",
            {"STATELOG_STORAGE__SECRET": CANARY, "STATELOG_ROOT": "s3://mine"},
            [],
        ),
    ],
)
def test_a_found_file_gets_no_secret_of_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, environment: dict[str, str], flags: list[str]
) -> None:
    """A found file may not redirect a secret of the environment or of a flag, unless the user named the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "statelog.toml").write_text(text)
    given = {**environment, "XDG_CONFIG_HOME": str(tmp_path)}
    layer = flag_layer({}, flags, [])
    with pytest.raises(ConfigError, match="comes from elsewhere") as caught:
        config_layers(None, given, layer)
    assert "--config statelog.toml" in caught.value.hint
    assert CANARY not in str(caught.value)
    assert len(config_layers("statelog.toml", given, layer)) == 3
    assert len(config_layers(None, {**given, "STATELOG_CONFIG": "statelog.toml"}, layer)) == 3


def test_a_found_file_may_say_what_a_stronger_place_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A found file may set an address if it holds the secret, if a stronger layer sets it, or without any secret."""
    monkeypatch.chdir(tmp_path)
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    for text, environment in (
        ("bootstrap = 'b:1'\nroot = '/r'", {}),
        ("bootstrap = 'b:1'\n[materializer]\nkeep = 3", {**SECRETS, "STATELOG_BOOTSTRAP": "mine:1"}),
        (f"bootstrap = 'b:1'\n[kafka]\nsasl.password = '{CANARY}'", {}),
        ("root = '/r'", SECRETS),
    ):
        (tmp_path / "statelog.toml").write_text(text)
        assert len(config_layers(None, {**home, **environment}, ConfigLayer(origin=""))) == 3


def test_a_found_file_names_no_code_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A found file must not name code to import. A file that the user named may."""
    monkeypatch.chdir(tmp_path)
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    (tmp_path / "statelog.toml").write_text("bootstrap = 'b:1'\n[kafka]\ntoken = 'evil.module:token'\n")
    with pytest.raises(ConfigError, match=r"kafka\.token names code") as caught:
        config_layers(None, home, ConfigLayer(origin=""))
    assert "--config statelog.toml" in caught.value.hint
    assert (
        merge(config_layers("statelog.toml", home, ConfigLayer(origin=""))).kafka_settings()["token"]
        == "evil.module:token"
    )
    mine = {**home, "STATELOG_KAFKA__TOKEN": "mine:token", "STATELOG_BOOTSTRAP": "mine:1"}
    assert merge(config_layers(None, mine, ConfigLayer(origin=""))).kafka == {"token": "mine:token"}


def test_a_function_for_tokens_is_named_everywhere() -> None:
    """A file, a variable or an option can name the token function. Its name is listed, since it is no secret."""
    for config in (
        made("[kafka]\ntoken = 'a.b:c'"),
        made("", {"STATELOG_KAFKA__TOKEN": "a.b:c"}),
        made("", {}, flag_layer({}, ["token=a.b:c"], [])),
    ):
        assert config.masked()["kafka"] == {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "token": "a.b:c",
        }
    with pytest.raises(ConfigError, match="names no function"):
        made("bootstrap = 'b:1'\n[kafka]\ntoken = 'a.b'").kafka_settings()


@pytest.mark.parametrize(
    ("text", "root", "is_refused"),
    [
        ("[kafka]\nsasl.oauthbearer.metadata.authentication.type = 'azure_imds'", "/r", True),
        ("[storage]\naccount_host = 'b'", "abfs://c@a.dfs.core.windows.net/r", True),
        ("[storage]\nendpoint_url = 'http://b'", "gs://b", True),
        ("[storage]\nendpoint_url = 'http://b'\ntoken = 'own'", "gs://b", False),
        ("[storage]\nendpoint_url = 'http://b'", "s3://b", False),
        ("[storage]\nproject = 'mine'", "gs://b", False),
    ],
)
def test_a_found_file_gets_no_token_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, root: str, is_refused: bool
) -> None:
    """A found file gets no token that Azure's or Google's clients would find on the machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "statelog.toml").write_text(f"bootstrap = 'b:1'\nroot = '{root}'\n{text}")
    layers = partial(config_layers, None, {"XDG_CONFIG_HOME": str(tmp_path)}, flag_layer({}, [], []))
    if is_refused:
        with pytest.raises(ConfigError, match="would send a token of this machine"):
            layers()
    else:
        assert merge(layers()).root == root
    named = {"STATELOG_CONFIG": "statelog.toml"}
    assert merge(config_layers(None, named, flag_layer({}, [], []))).root == root


@pytest.mark.parametrize(("owner", "mode", "why"), [(1001, 0o600, "another user"), (1000, 0o666, "every user")])
def test_a_found_file_is_the_users_own(owner: int, mode: int, why: str) -> None:
    """A file that another user owns, or that everybody may write, is not used. Root's file is."""
    with pytest.raises(ConfigError, match=why):
        check_owner("statelog.toml", owner, mode, 1000)
    check_owner("statelog.toml", 0, 0o644, 1000)


def test_what_is_read_is_what_was_found_to_be_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was checked is the file that is read, even if the name is replaced in between."""
    monkeypatch.chdir(tmp_path)
    for name, owner in (("statelog.toml", "mine"), ("theirs.toml", "theirs")):
        Path(name).write_text(f"bootstrap = '{owner}:1'")
    judge = check_owner

    def judge_late(*facts: Any) -> None:
        judge(*facts)
        Path("theirs.toml").replace("statelog.toml")

    monkeypatch.setattr("statelog.log.config.check_owner", judge_late)
    layers = config_layers(None, {"XDG_CONFIG_HOME": str(tmp_path)}, flag_layer({}, [], []))
    assert merge(layers).bootstrap == "mine:1"


def test_the_defaults_in_the_help_are_the_defaults() -> None:
    """The defaults in the help texts are the actual defaults."""
    named = [(one.name or "", one.help or "") for one in materialize_command.params if isinstance(one, click.Option)]
    told = {name: found[1] for name, text in named if (found := re.search(r"Default (\w+)", text))}
    assert len(told) > 8
    for name, text in told.items():
        key = name.removeprefix("key_of_").replace("__", ".")
        typed = made(flags=flag_layer({key: text}, [], []))
        assert materializer_settings(typed) == materializer_settings(made()), key
