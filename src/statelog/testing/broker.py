"""A real Kafka broker on this machine's Java: one KRaft node on loopback, which may be killed and restarted.

The development command and tests run an `EmbeddedBroker`. It owns its directory (settings, log, data), its process and
the probe topic, and shares the jars in the user's cache. Invariants:

- It listens on 127.0.0.1 only. Address and data are the same after every restart.
- `start` and `restart` return only after a record was acknowledged: a starting node accepts connections much earlier.
"""

import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from statelog.closing import undone_by_errors
from statelog.errors import BrokerUnavailable, ClosedError, ConfigError, StatelogError
from statelog.testing import node, process
from statelog.testing.node import KAFKA_VERSION
from statelog.testing.process import ProcessId

PROBE_TOPIC = "__statelog_ready"
STOP_TIMEOUT_S = 20.0
_ATTEMPT_S = 2.0


def wait_until_ready(
    bootstrap: str,
    timeout_s: float,
    *,
    still_alive: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until a record was produced to `bootstrap` (host:port).

    `still_alive` tells whether the broker's process exists. Raises BrokerUnavailable after `timeout_s` seconds, or as
    soon as the process has ended.
    """
    deadline = clock() + timeout_s
    reason = produce_probe(bootstrap, _ATTEMPT_S)
    while reason:
        if not still_alive():
            raise BrokerUnavailable("the broker ended before it was ready", bootstrap=bootstrap, last_reason=reason)
        if clock() >= deadline:
            problem = "the broker did not accept a record in time"
            raise BrokerUnavailable(problem, bootstrap=bootstrap, timeout_s=timeout_s, last_reason=reason)
        reason = produce_probe(bootstrap, _ATTEMPT_S)


def produce_probe(bootstrap: str, timeout_s: float) -> str:
    """Produce one record to the probe topic within `timeout_s` seconds. Returns why it failed, or ""."""
    # Reconnects fast, because the broker may come up at any moment; logs nothing, because failures are expected.
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        "socket.connection.setup.timeout.ms": 1000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
    }
    topic = NewTopic(PROBE_TOPIC, num_partitions=1, replication_factor=1)
    # The name keeps the client alive: its futures never end once it is collected.
    admin = AdminClient(settings)
    created = admin.create_topics([topic], operation_timeout=timeout_s, request_timeout=timeout_s)
    try:
        created[PROBE_TOPIC].result(timeout=timeout_s + 1)
    except KafkaException as error:
        cause: KafkaError = error.args[0]
        if cause.name() != "TOPIC_ALREADY_EXISTS":
            return cause.str()
    except TimeoutError:
        return "the broker does not answer"
    outcome: list[str] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        outcome.append("" if error is None else error.str())

    # Idempotent like writers: the first such producer after a broker's start has to retry, which its client logs.
    producer = Producer({**settings, "enable.idempotence": True, "message.timeout.ms": int(timeout_s * 1000)})
    producer.produce(PROBE_TOPIC, value=b"ready?", partition=0, on_delivery=delivered)
    producer.flush(timeout_s + 1)
    return outcome[0] if outcome else "no delivery report"


# Fixed, because the data directory is the broker's own: a new id would not match the data.
_CLUSTER_ID = "c3RhdGVsb2ctZGV2LTAwMQ"
_FORMAT_TIMEOUT_S = 60.0


class EmbeddedBroker:
    """One Kafka node with its data in `directory`.

    `port`: 0 takes a free one; it stays the same for the lifetime of this object.
    `jars_directory`: the place of the released jars, by default the user's cache.
    `on_step`: called with the current step, for people who wait.
    `on_spawn`: called with every process as soon as it exists.
    `java_options`: the last options of Java, which override others.
    """

    kind = "embedded"
    version = KAFKA_VERSION

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        heap_mb: int = 512,
        jars_directory: Path | None = None,
        start_timeout_s: float = 90.0,
        on_step: Callable[[str], None] = lambda _: None,
        on_spawn: Callable[[ProcessId], None] = lambda _: None,
        adapt: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda settings: settings,
        java_options: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._adapt = adapt
        self._java_options = tuple(java_options)
        self._port = port or free_port()
        self._heap_mb = heap_mb
        self._jars_directory = jars_directory or cache_directory()
        self._start_timeout_s = start_timeout_s
        self._on_step = on_step
        self._on_spawn = on_spawn
        self._process: ProcessId | None = None

    @property
    def bootstrap(self) -> str:
        """The address, host:port."""
        return f"127.0.0.1:{self._port}"

    @property
    def log_path(self) -> Path:
        """The file of the broker's messages."""
        return self._directory / "broker.log"

    @property
    def process(self) -> ProcessId:
        """The process of the last start. Raises ClosedError before the first start."""
        if self._process is None:
            raise ClosedError("the broker was not started", directory=str(self._directory))
        return self._process

    @property
    def alive(self) -> bool:
        """True if its process exists, even paused."""
        return self._process is not None and process.is_alive(self._process)

    def start(self) -> None:
        """Fetch the jars if need be, format the data directory on its first use, start, and wait until it is ready.

        Raises ConfigError (no Java, no jgo), Unavailable (jars not fetched), Corrupt (jars not the released
        ones) and BrokerUnavailable (with the log's last lines).
        """
        if self.alive:
            return
        java = node.find_java()
        jars = self._jars()
        self._directory.mkdir(parents=True, exist_ok=True)
        settings = self._write_settings()
        self._format(java, jars, settings)
        self._on_step(f"starting Kafka {KAFKA_VERSION} at {self.bootstrap}")
        options = [*node.leave_classes(java, jars, self._directory), *self._java_options]
        command = [*node.java_command(java, jars, self._heap_mb, *options), "kafka.Kafka", str(settings)]
        self._process = process.spawn(command, self._directory, self.log_path)
        self._on_spawn(self._process)
        self._wait()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the process by SIGTERM, or by SIGKILL after `timeout_s` seconds, and wait for its end. Idempotent."""
        if self._process is not None and process.end(self._process, timeout_s):
            node.keep_classes(self._directory, self._jars_directory)

    def kill(self) -> None:
        """Kill the process, and wait until it has ended."""
        process.kill(self.process)

    def restart(self) -> None:
        """Kill the process if it lives, start again on the same data and address, and wait until it is ready."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop the process by SIGSTOP: it no longer answers, and its connections stay open."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause by SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def _jars(self) -> Path:
        directory, show = self._jars_directory, self._on_step
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory / "jars.lock"):
            node.clean_abandoned(directory)
            if not (directory / f"kafka-{KAFKA_VERSION}").is_dir():
                show(f"fetching Kafka {KAFKA_VERSION} (44 MB, once)")
            return node.ensure_jars(directory, on_fetched=lambda size: show(f"fetched {size // 1_000_000} of 44 MB"))

    def _write_settings(self) -> Path:
        """Write the settings, with a new controller port, which only the node itself uses."""
        data = self._directory / "data"
        made = node.node_properties("127.0.0.1", self._port, free_port(), self.bootstrap, data)
        settings = self._directory / "server.properties"
        settings.write_text(node.properties_text(self._adapt(made)), encoding="utf-8")
        return settings

    def _format(self, java: Path, jars: Path, settings: Path) -> None:
        if (self._directory / "data" / "meta.properties").exists():
            return
        self._on_step("formatting the data directory")
        tool = [*node.java_command(java, jars, self._heap_mb), "kafka.tools.StorageTool", "format"]
        command = [*tool, "-t", _CLUSTER_ID, "-c", str(settings)]
        try:
            with self.log_path.open("ab") as log:
                subprocess.run(  # noqa: S603 - the arguments are made above
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_FORMAT_TIMEOUT_S, check=True
                )
        except subprocess.SubprocessError as error:
            raise self._failed("the broker's data directory could not be formatted") from error

    def _wait(self) -> None:
        self._on_step("waiting until it accepts a record")
        with undone_by_errors(self.stop, timeout_s=5.0):
            try:
                wait_until_ready(self.bootstrap, self._start_timeout_s, still_alive=lambda: self.alive)
            except BrokerUnavailable as error:
                raise self._failed(error.message) from error

    def _failed(self, message: str) -> StatelogError:
        hint, last_lines = f"See {self.log_path}", process.tail(self.log_path)
        return BrokerUnavailable(message, hint=hint, bootstrap=self.bootstrap, last_lines=last_lines)


def cache_directory() -> Path:
    """Return the directory of this user's development broker: `$XDG_CACHE_HOME/statelog/dev`, by default in `~/.cache`.

    Raises ConfigError for a user without a home directory.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        hint = "Set XDG_CACHE_HOME, or name a directory"
        raise ConfigError("this user has no home directory", hint=hint) from None
    return base / "statelog" / "dev"


def free_port() -> int:
    """Return a port of the loopback interface that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock file `path` in the block, after waiting for it. The system releases the lock of a dead process."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
