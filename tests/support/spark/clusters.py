"""Kinds of Spark clusters, each on this machine, and a process for each that runs all programs in one session.

    python -m tests.support.spark.clusters KIND BOOTSTRAP DIRECTORY [PROGRAM ...]   # one JSON line for each program

Executors and servers get no PYTHONPATH and no files of ours: all that they know of statelog is what is installed for
the Python that PYSPARK_PYTHON names, as on a cluster of a user's own.
"""

import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import pyspark
from pyspark.sql import SparkSession

from statelog.testing.broker import free_port
from tests.support.spark.programs import PROGRAMS, Place
from tests.support.spark.session import SPARK_SETTINGS, session_on
from tests.support.waiting import wait_for

__all__ = ["KINDS", "Kind", "main", "spark_environment", "standalone_master"]

_HOME = Path(pyspark.__file__).parent
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_EXECUTORS = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.executor.extraJavaOptions": _JVM}


_NONE: Mapping[str, str] = MappingProxyType({})


@contextmanager
def _session(master: str, settings: Mapping[str, str]) -> Generator[SparkSession]:
    session = session_on(master, settings)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def local(directory: Path, settings: Mapping[str, str] = _NONE) -> Generator[SparkSession]:
    """Yield a session whose driver and executor share one JVM."""
    del directory
    with _session("local[2]", settings) as session:
        yield session


@contextmanager
def local_cluster(directory: Path, settings: Mapping[str, str] = _NONE) -> Generator[SparkSession]:
    """Yield a session with two executors of one core, in JVMs of their own that the driver starts."""
    del directory
    with _session("local-cluster[2,1,1024]", {**_EXECUTORS, **settings}) as session:
        yield session


@contextmanager
def standalone(directory: Path, settings: Mapping[str, str] = _NONE) -> Generator[SparkSession]:
    """Yield a session on `standalone_master`, whose executors do not descend from the driver."""
    with standalone_master(directory) as url, _session(url, {**_EXECUTORS, **settings}) as session:
        yield session


@contextmanager
def standalone_master(directory: Path, environment: Mapping[str, str] = os.environ) -> Generator[str]:
    """Yield the address of a master with two workers of one core, daemons of their own.

    Each worker has an address of this machine as its host: on one host Spark never runs two attempts of a task at once,
    so nothing else here speculates.
    """
    port = free_port()
    with ExitStack() as stack:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        stack.enter_context(_daemon([*master, "--webui-port", "0"], directory / "master.log", environment))
        _await_port(port)
        for number in range(2):
            host = ["--host", f"127.0.0.{number + 1}"]
            worker = ["org.apache.spark.deploy.worker.Worker", *host, "--cores", "1", "--memory", "1g"]
            place = ["--webui-port", "0", "--work-dir", str(directory / f"worker-{number}")]
            command = [*worker, *place, f"spark://127.0.0.1:{port}"]
            stack.enter_context(_daemon(command, directory / f"worker-{number}.log", environment))
        yield f"spark://127.0.0.1:{port}"


@contextmanager
def connect(directory: Path, settings: Mapping[str, str] = _NONE) -> Generator[SparkSession]:
    """Yield a Connect server, and a client that speaks gRPC with it and has no JVM."""
    port = free_port()
    given = {**SPARK_SETTINGS, "spark.connect.grpc.binding.port": str(port), **settings}
    submit = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    for name, value in given.items():
        submit += ["--conf", f"{name}={value}"]
    server = [*submit, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with _daemon(server, directory / "connect.log"):
        _await_port(port)
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        try:
            yield session
        finally:
            session.stop()


class Kind(Protocol):
    """A starter of a cluster for a block, with a directory for its logs, and settings on top of every session's."""

    def __call__(self, directory: Path, settings: Mapping[str, str] = _NONE, /) -> AbstractContextManager[SparkSession]:
        """Return the session of the block."""
        ...


KINDS: Mapping[str, Kind] = MappingProxyType(
    {"local": local, "connect": connect, "local-cluster": local_cluster, "standalone": standalone}
)
"""The kinds by name."""


@contextmanager
def _daemon(arguments: list[str], output: Path, environment: Mapping[str, str] = os.environ) -> Generator[None]:
    """Run a JVM of Spark's own, by its own launcher, until the end of the block."""
    with output.open("wb") as log:
        command = [str(_HOME / "bin" / "spark-class"), *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _await_port(port: int) -> None:
    def is_listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for(is_listening, f"nothing listens on port {port}")


def _run_all(spark: SparkSession, place: Place, names: Sequence[str]) -> bool:
    """Run these programs, one after the other; return whether each was right."""
    right = True
    for name in names:
        started, error = time.monotonic(), ""
        try:
            PROGRAMS[name](spark, place)
        except Exception:  # noqa: BLE001  # A program that fails is a line, and the next one runs.
            error, right = traceback.format_exc(), False
        line = {"program": name, "seconds": round(time.monotonic() - started, 1), "error": error}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    return right


def spark_environment() -> dict[str, str]:
    """Return the variables that Spark's own programs need."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(_HOME),
        # The pip package has no build directories, from which Spark's launcher would derive the version of Scala.
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def main() -> int:
    """Start the cluster, run the programs, end it."""
    kind, bootstrap, directory, *names = sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]
    directory.mkdir(parents=True, exist_ok=True)
    os.environ.update(spark_environment())
    os.environ.pop("PYTHONPATH", None)
    with KINDS[kind](directory) as spark:
        return 0 if _run_all(spark, Place(bootstrap=bootstrap, directory=directory), names or list(PROGRAMS)) else 1


if __name__ == "__main__":
    sys.exit(main())
