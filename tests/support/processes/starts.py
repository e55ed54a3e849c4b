"""Processes that start in a tenth of the time: a forked child that runs one check, and children of a server.

The server has imported the slow modules, and has no threads and no clients, so its children may have both. A `Command`
is one of them: the `statelog` command, in an environment and a directory of its own.
"""

import gc
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple

from statelog.cli import main

__all__ = ["Command", "Ended", "in_fork", "quick_start", "write_to"]

_PRELOADED = (
    "statelog.producer", "statelog.recovery", "statelog.log", "statelog.tables", "statelog.store.fsspec",
    "statelog.kafka.client", "statelog.cli.append", "statelog.cli.describe", "statelog.cli.log",
    "statelog.cli.materialize", "statelog.cli.program", "statelog.cli.recover", "s3fs",
)  # fmt: skip


def in_fork(check: Callable[[], None]) -> int:
    """Run `check` in a forked child; return its exit code, negative for a signal."""
    gc.collect()  # Here and not in the child, where a finalizer may kill it: another library's client, say.
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            check()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:  # noqa: BLE001 - a child must not run on into pytest
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def write_to(path: Path, descriptor: int) -> None:
    """Append this process's later writes to the descriptor to the file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, descriptor)
    os.close(file)


def quick_start() -> ForkServerContext:
    """Return the context to make processes, pipes and queues with."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, *_PRELOADED])
    return context


class Ended(NamedTuple):
    """The end of a command and its text: its output, followed by its errors."""

    code: int
    printed: str


class Command:
    """The `statelog` command with these words, and with no other variables than these."""

    def __init__(self, words: list[str], environment: Mapping[str, str], directory: Path) -> None:
        self._written = tempfile.TemporaryDirectory(prefix="statelog-command-")
        told = (words, dict(environment), directory, Path(self._written.name))
        self._process = quick_start().Process(target=_command, args=told, daemon=True)
        self._process.start()

    def end(self, timeout_s: float) -> Ended:
        """Wait for its end. Raises TimeoutError, and kills it, if the end does not come in time."""
        with self._written as written:
            self._process.join(timeout_s)
            code = self._process.exitcode
            if code is None:
                self._process.kill()
                self._process.join()
            printed = "".join(file.read_text("utf-8") for file in sorted(Path(written).iterdir()))
        if code is None:
            raise TimeoutError(printed)
        return Ended(code, printed)


def _command(words: list[str], environment: Mapping[str, str], directory: Path, written: Path) -> None:
    """Run the command, in the child."""
    write_to(written / "1-output", 1)
    write_to(written / "2-errors", 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    tempfile.tempdir = None  # As the variables have it.
    sys.argv = ["statelog", *words]
    main()
