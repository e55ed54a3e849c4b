"""Parts that processes play, and the ways to start them. A part is a function of texts, named by its module and its
name: `python -m tests.support.processes.parts MODULE:NAME ARGUMENTS`.

`output` waits for the text that a part prints, and `start` leaves it running. A `Lives` forks one child after the other
from a process that has imported everything, so that starting costs nothing. That process holds no Kafka client and no
thread of ours: each child makes its own clients, and ends by itself or by a signal.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.processes.starts import in_fork

__all__ = ["Lives", "environment", "lives", "output", "start"]

Part = Callable[..., None]
_REPOSITORY = Path(__file__).parents[3]
_LIVES = "lives"


def _name(part: Part) -> str:
    return f"{part.__module__}:{part.__name__}"


def _command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.support.processes.parts", name, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return the variables of a process that imports what is tested here, and the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(_REPOSITORY / "src"), str(_REPOSITORY)))}


def output(part: Part, *arguments: object, timeout_s: float = 240.0) -> str:
    """Return the text that a part prints. Raises AssertionError if it does not end well."""
    done = subprocess.run(
        _command(_name(part), *arguments),
        capture_output=True, check=False, text=True, env=environment(), timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(part: Part, *arguments: object) -> "subprocess.Popen[bytes]":
    """Start a part that runs concurrently with the test."""
    return subprocess.Popen(_command(_name(part), *arguments), env=environment())


class Lives:
    """A source of forked children. Raises AssertionError if the process that forks them has ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            _command(_LIVES), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def live(self, part: Part, *arguments: object) -> int:
        """Run a part in a child; return its exit code, negative for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([_name(part), *map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has ended"
        return int(answer)

    def close(self) -> None:
        """End the process that forks."""
        self._process.communicate(timeout=120)


@pytest.fixture(scope="session")
def lives() -> Iterator[Lives]:
    """Yield a source of children for the parts that die in tests."""
    made = Lives()
    yield made
    made.close()


def _play(name: str, arguments: list[str]) -> None:
    module, _, part = name.partition(":")
    getattr(importlib.import_module(module), part)(*arguments)


def _live(name: str, arguments: list[str]) -> None:
    """Run the part, in the fork."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # The text that a child prints is no answer.
    _play(name, arguments)


def _give_lives() -> None:
    importlib.import_module("tests.support.processes.doomed")
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        sys.stdout.write(f"{in_fork(partial(_live, name, arguments))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == _LIVES:
        _give_lives()
    else:
        _play(sys.argv[1], sys.argv[2:])
