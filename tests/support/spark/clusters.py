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
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import pyspark
from pyspark.sql import SparkSession

from statelog.cli.devbroker.embedded import free_port
from tests.support.spark.programs import PROGRAMS, Place
from tests.support.spark.session import SPARK_SETTINGS

__all__ = ["KINDS", "main"]

_HOME = Path(pyspark.__file__).parent
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_START_TIMEOUT_S = 120
_EXECUTORS = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.executor.extraJavaOptions": _JVM}


@contextmanager
def _session(master: str, settings: Mapping[str, str]) -> Generator[SparkSession]:
    builder = SparkSession.builder.master(master).appName("statelog-programs")
    for name, value in {**SPARK_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def local(directory: Path) -> Generator[SparkSession]:
    """Driver and executor in one JVM."""
    del directory
    with _session("local[2]", {}) as session:
        yield session


@contextmanager
def local_cluster(directory: Path) -> Generator[SparkSession]:
    """Two executors of one core, in JVMs of their own that the driver starts."""
    del directory
    with _session("local-cluster[2,1,1024]", _EXECUTORS) as session:
        yield session


@contextmanager
def standalone(directory: Path) -> Generator[SparkSession]:
    """A master and two workers, on 127.0.0.1: daemons of their own, whose executors do not descend from the driver."""
    port = free_port()
    with ExitStack() as stack:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        stack.enter_context(_daemon([*master, "--webui-port", "0"], directory / "master.log"))
        _await_port(port)
        for number in range(2):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
            place = ["--webui-port", "0", "--work-dir", str(directory / f"worker-{number}")]
            stack.enter_context(
                _daemon([*worker, *place, f"spark://127.0.0.1:{port}"], directory / f"worker-{number}.log")
            )
        yield stack.enter_context(_session(f"spark://127.0.0.1:{port}", _EXECUTORS))


@contextmanager
def connect(directory: Path) -> Generator[SparkSession]:
    """A Connect server, and a client that speaks gRPC with it and has no JVM."""
    port = free_port()
    settings = {**SPARK_SETTINGS, "spark.connect.grpc.binding.port": str(port)}
    submit = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    for name, value in settings.items():
        submit += ["--conf", f"{name}={value}"]
    server = [*submit, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with _daemon(server, directory / "connect.log"):
        _await_port(port)
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        try:
            yield session
        finally:
            session.stop()


KINDS: Mapping[str, Callable[[Path], AbstractContextManager[SparkSession]]] = MappingProxyType(
    {"local": local, "connect": connect, "local-cluster": local_cluster, "standalone": standalone}
)
"""By name; each takes a directory for its logs."""


@contextmanager
def _daemon(arguments: list[str], output: Path) -> Generator[None]:
    """A JVM of Spark's own, by its own launcher, until the end of the block."""
    with output.open("wb") as log:
        process = subprocess.Popen([str(_HOME / "bin" / "spark-class"), *arguments], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _await_port(port: int) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.2)


def _run_all(spark: SparkSession, place: Place, names: Sequence[str]) -> bool:
    """These programs, one after the other; whether each was right."""
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


def main() -> int:
    """Start the cluster, run the programs, end it."""
    kind, bootstrap, directory, *names = sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The pip package has no build directories, from which Spark's launcher would tell the version of Scala.
    os.environ.update(SPARK_HOME=str(_HOME), SPARK_SCALA_VERSION="2.13", SPARK_LOCAL_IP="127.0.0.1")
    os.environ.pop("PYTHONPATH", None)
    with KINDS[kind](directory) as spark:
        return 0 if _run_all(spark, Place(bootstrap=bootstrap, directory=directory), names or list(PROGRAMS)) else 1


if __name__ == "__main__":
    sys.exit(main())
