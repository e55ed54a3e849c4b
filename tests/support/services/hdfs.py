"""A real HDFS for the tests: one name node and one data node, on this machine's Java and on loopback only.

The servers are Hadoop's own, from the jar that its mini cluster is published in; classes that it lacks come with
pyspark. Nothing is replaced or simulated: clients speak WebHDFS to the name node's web port.
"""

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from getpass import getuser
from importlib.util import find_spec
from pathlib import Path

from statelog.testing.broker import free_port
from statelog.testing.node import find_java
from tests.support.services.emulators import kept_jars
from tests.support.waiting import wait_for

__all__ = ["Hdfs", "open_hdfs"]

_PINS = {"3.5.0": "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"}
"""SHA-256 of the mini cluster's jar, by version of Hadoop. Another pyspark may bring another: pin its jar, too."""
_SERVER = "org.apache.hadoop.hdfs.server."
_START_TIMEOUT_S = 240.0
_LIVE = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdfs:
    """A running HDFS with an empty tree. `port` is the name node's web port, `user` its superuser."""

    port: int
    user: str

    def root(self, path: str, *, user: str | None = None) -> str:
        """Return a root URL, as `user` or as the superuser."""
        return f"webhdfs://{user or self.user}@127.0.0.1:{self.port}/{path}"


def open_hdfs(stack: ExitStack, directory: Path) -> Hdfs:
    """Start one in an empty directory; `stack` ends it. Return when the data node takes writes."""
    java, port = find_java(), free_port()
    settings = {
        "dfs.namenode.name.dir": str(directory / "name"),
        "dfs.datanode.data.dir": str(directory / "data"),
        "dfs.replication": "1",
        "dfs.namenode.http-address": f"127.0.0.1:{port}",
        "dfs.datanode.address": "127.0.0.1:0",
        "dfs.datanode.http.address": "127.0.0.1:0",
        "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.datanode.hostname": "127.0.0.1",
        # A new data node has nothing to report: do not wait for more of them.
        "dfs.namenode.safemode.extension": "0",
    }
    _write_settings(directory / "core-site.xml", {"fs.defaultFS": f"hdfs://127.0.0.1:{free_port()}"})
    _write_settings(directory / "hdfs-site.xml", settings)
    command = [str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", _class_path(directory)]
    log = stack.enter_context((directory / "hdfs.log").open("wb"))
    name_node = [*command, f"{_SERVER}namenode.NameNode"]
    subprocess.run([*name_node, "-format", "-nonInteractive"], stdout=log, stderr=log, check=True, timeout=240)
    for server in (name_node, [*command, f"{_SERVER}datanode.DataNode"]):
        process = stack.enter_context(subprocess.Popen(server, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        stack.callback(process.kill)
    _wait(port, directory / "hdfs.log")
    return Hdfs(port=port, user=getuser())


def _class_path(directory: Path) -> str:
    spec = find_spec("pyspark")
    assert spec is not None, "the tests need pyspark"
    beside = Path(next(iter(spec.submodule_search_locations or [])), "jars")
    (client,) = beside.glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    wanted = (f"hadoop-client-*-{version}.jar", "slf4j-api-*.jar", "log4j-*.jar", "jcl-over-slf4j-*.jar")
    others = [str(path) for pattern in wanted for path in sorted(beside.glob(pattern))]
    return ":".join([str(directory), *map(str, _mini_cluster(version).glob("*.jar")), *others])


def _mini_cluster(version: str) -> Path:
    """Return the jar's path, fetched on first use into the directory of the development broker's jars."""
    return kept_jars(f"hdfs-{version}", {f"org.apache.hadoop:hadoop-client-minicluster:{version}": _PINS[version]})


def _write_settings(path: Path, settings: Mapping[str, str]) -> None:
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    path.write_text(f"<configuration>{rows}</configuration>", encoding="utf-8")


def _wait(port: int, log: Path) -> None:
    def is_there() -> bool:
        with (
            suppress(OSError, IndexError, KeyError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}{_LIVE}", timeout=5) as answer,
        ):
            return bool(json.load(answer)["beans"][0]["NumLiveDataNodes"] == 1)
        return False

    complaint = f"HDFS does not start: {log}"
    wait_for(is_there, complaint, timeout_s=_START_TIMEOUT_S, tick_s=0.2)
