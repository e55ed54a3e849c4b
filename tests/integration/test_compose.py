"""The stack of docker-compose.yml: a log goes through Kafka, the materializer daemon and S3, and comes back.

It has a project name, ports and an image name of its own, next to the stack of a user or of another run. Only the image
stays, for the next run.
"""

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from statelog.errors import AlreadyExists
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.schemas.names import DESCRIPTOR_PATH
from statelog.testing.broker import free_port
from statelog.testing.process import wait_for
from tests.support.services.broker import KAFKA_IMAGE, choices, docker_reason
from tests.support.services.s3 import S3_IMAGE

ROOT = Path(__file__).parents[2]
_LOG = "example"
_IMAGES = (KAFKA_IMAGE, S3_IMAGE, "python:3.11-slim-bookworm")
_LIMIT_S = 400.0
_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "default-timeout")


class Stack:
    """One run of the compose file, whose materializer has the log `example` and runs a round every half second."""

    def __init__(self) -> None:
        self.project = f"statelog-test-{uuid.uuid4().hex[:8]}"
        self._kafka_port, self._s3_port = free_port(), free_port()
        self._environment = {
            **_pip_settings(),
            **os.environ,
            "STATELOG_IMAGE": "statelog-test",
            "STATELOG_KAFKA_PORT": str(self._kafka_port),
            "STATELOG_S3_PORT": str(self._s3_port),
            "STATELOG_LOG": _LOG,
            "STATELOG_INTERVAL_S": "500ms",
            "STATELOG_MIN_AGE_S": "0",
        }

    def up(self) -> None:
        """Build the image while Kafka and S3 start, then start the materializer; return when all are healthy."""
        others = self._start("up", "--detach", "--wait", "kafka", "s3")
        self.compose("build", "materializer")
        _finish(others)
        self.compose("up", "--detach", "--wait")

    def compose(self, *arguments: str) -> str:
        """Run docker compose; return its output. Fails with its errors."""
        return _finish(self._start(*arguments))

    def statelog(self, *arguments: str) -> str:
        """Run a command of statelog as the page on development says."""
        return self.compose("run", "--rm", "--no-TTY", "statelog", *arguments)

    def open_log(self) -> Log:
        """Return the log as a program on this machine opens it: as the development page says, at this run's ports."""
        page = ROOT / "docs" / "guide" / "development.md"
        section = page.read_text(encoding="utf-8").partition("## With Docker")[2]
        _, printed, _ = re.split(r"^```(?:python)?\n", section, maxsplit=2, flags=re.MULTILINE)
        ours = printed.replace(":9092", f":{self._kafka_port}").replace(":7070", f":{self._s3_port}")
        names: dict[str, Any] = {}
        exec(compile(ours, str(page), "exec"), names)
        return Log.open(_LOG, names["where"])

    def exit_code(self, service: str) -> int:
        """Return the code with which the container of a service that does not run any more has ended."""
        shown = json.loads(self.compose("ps", "--all", "--format", "json", service))
        assert shown["State"] == "exited", shown
        return int(shown["ExitCode"])

    def leftovers(self) -> Collection[str]:
        """Return the stack's present containers, volumes and networks."""
        label = f"label=com.docker.compose.project={self.project}"
        lists = (("ps", "--all"), ("volume", "ls"), ("network", "ls"))
        return [name for words in lists for name in _docker(*words, "--quiet", "--filter", label).split()]

    def _start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = ["docker", "compose", "--project-name", self.project, *arguments]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def open_stack() -> Generator[Stack]:
    """Yield a running stack, and remove it at the end with all that it stored."""
    stack = Stack()
    try:
        stack.up()
        yield stack
    finally:
        stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


def compose_reason() -> str:
    """Return why docker compose cannot be used here, or an empty string if it can."""
    reason = docker_reason()
    if reason:
        return reason
    try:
        _docker("compose", "version")
    except (OSError, AssertionError) as error:
        return f"docker compose does not run: {error}"
    missing = [image for image in _IMAGES if not _is_there(image)]
    return f"Docker answers, but these images cannot be had: {', '.join(missing)}" if missing else ""


def _is_there(image: str) -> bool:
    """Return whether an image is there, or could be fetched now."""
    for words in (("image", "inspect"), ("pull", "--quiet")):
        try:
            _docker(*words, image)
        except AssertionError:
            continue
        return True
    return False


def _pip_settings() -> dict[str, str]:
    """Return how this machine's pip reaches its index, as the variables that the compose file gives on to the build."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        setting = name.rpartition(".")[2]
        if setting in _PIP_SETTINGS:
            # pip prints the value as a Python literal, several lines of a file as one text.
            found[f"PIP_{setting.upper().replace('-', '_')}"] = " ".join(value.strip("'\"").replace("\\n", " ").split())
    return found


def _docker(*arguments: str) -> str:
    return _finish(subprocess.Popen(["docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))


def _finish(process: "subprocess.Popen[str]") -> str:
    """Return a command's output. Fails with its errors if it failed, or did not end at all."""
    try:
        out, err = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    assert process.returncode == 0, f"{process.args!r} ended with {process.returncode}:\n{err}{out}"
    return out


pytestmark = [pytest.mark.docker, pytest.mark.broker, pytest.mark.timeout(540)]

COMMITS = 3
KEYS = 1000


@pytest.fixture
def stack_can_run() -> None:
    """Skip on a machine without an engine and docker compose, with the reason in the run's summary."""
    reason = compose_reason()
    if reason:
        choices.append(f"stack of docker-compose.yml: NOT TESTED in this run: {reason}")
        pytest.skip(f"docker-compose.yml is not tested in this run: {reason}")
    choices.append("stack of docker-compose.yml: built and brought up by docker compose")


def test_a_log_goes_through_the_stack(stack_can_run: None) -> None:
    """Commits on Kafka become snapshots on S3, are truncated, and come back; the daemon exits with 0; nothing stays."""
    with open_stack() as stack:
        expect(stack, lambda: "waiting for the log example" in stack.compose("logs", "materializer"))
        stack.statelog("init", "example", "--partitions", "2", "--key-groups", "16")
        with stack.open_log() as log:
            check_conditional_put(log)
            model = commit_and_roll_up(log, stack)
            check_recovery(log, model)
        stack.compose("stop", "materializer")
        assert stack.exit_code("materializer") == 0, stack.compose("logs", "materializer")
        assert len(stack.leftovers()) >= 5, "three containers, two volumes, a network"
    assert stack.leftovers() == []


def check_conditional_put(log: Log) -> None:
    """Check that the store refuses to create an existing file."""
    log.store.check()
    before = log.store.read(DESCRIPTOR_PATH)
    with pytest.raises(AlreadyExists):
        log.store.put_if_absent(DESCRIPTOR_PATH, b"another")
    assert log.store.read(DESCRIPTOR_PATH) == before


def commit_and_roll_up(log: Log, stack: Stack) -> dict[bytes, bytes]:
    """Commit changes, each time when the daemon has rolled the earlier ones up; return the expected state."""
    model: dict[bytes, bytes] = {}
    with Writer(log, "test") as writer:
        for checkpoint in range(1, COMMITS + 1):
            for number in range(checkpoint * 100, KEYS):
                model[b"k%d" % number] = b"v%d.%d" % (checkpoint, number)
                writer.put(b"k%d" % number, model[b"k%d" % number])
            del model[b"k%d" % (KEYS - checkpoint)]
            writer.delete(b"k%d" % (KEYS - checkpoint))
            writer.commit({"source": str(checkpoint)}, checkpoint_id=checkpoint)
            await_snapshot(log, stack)
    expect(stack, lambda: all(offsets.start > 0 for offsets in log.data_offsets().values()))
    return model


def await_snapshot(log: Log, stack: Stack) -> None:
    """Return when a snapshot covers all commits."""
    position = log.describe().state.position
    expect(stack, lambda: covered(log) >= position)


def check_recovery(log: Log, model: dict[bytes, bytes]) -> None:
    """Check that the recovered state is the model, read from the runs on S3."""
    with recover(log) as recovery:
        assert recovery.to_dict() == model
        statistics = recovery.statistics()
        assert statistics.run_rows >= len(model)
        assert statistics.tail_changes == 0
        last = recovery.last_commit("test")
    assert last is not None
    assert last.metadata == {"source": str(COMMITS)}


def covered(log: Log) -> int:
    """Return the position of the newest snapshot, 0 before the first."""
    newest = log.manifests.newest()
    return newest.position if newest else 0


def expect(stack: Stack, condition: Callable[[], bool]) -> None:
    """Wait for an action of the daemon; if it does not come, show its output."""
    if not wait_for(condition, 60.0, pause_s=0.2):
        pytest.fail(stack.compose("logs", "materializer"))
