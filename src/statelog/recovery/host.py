"""`Host`: what a recovery needs of its machine: time, threads, ids and spill files.

Everything has the real one as its default. A simulation gives its own, and then decides what runs when, and what fails
on the local disk. Work that was begun cannot be ended from outside: it ends by itself.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from statelog.recovery.spill.file import OpenSpillFile, open_spill_file
from statelog.seams import Seams
from statelog.storage.local.boot import boot_id
from statelog.storage.local.disk import DiskHook, no_faults

__all__ = ["GRACE_S", "Host", "Start", "begin", "start_thread"]

T = TypeVar("T")

Start = Callable[[Callable[[], None]], None]
"""Begins some work and returns; the work may be over by then, or be done by another thread. The work raises nothing."""
GRACE_S = 2.0
"""How long to wait for a thread of ours that was told to end: ample, unless it waits for a broker or a store."""


def start_thread(work: Callable[[], None]) -> None:
    """Do the work on a new thread, which the end of the process does not wait for."""
    threading.Thread(target=work, name="statelog-recovery", daemon=True).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Seams):
    """The machine: the seams, and what a recovery takes beside them. `start` begins work, on a thread of its own.
    `disk` is asked at each step on the files of cache and targets. `boot_id` names the machine's present boot.
    """

    start: Start = start_thread
    open_spill_file: OpenSpillFile = open_spill_file
    disk: DiskHook = no_faults
    boot_id: Callable[[], str] = boot_id


def begin(start: Start, work: Callable[[], T]) -> "Future[T]":
    """Begin a piece of work; what it returns or raises is the future's."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again to the caller of result()
            future.set_exception(error)
        else:
            future.set_result(result)

    start(run)
    return future
