"""Rented services for the tests, as programs on loopback only: Azure's and Google's object stores (Azurite and
fake-gcs-server), and a Kafka broker that is not Apache's (kfake, by the program in this folder).

All are fetched pinned by the client of their registry, npm and go, into the directory of the development broker's jars.
On a machine without that client `Unobtainable` says so, and the test skips with its words.
"""

import hashlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from statelog.testing.broker import cache_directory, free_port, locked, wait_until_ready
from statelog.testing.node import check_jars, fetch_jars
from tests.support.waiting import wait_for

__all__ = [
    "AZURE_ACCOUNT",
    "AZURE_KEY",
    "EmulatedStore",
    "Unobtainable",
    "kept_jars",
    "open_azure",
    "open_gcs",
    "open_kfake",
]

_AZURITE = "azurite@3.35.0"
_FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
_CONTAINER = "statelog-test"
AZURE_ACCOUNT = "statelogtest"
AZURE_KEY = "c3RhdGVsb2ctdGVzdC1jYW5hcnkta2V5LW9mLWFuLWF6dXJlLWFjY291bnQtdGhhdC1pcy1ub25l"
_START_TIMEOUT_S = 120.0
_INSTALL_TIMEOUT_S = 600.0


class Unobtainable(Exception):
    """A part of a store cannot be had on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedStore:
    """A running store with one empty bucket. `options` are the storage options that reach it."""

    bucket_url: str
    options: Mapping[str, object]
    port: int

    def root(self) -> str:
        """Return a root URL that no other test uses."""
        return f"{self.bucket_url}/{uuid.uuid4().hex}"


def open_azure(stack: ExitStack, directory: Path) -> EmulatedStore:
    """Start Azurite in an empty directory; `stack` ends it. Raises Unobtainable."""
    node, port = _program("node"), free_port()
    home = _installed("azurite", _AZURITE, lambda into: [_program("npm"), "install", "--prefix", into, _AZURITE])
    script = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    command = [node, str(script), "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    place = ["--location", str(directory), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    _start(
        stack,
        [*command, *place],
        directory / "azurite.log",
        port,
        {"AZURITE_ACCOUNTS": f"{AZURE_ACCOUNT}:{AZURE_KEY}"},
    )
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/{AZURE_ACCOUNT};"
    )
    from azure.storage.blob import ContainerClient  # The extra may not be installed.

    with ContainerClient.from_connection_string(connection, _CONTAINER) as container:
        cast("Any", container).create_container()  # Its stub is incomplete.
    return EmulatedStore(bucket_url=f"abfs://{_CONTAINER}", options={"connection_string": connection}, port=port)


def open_gcs(stack: ExitStack, directory: Path) -> EmulatedStore:
    """Start fake-gcs-server, which keeps all in memory; `stack` ends it. Raises Unobtainable."""
    port, go = free_port(), _program("go")
    home = _installed("fake-gcs-server", _FAKE_GCS, lambda into: ["env", f"GOBIN={into}", go, "install", _FAKE_GCS])
    place = ["-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    command = [str(home / "fake-gcs-server"), "-scheme", "http", "-backend", "memory", "-log-level", "warn", *place]
    _start(stack, command, directory / "gcs.log", port, {})
    endpoint = f"http://127.0.0.1:{port}"
    made = urllib.request.Request(
        f"{endpoint}/storage/v1/b",
        data=json.dumps({"name": _CONTAINER}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(made, timeout=10).close()
    options = {"endpoint_url": endpoint, "token": "anon"}
    return EmulatedStore(bucket_url=f"gs://{_CONTAINER}", options=options, port=port)


def open_kfake(stack: ExitStack, directory: Path) -> str:
    """Start a broker that keeps all in memory; `stack` ends it. Return its host and port. Raises Unobtainable."""
    go, port, source = _program("go"), free_port(), Path(__file__).parent / "kfake"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(source.iterdir()))).hexdigest()[:12]
    home = _installed("kfake", f"kfake@{digest}", lambda into: [go, "-C", str(source), "build", "-o", f"{into}/kfake"])
    output = stack.enter_context((directory / "kfake.log").open("wb"))
    process = stack.enter_context(subprocess.Popen([str(home / "kfake"), str(port)], stdout=output, stderr=output))
    stack.callback(process.kill)
    wait_until_ready(f"127.0.0.1:{port}", _START_TIMEOUT_S, still_alive=lambda: process.poll() is None)
    return f"127.0.0.1:{port}"


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unobtainable(f"there is no {name} here")
    return found


def _installed(name: str, pinned: str, command: Callable[[str], list[str]]) -> Path:
    """Return the directory that holds a pinned program, made on first use; it appears by one rename."""
    home = cache_directory() / f"{name}-{pinned.rpartition('@')[2]}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with locked(home.parent / f"{name}.lock"):
        if not home.is_dir():
            unfinished = home.with_name(f".{home.name}.{uuid.uuid4().hex}")
            unfinished.mkdir()
            try:
                _run(command(str(unfinished)), pinned)
                unfinished.rename(home)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return home


def kept_jars(name: str, pins: Mapping[str, str]) -> Path:
    """Return the directory of these jars, next to the development broker's; fetched on first use.

    Raises Unavailable if they cannot be had, Corrupt, ConfigError.
    """
    jars = cache_directory() / name
    jars.parent.mkdir(parents=True, exist_ok=True)
    with locked(jars.parent / f"{name}.lock"):
        if not jars.is_dir():
            fetch_jars(jars, pins)
    check_jars(jars, pins)
    return jars


def _run(command: Sequence[str], pinned: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unobtainable(f"{pinned} did not come within {_INSTALL_TIMEOUT_S:g} s") from error
    if done.returncode:
        raise Unobtainable(f"{pinned} cannot be installed: {done.stderr.strip()[-300:]}")


def _start(stack: ExitStack, command: Sequence[str], log: Path, port: int, more: Mapping[str, str]) -> None:
    """Run a server until `stack` ends it; return when it answers HTTP, with whatever status."""
    output = stack.enter_context(log.open("wb"))
    process = stack.enter_context(
        subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env={**os.environ, **more})
    )
    stack.callback(process.kill)

    def answers() -> bool:
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-3000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    wait_for(answers, f"{command[0]} does not start: see {log}", tick_s=0.1)
