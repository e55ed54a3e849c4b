"""The development broker's parts that need no broker: jars, Java, settings, processes, the running note."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner

from statelog.cli import dev as dev_commands
from statelog.errors import BrokerUnavailable, ConfigError, Corrupt, Unavailable
from statelog.log import Where
from statelog.testing import dev, node, process
from statelog.testing.broker import EmbeddedBroker, cache_directory, free_port, locked, wait_until_ready
from statelog.testing.dev import DevBroker, RunningBroker
from statelog.testing.node import (
    KAFKA_VERSION,
    check_jars,
    ensure_jars,
    fetch_jars,
    node_properties,
    parse_pins,
    properties_text,
)
from statelog.testing.process import ProcessId, wait_for
from tests.support.rooms import SOURCE
from tests.support.services.broker import container_environment


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """Return a directory of two jars that match their pins."""
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / "a-1.jar").write_bytes(b"a")
    (directory / "b-2.jar").write_bytes(b"b")
    return directory


_PINS = {"x:a:1": sha256(b"a").hexdigest(), "x.y:b:2": sha256(b"b").hexdigest()}


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessId]:
    """Start a process that ignores SIGTERM, and wait until its log says so."""
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    log = tmp_path / "log"
    spawned = process.spawn([sys.executable, "-c", program], tmp_path, log)
    assert wait_for(lambda: "up" in process.tail(log), 20.0)
    yield spawned
    process.kill(spawned)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedBroker:
    """Return a broker whose Java only sleeps."""

    def command(*_: object) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    def jars(directory: Path, **_: object) -> Path:
        return directory

    monkeypatch.setattr(node, "find_java", lambda: Path(sys.executable))
    monkeypatch.setattr(node, "ensure_jars", jars)
    monkeypatch.setattr(node, "java_command", command)
    return EmbeddedBroker(tmp_path, jars_directory=tmp_path)


def test_a_start_that_is_interrupted_leaves_no_process(
    fake: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted start leaves no process, even though the process is in its own session and gets no Ctrl-C."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("statelog.testing.broker.wait_until_ready", interrupt)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").touch()
    with pytest.raises(KeyboardInterrupt):
        fake.start()
    assert not process.is_alive(fake.process)


def test_a_directory_that_is_not_formatted_in_time_is_told(
    fake: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is not formatted in time is reported as an unavailable broker."""
    monkeypatch.setattr("statelog.testing.broker._FORMAT_TIMEOUT_S", 0.1)
    with pytest.raises(BrokerUnavailable, match="could not be formatted"):
        fake.start()
    assert not fake.alive


def test_pinned_jars_are_accepted(jars: Path) -> None:
    """Exactly the pinned jars are accepted."""
    check_jars(jars, _PINS)


@pytest.mark.parametrize("fact", ["missing", "extra", "changed"])
def test_other_jars_are_refused(jars: Path, fact: str) -> None:
    """A missing, extra or changed jar is a typed error that names it."""
    if fact == "missing":
        (jars / "b-2.jar").unlink()
    else:
        (jars / ("c.jar" if fact == "extra" else "b-2.jar")).write_bytes(b"evil")
    with pytest.raises(Corrupt) as refused:
        check_jars(jars, _PINS)
    assert refused.value.facts[fact] == ("c.jar" if fact == "extra" else "b-2.jar")
    assert str(jars) in refused.value.hint


def test_damaged_jars_are_found_at_every_start(tmp_path: Path) -> None:
    """An existing directory of jars is checked again at every start."""
    (tmp_path / f"kafka-{KAFKA_VERSION}").mkdir()
    with pytest.raises(Corrupt):
        ensure_jars(tmp_path)


def _served(coordinates: str, directory: Path) -> Path:
    """Fetch a pinned artifact as a jar that holds its name."""
    jar = directory / coordinates.replace(":", "/") / "some.jar"
    jar.parent.mkdir(parents=True)
    jar.write_text(coordinates.split(":")[1])
    return jar


def test_fetched_jars_are_those_that_are_pinned(tmp_path: Path) -> None:
    """Fetched jars lie in one directory under their own names, and nothing else is left."""
    fetch_jars(tmp_path / "jars", _PINS, fetch=_served)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "jars",
        "jars/a-1.jar",
        "jars/b-2.jar",
    ]


def test_other_jars_than_the_pinned_ones_are_not_kept(tmp_path: Path) -> None:
    """A mirror that serves other jars raises Corrupt, and nothing of them is left."""
    with pytest.raises(Corrupt, match=r"a-1\.jar"):
        fetch_jars(tmp_path / "jars", {**_PINS, "x:a:1": "0" * 64}, fetch=_served)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_fetch_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that fails is Unavailable, names the jar, and leaves no directory that looks like jars."""
    (tmp_path / "settings").write_text("[repositories]\nnone = http://127.0.0.1:1\n")
    monkeypatch.setenv("JGO_CONFIG_FILE", str(tmp_path / "settings"))
    with pytest.raises(Unavailable) as failed:
        fetch_jars(tmp_path / "jars", _PINS)
    assert [path.name for path in tmp_path.iterdir()] == ["settings"]
    assert failed.value.facts["jar"] == "x:a:1"


def test_pins_name_the_broker_itself() -> None:
    """The checked-in list pins the broker of the requested version, with whole checksums."""
    pins = parse_pins((SOURCE / "testing" / "jars.sha256").read_text("ascii"))
    assert f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}" in pins
    assert {len(checksum) for checksum in pins.values()} == {64}
    assert parse_pins("00  x:a:1\n11  y:b:2\n") == {"x:a:1": "00", "y:b:2": "11"}


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no such thing", None),
    ],
)
def test_java_versions_are_understood(said: str, version: int | None) -> None:
    """Old and new forms of a Java version are read."""
    assert node.parse_java_version(said) == version


def _fake_java(home: Path, said: str) -> None:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n", encoding="ascii")
    program.chmod(0o755)


def test_java_home_decides(tmp_path: Path) -> None:
    """The Java that JAVA_HOME names is used, whatever is on the path."""
    _fake_java(tmp_path, 'openjdk version "21.0.1"')
    found = node.find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert found == tmp_path / "bin" / "java"


def test_an_old_java_is_refused(tmp_path: Path) -> None:
    """A Java below 17 is a configuration error with both versions."""
    _fake_java(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(ConfigError) as refused:
        node.find_java({"JAVA_HOME": str(tmp_path)})
    assert (refused.value.facts["version"], refused.value.facts["oldest"]) == (11, 17)


def test_no_java_is_a_configuration_error(tmp_path: Path) -> None:
    """Without any Java, the error says what to install."""
    with pytest.raises(ConfigError, match=r"no Java was found.*Install a Java"):
        node.find_java({"PATH": str(tmp_path)})


def test_a_node_listens_on_loopback_only() -> None:
    """Every listener is bound to the loopback address, the controller's always."""
    properties = node_properties("127.0.0.1", 4001, 4002, "127.0.0.1:4001", Path("/data"))
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:4001,CONTROLLER://127.0.0.1:4002"
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["log.dirs"] == "/data"


def test_settings_become_files_and_variables() -> None:
    """The same settings make a properties file, with backslashes escaped, and a container's environment."""
    assert properties_text({"log.dirs": "a\\b"}) == "log.dirs=a\\\\b\n"
    environment = container_environment({"log.dirs": "/d"}, heap_mb=512)
    assert environment == {"KAFKA_LOG_DIRS": "/d", "KAFKA_HEAP_OPTS": "-Xmx512m"}


def test_a_process_that_ignores_sigterm_is_killed(sleeper: ProcessId) -> None:
    """Ending a process kills it if SIGTERM does not, and returns only when it is gone."""
    assert process.is_alive(sleeper)
    process.end(sleeper, timeout_s=0.2)
    assert not process.is_alive(sleeper)
    assert process.identify(sleeper.pid) is None


def test_a_reused_process_id_is_another_process(sleeper: ProcessId) -> None:
    """A process with the same id and another start time is foreign: it is never signalled, and ours counts as dead."""
    other = ProcessId(pid=sleeper.pid, started="0")
    assert not process.is_alive(other)
    process.end(other, timeout_s=0.0)
    process.kill(other)
    assert process.is_alive(sleeper)


def test_the_note_of_a_dead_broker_does_not_count(tmp_path: Path, sleeper: ProcessId) -> None:
    """A note is valid only while its process lives."""
    note = RunningBroker(pid=sleeper.pid, process_started=sleeper.started, port=1, kafka_version="x")
    dev.note_running(tmp_path, note)
    assert dev.read_running(tmp_path) == note
    process.kill(sleeper)
    assert dev.read_running(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"pid": 1', '{"unknown": 1}'])
def test_an_unreadable_note_is_no_note(tmp_path: Path, text: str) -> None:
    """A damaged note means that no broker runs."""
    (tmp_path / "running.json").write_text(text, encoding="ascii")
    assert dev.read_running(tmp_path) is None


def test_a_taken_port_is_a_configuration_error(tmp_path: Path) -> None:
    """A port that another program listens on is refused before anything is fetched or started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        with pytest.raises(ConfigError, match="in use") as refused:
            dev.start(tmp_path, port)
    assert refused.value.facts["port"] == port


def test_another_port_than_the_running_one_is_refused(tmp_path: Path, sleeper: ProcessId) -> None:
    """A second start on another port says which one runs. Without a port, or with any, it finds the running broker."""
    note = RunningBroker(pid=sleeper.pid, process_started=sleeper.started, port=4711, kafka_version="x")
    dev.note_running(tmp_path, note)
    with pytest.raises(ConfigError, match="running_port=4711"):
        dev.start(tmp_path, 4712)
    for port in (None, 0, 4711):
        found = dev.start(tmp_path, port)
        assert (found.bootstrap, found.pid, found.was_running) == ("127.0.0.1:4711", sleeper.pid, True)


def test_status_and_stop_without_a_broker(tmp_path: Path) -> None:
    """Without a broker, `status` says so and `stop` does nothing. Neither makes a directory."""
    directory = tmp_path / "none"
    assert not dev.stop(directory)
    seen = dev.status(directory)
    assert (seen.reason, seen.bootstrap, seen.pid) == ("not started", None, None)
    assert not directory.exists()


def test_waiting_ends_with_the_process() -> None:
    """Waiting ends when the broker's process is gone."""
    with pytest.raises(BrokerUnavailable, match="ended before it was ready"):
        wait_until_ready(f"127.0.0.1:{free_port()}", 60.0, still_alive=lambda: False)


def test_waiting_ends_in_time() -> None:
    """Waiting asks at least once, and ends when its time is over."""
    ticks = iter([0.0, 100.0])
    with pytest.raises(BrokerUnavailable, match="in time"):
        wait_until_ready(f"127.0.0.1:{free_port()}", 60.0, clock=lambda: next(ticks))
    times = iter([0.0, 1.0, 2.0, 3.0])
    slept: list[float] = []
    assert not wait_for(lambda: False, 2.0, pause_s=0.5, clock=lambda: next(times), sleep=slept.append)
    assert slept == [0.5]


def test_the_lock_keeps_other_processes_out(tmp_path: Path) -> None:
    """No other process can take the lock until it is released."""
    lock = tmp_path / "lock"
    attempt = f"import fcntl; fcntl.flock(open({str(lock)!r}, 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", attempt]
    with locked(lock):
        assert subprocess.run(command, capture_output=True, check=False).returncode != 0
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_cache_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME moves the broker's directory. The default is below the home directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "statelog" / "dev"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/h")
    assert cache_directory() == Path("/h/.cache/statelog/dev")


@pytest.mark.parametrize("given", [None, "/tmp/statelog"])
def test_what_start_prints_is_where_the_broker_is(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of `statelog dev start`, as variables or as a file, makes the `Where` of its broker and root."""
    started = DevBroker(
        bootstrap="127.0.0.1:4001",
        pid=1,
        kafka_version=KAFKA_VERSION,
        log_path=tmp_path / "broker.log",
    )

    def start(*_: object, **__: object) -> DevBroker:
        return started

    monkeypatch.setattr(dev_commands, "start", start)
    root = f"file://{tmp_path / 'logs'}" if given is None else given
    options = [] if given is None else ["--root", given]
    printed = CliRunner().invoke(dev_commands.command, ["start", "--directory", str(tmp_path), *options]).output
    exports, settings = printed.partition("For this shell:\n")[2].split("Or in ./statelog.toml:\n")
    variables = dict(word.split("=", 1) for line in exports.splitlines() for word in line.split()[1:])
    file = tmp_path / "statelog.toml"
    file.write_text(settings, encoding="utf-8")
    where = Where.local(root, "127.0.0.1:4001")
    assert Where.from_env(variables) == where
    assert Where.from_env({"STATELOG_CONFIG": str(file)}) == where
