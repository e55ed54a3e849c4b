"""`Environment`: what every room takes from outside beside the two ports: time, threads, chance, and the local disk.

It is in no signature that a program meets: who makes an object reads `current_environment` once, and the object keeps
it. `statelog.testing.environment` sets another one, in which a simulation runs the same way twice, decides what runs
when, and stops or breaks the work between any two steps. It holds for the thread that sets it, and for those that are
begun from there; a process that is started has the real one.

Observers are told through it, too: who watches nothing pays nothing. `watch` is for the whole process, as logging is,
so that what Spark or a worker makes on threads of its own is seen as well.

Invariant: a frozen value that pickles if what it was given does; who watches stays behind.
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
"""Called with the name of each step that is done; an exception ends the work there."""
Start = Callable[[Callable[[], None]], None]
"""Begins some work and returns; the work may be over by then, or be done by another thread. The work raises nothing."""
Wait = Callable[[threading.Event, float], object]
"""Waits until the event is set, for so many seconds at most."""
DiskHook = Callable[[str, Path], None]
"""Asked before a step (make, write, sync, download, verify, rename, open, delete) on a path: may raise OSError, or harm
the file."""
GRACE_S = 2.0
"""How long to wait for a thread of ours that was told to end: ample, unless it waits for a broker or a store."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class SpillFile(Protocol):
    """What a segment needs of a file. Every method raises StorageFull, StoreUnavailable."""

    def write_at(self, data: memoryview, offset: int) -> int:
        """Write some of `data`; returns how many bytes."""
        ...

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        """At most so many bytes; none at the end of the file."""
        ...

    def cut(self, size_bytes: int) -> None:
        """Drop what lies behind."""
        ...

    def size_bytes(self) -> int:
        """The file's length."""
        ...

    def close(self) -> None:
        """Close it, which frees its space. Idempotent."""
        ...


OpenSpillFile = Callable[[Path], SpillFile]
"""Opens a new spill file in a directory."""


def random_nonce() -> bytes:
    """16 random bytes: one life of a writer, one manifest, one run."""
    return os.urandom(16)


def start_thread(work: Callable[[], None]) -> None:
    """Do the work on a new thread, in the same environment, which the end of the process does not wait for."""
    threading.Thread(target=copy_context().run, args=(work,), name="statelog", daemon=True).start()


def inline(work: Callable[[], None]) -> None:
    """Do the work before whoever begins it goes on, on no other thread."""
    work()


@contextmanager
def repeated(work: Callable[[], object], every_s: float, name: str, *, is_awaited: bool = True) -> Generator[None]:
    """Do the work each time that so many seconds have passed, on a thread of this name, until the block is left: with
    what is under way, if it `is_awaited`.
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
    """Names the machine's present boot, on no other machine and at no other time the same; empty where none is named.

    As long as it lasts, what was written is whole without a sync, whatever is killed.
    """
    try:
        return _BOOT.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def no_faults(*_: object) -> None:
    """A disk that does what it is told; and the crash point that lets work go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where tests take over; the defaults are the real ones. `clock` is monotonic, from any start: it paces waits and
    measures durations. `wall_clock` is since 1970: for ages, and for people who read manifests. `disk` is asked about
    the files of caches, scratch directories and targets. Without `open_spill_file` the files of a recovery that needs
    more than memory are nameless ones.
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
        """32 fresh hex digits: the name of a lease, a run or a directory."""
        return self.nonce().hex()

    def run(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in this environment: what it makes keeps this one."""
        token = CURRENT.set(self)
        try:
            return make(*args, **kwargs)
        finally:
            CURRENT.reset(token)

    def begin(self, work: Callable[[], T]) -> "Future[T]":
        """Begin a piece of work; what it returns or raises is the future's."""
        return begin(self.start, work)

    def made(self, thing: object, log: str, name: str = "") -> None:
        """Tell the observers that something was made."""
        for one in self.observers:
            one.made(thing, log, name)

    @contextmanager
    def step(
        self, name: str, log: str, since_s: float | None = None, *, amount: Callable[[], tuple[int, int]] | None = None
    ) -> Generator[None]:
        """Tell the observers of what the block does, as a step; it began earlier if `since_s` says so, on `clock`.
        `amount` gives the changes of `TimedStep` and their size, if there are any.
        """
        if not self.observers:
            yield
            return
        now_s, error = self.clock(), ""
        started_s = now_s if since_s is None else since_s
        changes, size_bytes = amount() if amount else (0, 0)
        step = TimedStep(name, log, self.wall_clock() - (now_s - started_s), changes=changes, size_bytes=size_bytes)
        told = [one.began(step) for one in self.observers]
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            step = step._replace(seconds=self.clock() - started_s, error=error)
            for tell in reversed(told):
                tell(step)

    def __reduce__(self) -> tuple[object, ...]:
        parts = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "observers"}
        return partial(Environment, **parts), ()


def begin(start: Start, work: Callable[[], T]) -> "Future[T]":
    """Begin a piece of work by `start`; what it returns or raises is the future's."""
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
    """That of this thread: the real one, unless a test has set another."""
    return CURRENT.get() or _real


def watch(observer: Observer) -> Callable[[], None]:
    """Tell the observer what this process does with what it makes from now on. Returns a function that ends it for
    what is made after that. Tests that have an environment of their own set its observers.
    """
    _observe(lambda told: (*told, observer))
    return lambda: _observe(lambda told: tuple(one for one in told if one is not observer))


def _observe(change: Callable[[tuple[Observer, ...]], tuple[Observer, ...]]) -> None:
    global _real  # noqa: PLW0603 - replaced as a whole, so that who reads it needs no lock
    with _CHANGING:
        _real = replace(_real, observers=change(_real.observers))
