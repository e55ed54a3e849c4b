"""Lives: processes that a test lets die, forked from one that has imported everything, so that starting costs nothing.

The process that forks holds no Kafka client and no thread of ours: each life makes its own clients. A life runs the
`main` of a module with arguments, as `python -m` would, and ends by itself or by a signal.
"""

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["Lives", "lives"]

_MODULES = tuple(f"tests.support.processes.doomed_{what}" for what in ("round", "table", "writer"))
_REPOSITORY = Path(__file__).parents[3]


class Lives:
    """Gives lives, one after the other. Raises AssertionError if the process that forks them is gone."""

    def __init__(self) -> None:
        path = os.pathsep.join((str(_REPOSITORY / "src"), str(_REPOSITORY)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.lives"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live(self, module: str, *arguments: object) -> int:
        """One life of a module's `main`; returns its exit code, negative for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([module, *map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that gives lives has ended"
        return int(answer)

    def close(self) -> None:
        """End the process that forks."""
        self._process.communicate(timeout=120)


@pytest.fixture(scope="session")
def lives() -> Iterator[Lives]:
    """Lives of the modules whose processes die in tests."""
    made = Lives()
    yield made
    made.close()


def _live(module: str, arguments: list[str]) -> int:
    """In the fork: the exit code of a life that ends by itself."""
    sys.argv = [module, *arguments]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # What a life prints is no answer.
    try:
        importlib.import_module(module).main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 - a fork must end where it began, whatever it died of
        traceback.print_exc()
        return 1
    return 0


def _main() -> None:
    for module in _MODULES:
        importlib.import_module(module)
    for line in sys.stdin:
        module, *arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = _live(module, arguments)
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
