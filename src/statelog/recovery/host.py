"""`Host`: what a recovery takes from the machine that it runs on: time, threads, ids and spill files.

Everything has the real one as its default. A simulation gives its own, and then decides what runs when, what fails on
the local disk, and which ids come out. Work that was begun cannot be ended from outside: it ends by itself.
"""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from statelog.recovery.spill.file import OpenSpillFile, open_spill_file
from statelog.storage.local.disk import DiskHook, no_faults

__all__ = ["GRACE_S", "Host", "NewId", "Start", "begin", "new_id", "start_thread"]

T = TypeVar("T")

Start = Callable[[Callable[[], None]], None]
"""Begins some work and returns; the work may be over by then, or be done by another thread. The work raises nothing."""
NewId = Callable[[], str]
"""32 hex digits that nobody had before."""
GRACE_S = 2.0
"""How long to wait for a thread of ours that was told to end: ample, unless it waits for a broker or a store."""


def start_thread(work: Callable[[], None]) -> None:
    """Do the work on a new thread, which the end of the process does not wait for."""
    threading.Thread(target=work, name="statelog-recovery", daemon=True).start()


def new_id() -> str:
    """A random one."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine. `clock`: seconds from any start. `disk`: asked at each step on the files of cache and targets."""

    clock: Callable[[], float] = time.monotonic
    start: Start = start_thread
    new_id: NewId = new_id
    open_spill_file: OpenSpillFile = open_spill_file
    disk: DiskHook = no_faults


def begin(start: Start, work: Callable[[], T]) -> "Future[T]":
    """Begin a piece of work; what it returns or raises is the future's."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asks for the result
            future.set_exception(error)
        else:
            future.set_result(result)

    start(run)
    return future
