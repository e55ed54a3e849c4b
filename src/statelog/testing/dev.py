"""`statelog dev start | stop | status`: one development broker per user, in the user's cache directory.

Every change happens under a lock file, so that two starts make one broker. Prints nothing; `on_step` is called with
the current step. Never touches a broker that it did not start. The note on the running broker is written by one rename.
Readers compare the process's start time with it, because the note may outlive its process.
"""

import errno
import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from statelog.errors import ConfigError
from statelog.testing import process
from statelog.testing.broker import STOP_TIMEOUT_S, EmbeddedBroker, free_port, locked, produce_probe
from statelog.testing.node import KAFKA_VERSION, keep_classes

DEFAULT_PORT = 9092
_BROKER, _LOCK, _NOTE = "broker", "dev.lock", "running.json"
_PROBE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DevBroker:
    """The status of the development broker; if none runs, `bootstrap` and `pid` are None.

    `reason`: why it takes no records; empty if it does. `was_running`: a start found it running.
    """

    bootstrap: str | None
    pid: int | None
    kafka_version: str
    log_path: Path
    reason: str = ""
    was_running: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """A started broker. `process_started`: its start time in this system's own unit; `port`: its listener's."""

    pid: int
    process_started: str
    port: int
    kafka_version: str

    @classmethod
    def of(cls, spawned: process.ProcessId, port: int) -> Self:
        """Describe a broker of the pinned version that was just started."""
        return cls(pid=spawned.pid, process_started=spawned.started, port=port, kafka_version=KAFKA_VERSION)

    @property
    def process_id(self) -> process.ProcessId:
        """The identity of the process."""
        return process.ProcessId(pid=self.pid, started=self.process_started)


def start(
    directory: Path, port: int | None = None, *, heap_mb: int = 512, on_step: Callable[[str], None] = lambda _: None
) -> DevBroker:
    """Start the broker in `directory`, or find it running, and wait until it takes records.

    `port`: by default that of the running broker, or 9092; 0 for any free one. `heap_mb`: the Java heap in MiB.

    Raises ConfigError (no Java, no jgo, port taken, already running on another port). Raises Unavailable (jars not
    fetched), Corrupt (jars not the released ones), BrokerUnavailable (not ready in time; with the log's path).
    """
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / _LOCK):
        running = read_running(directory)
        if running is None:
            return _start_new(directory, port, heap_mb, on_step)
        if port not in {None, 0, running.port}:
            problem = "the development broker already runs on another port"
            hint = "Use that one, or stop it first: statelog dev stop"
            raise ConfigError(problem, hint=hint, running_port=running.port, asked_port=port)
        return _described(directory, running)


def stop(directory: Path) -> bool:
    """Stop the broker, and wait until its process has ended; False if none ran. Its data stays."""
    if not directory.is_dir():
        return False
    with locked(directory / _LOCK):
        running = read_running(directory)
        if running is not None and process.end(running.process_id, STOP_TIMEOUT_S):
            keep_classes(directory / _BROKER, directory)
        forget(directory)
        return running is not None


def status(directory: Path) -> DevBroker:
    """Return the broker's status. Changes nothing but one record in its probe topic, and waits for no lock."""
    running = read_running(directory)
    reason = "not started" if running is None else produce_probe(_bootstrap(running.port), _PROBE_TIMEOUT_S)
    return _described(directory, running, reason=reason)


def _described(
    directory: Path, running: RunningBroker | None, *, reason: str = "", was_running: bool = True
) -> DevBroker:
    return DevBroker(
        bootstrap=None if running is None else _bootstrap(running.port),
        pid=None if running is None else running.pid,
        kafka_version=KAFKA_VERSION if running is None else running.kafka_version,
        log_path=directory / _BROKER / "broker.log",
        reason=reason,
        was_running=was_running,
    )


def _start_new(directory: Path, wanted: int | None, heap_mb: int, on_step: Callable[[str], None]) -> DevBroker:
    port = _usable_port(wanted)
    broker = EmbeddedBroker(
        directory / _BROKER,
        port=port,
        heap_mb=heap_mb,
        jars_directory=directory,
        on_step=on_step,
        # Noted before it is ready, so that `stop` finds the broker of a killed start.
        on_spawn=lambda spawned: note_running(directory, RunningBroker.of(spawned, port)),
    )
    broker.start()
    return _described(directory, RunningBroker.of(broker.process, port), was_running=False)


def _usable_port(wanted: int | None) -> int:
    if wanted == 0:
        return free_port()
    port = wanted or DEFAULT_PORT
    with socket.socket() as probe:
        # As in Kafka: closing connections of an earlier broker do not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            problem = "the port is in use by another program" if taken else f"the port cannot be used: {error.strerror}"
            hint = "Choose another port with --port, or any free one with --port 0"
            raise ConfigError(problem, hint=hint, port=port) from error
    return port


def _bootstrap(port: int) -> str:
    return f"127.0.0.1:{port}"


def note_running(directory: Path, running: RunningBroker) -> None:
    """Write the note."""
    fresh = directory / f"{_NOTE}.{os.getpid()}"
    fresh.write_text(json.dumps(asdict(running)), encoding="ascii")
    fresh.replace(directory / _NOTE)


def read_running(directory: Path) -> RunningBroker | None:
    """Return the broker of the note; None if it is dead, or if there is no readable note."""
    try:
        noted = json.loads((directory / _NOTE).read_text(encoding="ascii"))
        running = RunningBroker(**noted)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return running if process.is_alive(running.process_id) else None


def forget(directory: Path) -> None:
    """Remove the note."""
    (directory / _NOTE).unlink(missing_ok=True)
