"""The parts of a Kafka node: this machine's Java, the released jars, and the settings.

Java is taken from `JAVA_HOME`, or from the search path, as in the scripts of Kafka and Spark. `jars.sha256` pins each
jar by its coordinates, `group:artifact:version`, and its SHA-256. The package jgo fetches them, from the server that
its settings name. The development broker, the embedded broker and the container of tests share the settings, so that
all three behave alike. This module runs only `java -version`. A node that ends normally archives its loaded classes
next to the jars, for the next nodes.

Invariants: `find_java` returns Java 17 or newer. A directory from `ensure_jars` holds exactly the pinned jars, byte for
byte, and appears by one rename. A node is broker and controller, replicates nothing, and creates no topic by itself.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources, util
from pathlib import Path

from statelog.errors import ConfigError, Corrupt, Unavailable

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HINT = f"Install a Java runtime of version {OLDEST_JAVA} or newer, and put it on the path or name it in JAVA_HOME"


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the `java` program to use. Raises ConfigError if there is none, or if it is too old."""
    home = environment.get("JAVA_HOME", "")
    found = shutil.which(str(Path(home, "bin", "java")) if home else "java", path=environment.get("PATH"))
    if found is None:
        raise ConfigError("no Java was found", hint=_HINT, java_home=home or None)
    java = Path(found)
    version = parse_java_version(_version_text(java))
    if version is None or version < OLDEST_JAVA:
        problem = "this Java is too old for Kafka" if version else "this Java does not tell its version"
        raise ConfigError(problem, hint=_HINT, java=str(java), version=version, oldest=OLDEST_JAVA)
    return java


def parse_java_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`, or None. Java 8 and older report 1.8 or less."""
    match = _VERSION.search(text)
    return int(match.group(1)) if match else None


def _version_text(java: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the program is the Java that the user's environment names
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Java does not run: {error}", hint=_HINT, java=str(java)) from error
    return done.stderr + done.stdout


KAFKA_VERSION = "4.3.1"
_PINS = "jars.sha256"
_STALL_TIMEOUT_S = 60
_REPORT_BYTES = 10_000_000

Fetch = Callable[[str, Path], Path]
"""Fetches the jar of these coordinates into a directory, and returns its path. Raises Unavailable."""


def ensure_jars(directory: Path, *, on_fetched: Callable[[int], None] = lambda _: None) -> Path:
    """Return the directory of the jars below `directory`; fetch them if need be. The caller holds a lock on it.

    `on_fetched` is called with the bytes so far, about every 10 MB. Raises ConfigError without jgo, Unavailable if the
    jars cannot be fetched, Corrupt if they are not the pinned ones.
    """
    jars = directory / f"kafka-{KAFKA_VERSION}"
    pins = parse_pins(resources.files("statelog.testing").joinpath(_PINS).read_text(encoding="ascii"))
    if not jars.is_dir():
        fetch_jars(jars, pins, on_fetched=on_fetched)
    check_jars(jars, pins)
    return jars


def parse_pins(text: str) -> dict[str, str]:
    """Parse lines of `checksum  group:artifact:version` into the SHA-256 in hexadecimal by the jar's coordinates."""
    pairs = (line.split() for line in text.splitlines() if line)
    return {coordinates: checksum for checksum, coordinates in pairs}


def check_jars(jars: Path, pins: Mapping[str, str]) -> None:
    """Raise Corrupt unless `jars` holds exactly the jars of `pins`, with these checksums."""
    pinned = {_name(coordinates): checksum for coordinates, checksum in pins.items()}
    present = {path.name for path in jars.iterdir()}
    missing, extra = sorted(pinned.keys() - present), sorted(present - pinned.keys())
    found = {name: hashlib.sha256((jars / name).read_bytes()).hexdigest() for name in pinned.keys() & present}
    changed = sorted(name for name, checksum in found.items() if checksum != pinned[name])
    if missing or extra or changed:
        raise Corrupt(
            "the broker's jars are not the released ones",
            hint=f"Remove {jars} and start again; if this repeats, check the mirror: it serves other jars",
            directory=str(jars),
            missing=" ".join(missing),
            extra=" ".join(extra),
            changed=" ".join(changed),
        )


def _name(coordinates: str) -> str:
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"


def fetch_jar(coordinates: str, directory: Path) -> Path:
    """Fetch one jar without the user's cache, which may hold another file. Raises ConfigError, Unavailable."""
    if util.find_spec("jgo") is None:
        hint = "Install the extra with pip install 'statelog[dev]', or use a broker of your own"
        raise ConfigError("jgo, which fetches the broker, is not installed", hint=hint)
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext

    group, artifact, version = coordinates.split(":")
    try:
        servers = GlobalSettings.load().repositories or None  # A mirror, if the user's settings of jgo name one.
        context = MavenContext(repo_cache=directory, remote_repos=servers, timeout=_STALL_TIMEOUT_S)
        return context.project(group, artifact).at_version(version).artifact().resolve()
    except (OSError, RuntimeError) as error:
        problem = "the broker's jars could not be fetched"
        hint = "Check the network, and start again: no partial files remain"
        raise Unavailable(problem, hint=hint, reason=str(error), jar=coordinates) from error


def fetch_jars(
    jars: Path, pins: Mapping[str, str], *, on_fetched: Callable[[int], None] = lambda _: None, fetch: Fetch = fetch_jar
) -> None:
    """Fetch the pinned jars into a new directory, check them, and rename it to `jars`.

    The caller holds a lock on the parent directory. Raises ConfigError, Unavailable, Corrupt.
    """
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=jars.parent) as made:
        staging = Path(made, "jars")
        staging.mkdir()
        size_bytes = reported_bytes = 0
        for coordinates in pins:
            jar = fetch(coordinates, Path(made, "cache")).rename(staging / _name(coordinates))
            size_bytes += jar.stat().st_size
            if size_bytes - reported_bytes >= _REPORT_BYTES:
                on_fetched(reported_bytes := size_bytes)
        check_jars(staging, pins)
        staging.rename(jars)


def clean_abandoned(directory: Path) -> None:
    """Remove the remains of killed fetches in `directory`. The caller holds the lock, so no fetch is under way."""
    for left in directory.glob("fetch-*/"):
        shutil.rmtree(left)


def java_command(java: Path, jars: Path, heap_mb: int, *options: str) -> list[str]:
    """Return the command that starts Java for a node. It compiles little, since a node lives shortly or does little.

    The logging settings are for the one logging jar among the pinned ones.
    """
    logging, archive = "-Dorg.slf4j.simpleLogger.", _class_archive(java, jars)
    return [
        str(java),
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *([f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []),
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        "-Djava.awt.headless=true",
        f"{logging}defaultLogLevel=warn",
        f"{logging}log.kafka.server.KafkaRaftServer=info",
        f"{logging}showDateTime=true",
        f"{logging}dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        *options,
        "-cp",
        f"{jars}/*",
    ]


def _class_archive(java: Path, jars: Path) -> Path:
    """Return the path of the class archive of these jars for this Java, which cuts the work of a start to a third.

    Java checks that the archive belongs to the jars, and ignores it otherwise.
    """
    made = java.resolve().stat()
    return jars.with_name(f"{jars.name}-{made.st_ino}-{made.st_mtime_ns}.jsa")


def leave_classes(java: Path, jars: Path, directory: Path) -> list[str]:
    """Return the options with which a node archives its classes in `directory`; none if an archive exists."""
    archive = _class_archive(java, jars)
    (directory / archive.name).unlink(missing_ok=True)
    return [] if archive.exists() else [f"-XX:ArchiveClassesAtExit={directory / archive.name}"]


def keep_classes(directory: Path, jars_directory: Path) -> None:
    """Move the class archive that an ended node left in `directory` to the jars, replacing older ones, if possible."""
    with suppress(OSError):
        for left in directory.glob("kafka-*.jsa"):
            fresh = jars_directory / f".{left.name}.{os.getpid()}"
            shutil.move(left, fresh)
            for old in jars_directory.glob("kafka-*.jsa"):
                old.unlink(missing_ok=True)
            fresh.replace(jars_directory / left.name)


COMMON_PROPERTIES: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "auto.create.topics.enable": "false",
    # One node: one replica of everything.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A segment holds the largest chunk that a topic allows (16 MiB), yet is small enough for truncation to free disk.
    "log.segment.bytes": str(32 << 20),
    "log.index.size.max.bytes": str(256 << 10),
    "log.segment.delete.delay.ms": "1000",
    "log.retention.check.interval.ms": "5000",
    # The default of 128 MiB is a quarter of the heap, for compacted topics that hardly exist here.
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
    "num.network.threads": "2",
    "num.io.threads": "4",
    # A killed node is admitted again only after its old session ended.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}


def node_properties(
    bind_host: str, port: int, controller_port: int, advertised: str, data_directory: Path | None = None
) -> dict[str, str]:
    """Return the complete settings of a node. `advertised`: its address for clients, host:port.

    Without `data_directory`, the node keeps the default of its image.
    """
    placed = {
        "listeners": f"PLAINTEXT://{bind_host}:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{advertised}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        # No writes while idle: they are a third of an idle node's work.
        "metadata.max.idle.interval.ms": "0",
    }
    stored = {} if data_directory is None else {"log.dirs": str(data_directory)}
    return {**COMMON_PROPERTIES, **placed, **stored}


def properties_text(properties: Mapping[str, str]) -> str:
    """Format the settings as a Java properties file, with escaped backslashes."""
    return "".join(f"{name}={value}\n" for name, value in properties.items()).replace("\\", "\\\\")
