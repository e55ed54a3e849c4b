"""Processes that start in a tenth of the time: a forked child that runs one check, and children of a server.

The server has imported what is slow to import, and has no threads and no clients, so its children may have both. A
`Command` is one of them: the `statelog` command, in an environment and a directory of its own.
"""

import contextlib
import gc
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple

from statelog.cli import main

__all__ = ["Command", "Ended", "in_fork", "leave_files_to_open", "quick_start"]

_PRELOADED = (
    "statelog.producer", "statelog.recovery", "statelog.storage", "statelog.tables", "statelog.storage.store.fsspec",
    "statelog.storage.kafka.client", "statelog.cli.append", "statelog.cli.describe", "statelog.cli.log",
    "statelog.cli.materialize", "statelog.cli.program", "statelog.cli.recover", "s3fs",
)  # fmt: skip


def in_fork(check: Callable[[], None]) -> int:
    """Run `check` in a forked child; returns its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:  # noqa: BLE001 - a child must not run on into pytest
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def leave_files_to_open(count: int) -> None:
    """Bring this process to its limit of open files, but for `count`; only for a child of its own."""
    gc.collect()
    gc.freeze()  # What the parent left to be collected would close files, and so make room, at any moment.
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + count + 1  # noqa: PTH208 - names, not paths
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.dup(0))
    for descriptor in held[-count:]:
        os.close(descriptor)


def quick_start() -> ForkServerContext:
    """The context to make processes, pipes and queues with."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, *_PRELOADED])
    return context


class Ended(NamedTuple):
    """How a command ended, and what it wrote: its output, and its errors behind."""

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
        """Wait for its end. Raises TimeoutError, and kills it, if that does not come in time."""
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
    """In the child."""
    for descriptor, name in ((1, "1-output"), (2, "2-errors")):
        file = os.open(written / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    tempfile.tempdir = None  # As the variables have it.
    sys.argv = ["statelog", *words]
    main()
