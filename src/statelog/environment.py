"""`Environment`: every input from outside but for the two ports: time, threads, randomness, and the local disk.

It is in no public signature: each object reads `current_environment` once, at its construction.
`statelog.testing.environment` sets another one, with which simulations are reproducible, choose what runs when, and
stop or break the work between any two steps. It holds for the thread that sets it and for threads started from there.
A new process has the real one.

Observers are notified through it. Without observers this costs nothing. Like logging, `watch` is for the whole process,
so that objects on threads of Spark or a worker are observed, too.

Invariant: a frozen value that pickles if its parts do. Observers are left out.
"""

import os
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from statelog.observing import Observer, TimedStep

P = ParamSpec("P")
T = TypeVar("T")

Clock = Callable[[], float]
"""The time in seconds."""
NewNonce = Callable[[], bytes]
"""Makes 16 bytes, different every time."""
CrashPoint = Callable[[str], None]
"""Called with the name of each completed step; an exception ends the work there."""
Start = Callable[[Callable[[], None]], None]
"""Starts some work, in this thread or another one, and returns. The work raises nothing."""
Wait = Callable[[threading.Event, float], object]
"""Waits until the event is set, for so many seconds at most."""
DiskHook = Callable[[str, Path], None]
"""Called before a step (make, write, sync, download, verify, rename, open, delete) on a path. It may raise OSError, or
damage the file."""
GRACE_S = 2.0
"""How long to wait for one of our threads to end: ample, unless it waits for a broker or a store."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class SpillFile(Protocol):
    """The file of a spill segment. Every method raises StorageFull, StoreUnavailable."""

    def write_at(self, data: memoryview, offset: int) -> int:
        """Write some of `data`. Return the number of bytes."""
        ...

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        """Read at most so many bytes; none at the end of the file."""
        ...

    def cut(self, size_bytes: int) -> None:
        """Truncate the file to this size."""
        ...

    def size_bytes(self) -> int:
        """Return the file's size."""
        ...

    def close(self) -> None:
        """Close it, which frees its space. Idempotent."""
        ...


OpenSpillFile = Callable[[Path], SpillFile]
"""Opens a new spill file in a directory."""


def random_nonce() -> bytes:
    """Return 16 random bytes, for one incarnation of a writer, one manifest or one run."""
    return os.urandom(16)


def start_thread(work: Callable[[], None]) -> None:
    """Do the work on a new daemon thread, in the same environment."""
    threading.Thread(target=copy_context().run, args=(work,), name="statelog", daemon=True).start()


def inline(work: Callable[[], None]) -> None:
    """Do the work in the calling thread, before returning."""
    work()


@contextmanager
def repeated(work: Callable[[], object], every_s: float, name: str, *, is_awaited: bool = True) -> Generator[None]:
    """Repeat the work every so many seconds, on a thread of this name, until the block is left.

    `is_awaited`: leaving the block waits for the work in progress.
    """
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(min(every_s, threading.TIMEOUT_MAX)):
            work()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    try:
        thread.start()
        yield
    finally:
        over.set()
        if is_awaited and thread.is_alive():
            thread.join()


def boot_id() -> str:
    """Return the unique id of the machine's current boot; empty where the system has none.

    Within one boot, written files are whole without a sync, even if processes are killed.
    """
    try:
        return _BOOT.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def no_faults(*_: object) -> None:
    """Do nothing: the disk hook and the crash point without faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The inputs from outside, which tests replace. The defaults are the real ones.

    `clock`: monotonic, from any start; paces waits and measures durations.
    `wall_clock`: since 1970; for ages, and for people who read manifests.
    `disk`: called for the files of caches, scratch directories and targets.
    `open_spill_file`: opens spill files; without it they are unnamed temporary files.
    """

    clock: Clock = time.monotonic
    wall_clock: Clock = time.time
    nonce: NewNonce = random_nonce
    crash: CrashPoint = no_faults
    wait: Wait = threading.Event.wait
    start: Start = start_thread
    disk: DiskHook = no_faults
    open_spill_file: OpenSpillFile | None = None
    boot_id: Callable[[], str] = boot_id
    observers: tuple[Observer, ...] = ()

    def new_id(self) -> str:
        """Return 32 new hex digits, as the name of a lease, a run or a directory."""
        return self.nonce().hex()

    def run(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `make` in this environment. Objects that it makes stay in it."""
        token = CURRENT.set(self)
        try:
            return make(*args, **kwargs)
        finally:
            CURRENT.reset(token)

    def begin(self, work: Callable[[], T]) -> "Future[T]":
        """Start some work. The future has its result or error."""
        return begin(self.start, work)

    def made(self, thing: object, log: str, name: str = "") -> None:
        """Notify the observers that an object was made."""
        for one in self.observers:
            one.made(thing, log, name)

    @contextmanager
    def step(
        self, name: str, log: str, since_s: float | None = None, *, amount: Callable[[], tuple[int, int]] | None = None
    ) -> Generator[None]:
        """Notify the observers of the block, as a step.

        `since_s`: an earlier start, on `clock`.
        `amount`: returns the number of changes for `TimedStep`, and their size.
        """
        if not self.observers:
            yield
            return
        now_s, error = self.clock(), ""
        started_s = now_s if since_s is None else since_s
        changes, size_bytes = amount() if amount else (0, 0)
        step = TimedStep(name, log, self.wall_clock() - (now_s - started_s), changes=changes, size_bytes=size_bytes)
        callbacks = [one.began(step) for one in self.observers]
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            step = step._replace(seconds=self.clock() - started_s, error=error)
            for callback in reversed(callbacks):
                callback(step)

    def __reduce__(self) -> tuple[object, ...]:
        parts = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "observers"}
        return partial(Environment, **parts), ()


def begin(start: Start, work: Callable[[], T]) -> "Future[T]":
    """Start some work by `start`. The future has its result or error."""
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


_real = Environment()
_CHANGING = threading.RLock()
CURRENT: ContextVar[Environment | None] = ContextVar("statelog environment", default=None)
"""Set by `Environment.run` and `statelog.testing.environment`."""


def current_environment() -> Environment:
    """Return this thread's environment: the real one, unless a test has set another."""
    return CURRENT.get() or _real


def watch(observer: Observer) -> Callable[[], None]:
    """Notify the observer about all objects that this process makes from now on.

    Return a function that ends this for objects made after its call. Tests with their own environment set its observers
    instead.
    """
    _observe(lambda observers: (*observers, observer))
    return lambda: _observe(lambda observers: tuple(one for one in observers if one is not observer))


def _observe(change: Callable[[tuple[Observer, ...]], tuple[Observer, ...]]) -> None:
    global _real  # noqa: PLW0603 - replaced as a whole, so that readers need no lock
    with _CHANGING:
        _real = replace(_real, observers=change(_real.observers))
