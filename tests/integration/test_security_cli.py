"""The `statelog` command on a broker with TLS, passwords and ACLs, as processes.

A refused command ends at once with 2 and the reason, and no secret is in anything that commands print or write.

Secrets come in the documented ways: by the environment, and by a configuration file that is named. The log's first
commands and the daemon are started as a person would; the many others begin as forks with the program imported.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import TopicSpec
from statelog.operate.kafka_needs import Need
from statelog.schemas.topic_policy import TopicRole, topic_config
from tests.support.canary import CANARY, canary_in, files_with_canary
from tests.support.processes.starts import Command, Ended
from tests.support.rigs.shell import write_lines
from tests.support.services.s3_faulty import FaultyS3, Told, faulty_s3
from tests.support.services.secure_broker import (
    Right,
    SecureBroker,
    group,
    publishing,
    reading,
    rolling_up,
    topic,
    writing,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

_LOG, _LEDGER, _OTHER, _ROOT = "by-commands", "by-commands.ledger", "other", "s3://bucket/logs"
_SENDER = "statelog.statelog-doctor-"
_GIVEN, _USING = "given", ("DELETE", "READ", "WRITE", "DESCRIBE_CONFIGS")


def _doctoring(*operations: str) -> list[Right]:
    """Return these rights on the topics that a doctor makes, and those for a transaction."""
    rights = [*topic("statelog-doctor-", *operations), *group(_SENDER, "READ")]
    rights.append(Right(ResourceType.TRANSACTIONAL_ID, _SENDER, AclOperation["WRITE"]))
    return [right._replace(is_prefix=True) for right in rights]


_PATIENCE_MS = "280000"
"""The request time-out of every command here: a command that ends long before it did not run into it."""
_AT_ONCE_S = 150.0
_ROLES = {
    "maker": [
        *topic(_LOG, "CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS"),
        *topic(_LEDGER, "CREATE", "DELETE", "READ", "WRITE", "DESCRIBE_CONFIGS"),
    ],
    "writer": writing(_LOG),
    "materializer": [*rolling_up(_LOG), *publishing(_LOG)],
    "reader": reading(_LOG),
    "doctor": _doctoring("CREATE", *_USING),
    "tenant": [*topic(_GIVEN, *_USING), *topic(f"{_GIVEN}.ledger", *_USING)],
}


@dataclass(frozen=True, slots=True)
class Place:
    """A place for commands: a broker, a store, and a directory of their own for all that they write."""

    broker: SecureBroker
    s3: FaultyS3
    directory: Path

    def settings(self, user: str, **changed: str) -> dict[str, str]:
        """Return the variables of a user, secrets too; `changed` are settings of Kafka's client, `_` for `.`."""
        kafka = {**self.broker.client(user, **changed), "socket.timeout.ms": _PATIENCE_MS}
        storage = {**self.s3.options, "secret": f"{CANARY}store"}
        found = {f"STATELOG_KAFKA__{name.upper().replace('.', '_')}": value for name, value in kafka.items()}
        for name, value in storage.items():
            found[f"STATELOG_STORAGE__{name.upper()}"] = value if isinstance(value, str) else json.dumps(value)
        return found

    def start(self, settings: Mapping[str, str], *args: object) -> "subprocess.Popen[str]":
        """Start a command as a process of its own; return it."""
        return subprocess.Popen(
            [sys.executable, "-m", "statelog", *map(str, args)],
            env=self._environment(settings),
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def begin(self, settings: Mapping[str, str], *args: object) -> Command:
        """Start a command in a fork; return it."""
        return Command([str(arg) for arg in args], self._environment(settings), self.directory)

    def run(self, settings: Mapping[str, str], *args: object) -> Ended:
        """Run a command to its end."""
        return _end(self.begin(settings, *args))

    def done(self, user: str, *args: object) -> str:
        """Return the output of a command that must succeed."""
        ended = self.run(self.settings(user), *args)
        assert ended.code == 0, ended.printed
        return ended.printed

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("STATELOG_")},
            "STATELOG_ROOT": _ROOT,
            "STATELOG_REPLICATION_FACTOR": "1",
            "STATELOG_ALLOW_UNSAFE": "replication,min-insync",
            "XDG_CONFIG_HOME": str(self.directory),
            "TMPDIR": str(self.directory),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **settings,
        }


def _end(command: Command) -> Ended:
    """Return the end of a command, which must come at once, after any error."""
    ended = command.end(_AT_ONCE_S)
    assert not canary_in(ended.printed.encode()), ended.printed
    return ended


@pytest.fixture(scope="module")
def place(secure_node: SecureBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield a secured log with a commit, made by commands."""
    directory = tmp_path_factory.mktemp("secured-commands")
    broker = secure_node.serve({name: f"{CANARY}kafka{name}" for name in _ROLES})
    with faulty_s3() as s3:
        for user, rights in _ROLES.items():
            broker.grant(user, rights)
        made = Place(broker, s3, directory / "work")
        made.directory.mkdir()
        for user, *args in (
            ("maker", "init", _LOG, "--partitions", 2, "--key-type", "string"),
            ("writer", "append", _LOG, _rows(directory, 3)),
        ):
            with made.start(made.settings(str(user)), *args) as process:
                printed = "".join(process.communicate(timeout=_AT_ONCE_S))
            assert process.returncode == 0, printed
            assert not canary_in(printed.encode()), printed
        yield made


def _rows(directory: Path, count: int) -> Path:
    return write_lines(directory / f"rows{count}.jsonl", [{"key": f"k{n}", "value": "v"} for n in range(count)])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sasl_password": f"{CANARY}wrong"}, "Authentication failed"),
        ({"ssl_ca_location": "/etc/ssl/certs"}, "certificate"),
        ({"security_protocol": "PLAINTEXT"}, "speaks TLS"),
        ({"bootstrap_servers": "the plain listener"}, "SSL"),
    ],
    ids=["wrong password", "unknown authority", "plain client", "plain listener"],
)
def test_a_client_that_is_refused_ends_with_2_at_once(place: Place, settings: dict[str, str], reason: str) -> None:
    """A refused client ends any command with 2 at once, as text for people, and as JSON for programs."""
    if "bootstrap_servers" in settings:
        settings = {"bootstrap_servers": place.broker.plain}
    told = place.settings("reader", **settings)
    commands = (("describe", _LOG), ("materialize", _LOG), ("append", _LOG, _rows(place.directory.parent, 3)))
    for_programs = [place.begin(told, *args, "--json") for args in commands]
    for_people = place.begin(told, "recover", _LOG)
    for ended in map(_end, for_programs):
        assert ended.code == 2, ended.printed
        error = json.loads(ended.printed.splitlines()[-1])
        assert (error["error"], reason in error["message"]) == ("ConfigError", True), error
    ended = _end(for_people)
    assert ended.code == 2, ended.printed
    assert reason in ended.printed


@pytest.mark.parametrize(
    ("user", "args", "missing", "on"),
    [
        ("reader", ("append", _LOG, "rows"), "WRITE", _LOG),
        ("reader", ("materialize", _LOG, "--once"), "DELETE", _LOG),
        ("reader", ("materialize", _LOG, "--now"), "DELETE", _LOG),
        ("reader", ("accept-loss", _LOG, "--ledger", "--yes", "--reason", "r", "--operator", "o"), "WRITE", _LEDGER),
        ("reader", ("delete", _LOG, "--yes"), "DELETE", _LOG),
        ("maker", ("recover", _LOG), "READ", _LOG),
        ("reader", ("init", _OTHER), "CREATE", _OTHER),
    ],
    ids=["append", "one round", "daemon", "accept-loss", "delete", "recover", "init"],
)
def test_a_missing_right_ends_a_command_with_2(
    place: Place, user: str, args: tuple[str, ...], missing: str, on: str
) -> None:
    """A missing right ends a command with 2, operation and topic; a daemon, too: every round would repeat it."""
    given = [_rows(place.directory.parent, 4) if arg == "rows" else arg for arg in args]
    ended = place.run(place.settings(user), *given)
    assert ended.code == 2, ended.printed
    assert missing in ended.printed
    assert f"topic {on}" in ended.printed


def _topics(place: Place) -> set[str]:
    found = AdminClient({"bootstrap.servers": place.broker.plain}).list_topics(timeout=60).topics
    return set(found) - {"__consumer_offsets", "__transaction_state"}  # Made by the first transaction.


def _give_topics(place: Place) -> None:
    """Re-create the tenant's topics as an administrator, as a log needs them."""
    with closing(ConfluentKafka(client_config({"bootstrap.servers": place.broker.plain}))) as kafka:
        for name, role in ((_GIVEN, TopicRole.DATA), (f"{_GIVEN}.ledger", TopicRole.LEDGER)):
            kafka.delete_topic(name)
            kafka.create_topic(TopicSpec(name=name, partitions=1, replication_factor=1, config=topic_config(role, 1)))


def test_a_doctor_has_the_rights_that_it_needs(place: Place) -> None:
    """The rights of docs/kafka.md suffice for a doctor, which leaves no topic. A missing one is named."""
    before = _topics(place)
    found = json.loads(place.done("doctor", "doctor", "--kafka", "--json").splitlines()[-1])
    assert found["worst"] == "note"
    assert [one["name"] for one in found["findings"] if one["severity"] != "ok"] == [Need.REPLICAS.value]
    assert _topics(place) == before

    place.broker.grant("doctor", _doctoring("CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS"))
    printed = place.done("doctor", "doctor", "--kafka")
    left = _topics(place) - before
    assert len(left) == 2
    assert all(f"warning: topic {name} could not be removed, delete it" in printed for name in left)
    assert "Grant DELETE on both topics" in printed
    with closing(ConfluentKafka(client_config({"bootstrap.servers": place.broker.plain}))) as kafka:
        for name in left:
            kafka.delete_topic(name)


def test_who_may_not_create_topics_is_given_some(place: Place) -> None:
    """A doctor says that a principal may not create topics, and uses named ones; a log is made on such topics, too."""
    ended = place.run(place.settings("tenant"), "doctor", "--kafka")
    assert ended.code == 2, ended.printed
    assert "takes CREATE" in ended.printed
    assert "--topics NAME" in ended.printed
    assert "still there" not in ended.printed

    _give_topics(place)
    assert "WRITE on the transactional id" in place.done("tenant", "doctor", "--kafka", "--topics", _GIVEN)
    _give_topics(place)
    place.done("tenant", "init", _GIVEN, "--partitions", 1)
    place.done("tenant", "append", _GIVEN, _rows(place.directory, 3))
    place.done("tenant", "materialize", _GIVEN, "--once")


def test_no_secret_is_in_what_commands_print_or_write(place: Place) -> None:
    """No secret is in the output or files of commands from init to delete, of a daemon, or of failing commands.

    The secrets come from the environment and a named file; the store refuses or is missing, and settings are wrong.
    `run` searches the output.
    """
    file = place.directory.parent / "named.toml"
    kafka = "".join(f"{name} = {json.dumps(value)}\n" for name, value in place.broker.client("reader").items())
    storage = "".join(
        f"{name} = {json.dumps(value)}\n"
        for name, value in {**place.s3.options, "secret": f"{CANARY}store"}.items()
        if isinstance(value, str)
    )
    file.write_text(f"[kafka]\n{kafka}[storage]\n{storage}", "utf-8")
    file.chmod(0o600)
    assert "k0" in place.run({}, "recover", _LOG, "--config", file).printed
    _read_secrets_of_files(place)
    place.done("writer", "append", _LOG, _rows(place.directory, 5))
    place.done("materializer", "materialize", _LOG, "--once")
    _roll_up_as_a_daemon(place)
    place.done("reader", "recover", _LOG, "--to-parquet", place.directory / "state.parquet")
    place.done("reader", "recover", _LOG, "--to-json", place.directory / "state.json")
    place.done("reader", "describe", _LOG)

    place.s3.faults.append(Told("GET", 403))
    assert place.run(place.settings("reader"), "describe", _LOG).code == 2
    away = {**place.settings("reader"), "STATELOG_STORAGE__ENDPOINT_URL": "http://127.0.0.1:1"}
    assert place.run(away, "describe", _LOG).code == 4
    misspelt = {**place.settings("reader"), "STATELOG_STORAGE__SECRETT": f"{CANARY}x"}
    assert place.run(misspelt, "describe", _LOG).code == 2
    for name in ("STATELOG_KAFKA__SASL_PASWORD", "STATELOG_KAFKA__DEBUG", "STATELOG_KAFKA_SASL_PASSWORD"):
        assert place.run({**place.settings("reader"), name: f"{CANARY}x"}, "describe", _LOG).code == 2, name

    assert files_with_canary(place.directory) == []
    assert not canary_in(b"\n".join(data for data, _ in place.s3.objects.values()))
    assert not canary_in(place.broker.log_path.read_bytes())


def _read_secrets_of_files(place: Place) -> None:
    """Read secrets of files as an orchestrator mounts them, with a line end; then with none, and with a wrong one."""
    settings = place.settings("reader")
    for name in ("STATELOG_KAFKA__SASL_PASSWORD", "STATELOG_STORAGE__SECRET"):
        mounted = place.directory.parent / f"mounted-{name.lower()}"
        mounted.write_text(f"{settings.pop(name)}\n", "utf-8")
        settings[f"{name}_FILE"] = str(mounted)
    assert "k0" in place.run(settings, "recover", _LOG).printed
    wrong = place.directory.parent / "mounted-wrong"
    wrong.write_text(f"{CANARY}wrong", "utf-8")
    for name, file, told in (
        ("STATELOG_KAFKA__SASL_PASSWORD_FILE", wrong, "Authentication failed"),
        ("STATELOG_KAFKA__SASL_PASSWORD_FILE", "/run/missing", "file: /run/missing"),
        ("STATELOG_STORAGE__SECRET_FILE", "/run/missing", "file: /run/missing"),
    ):
        ended = place.run({**settings, name: str(file)}, "describe", _LOG)
        assert (ended.code, told in ended.printed) == (2, True), ended.printed


def _roll_up_as_a_daemon(place: Place) -> None:
    """Run a daemon that completes a round, fails at others by the store, and ends; its output is a file, too."""
    place.done("writer", "append", _LOG, _rows(place.directory, 6))
    args = ("materialize", _LOG, "--now", "--interval", "0.1s", "--json")
    with (
        (place.directory / "daemon.txt").open("w", encoding="utf-8") as kept,
        place.start(place.settings("materializer"), *args) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            event = json.loads(line)["event"]
            if event == "round-completed":
                place.s3.faults.extend([Told("LIST", 403)] * 2)
            if event == "round-failed":
                break
        process.send_signal(signal.SIGTERM)
        kept.write("".join(process.communicate(timeout=_AT_ONCE_S)))
    place.s3.faults.clear()
