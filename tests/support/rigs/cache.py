"""A recovery cache over an in-memory store: runs that are mere bytes, a clock that stands still, and gates."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as threads_alive

from statelog.environment import Environment
from statelog.recovery.run_cache import CacheDirectory, CacheSettings, RunCache
from statelog.schemas.snapshot.runs import RunFile, RunIndex
from statelog.testing.store import Fault, MemoryDisk, MemoryStore

__all__ = ["CacheRig", "Gate", "janitors", "run_of"]

_DEADLINE_S = 60.0
_NO_INDEX = RunIndex(row_groups=(), footer_offset=0, footer_checksum=0)


class Gate:
    """Where downloads stand still until it is opened. `reached` is set by the first one."""

    def __init__(self) -> None:
        self.reached = Event()
        self._open = Event()

    def wait(self) -> None:
        """Called by a download."""
        self.reached.set()
        assert self._open.wait(_DEADLINE_S), "nobody opened the gate"

    def open(self) -> None:
        """Let all downloads pass, now and later."""
        self._open.set()

    def await_reached(self) -> None:
        """Wait until a download stands here."""
        assert self.reached.wait(_DEADLINE_S), "no download came"


class CacheRig:
    """One cache of log `rig` below `base`, and what it downloads."""

    def __init__(self, base: Path, *, idle_s: float = 60.0, max_bytes: int | None = None) -> None:
        self.now_s = 1000.0
        self.base = base
        self.downloads: Counter[str] = Counter()
        self.on_download: Callable[[str], None] = lambda _: None
        self.on_clock: Callable[[], None] = lambda: None
        self.disk = MemoryDisk(self.clock)
        self.store = MemoryStore(self.disk, "rig", faults=self._count)
        self.directory = CacheDirectory(base)
        settings = CacheSettings(directory=base, idle_s=idle_s, max_bytes=max_bytes)
        self.cache = Environment(clock=self.clock).run(RunCache, self.directory, settings)

    def clock(self) -> float:
        """Stands still unless it is moved."""
        self.on_clock()
        return self.now_s

    def put(self, name: str, data: bytes) -> RunFile:
        """A run on the store that is nothing but these bytes."""
        run = run_of(name, data)
        self.disk.write(f"rig/{run.path}", data, absent=True)
        return run

    def read(self, run: RunFile) -> bytes:
        """Open through the cache, read all, close."""
        with self.cache.open(self.store, run) as file:
            return file.read()

    def files(self) -> list[int]:
        """The sizes of all runs and partial downloads below the base."""
        return sorted(path.stat().st_size for path in self.base.rglob("*") if path.suffix in (".run", ".partial"))

    def _count(self, method: str, path: str) -> Fault | None:
        if method == "download":
            self.downloads[path] += 1
            self.on_download(path)
        return None


def run_of(name: str, data: bytes) -> RunFile:
    """The facts of a run with these bytes, and with an index that no reader could use."""
    sha256 = hashlib.sha256(data).digest()
    return RunFile(path=f"runs/{name}.parquet", size_bytes=len(data), rows=0, sha256=sha256, index=_NO_INDEX)


def janitors(before: Collection[Thread] = ()) -> list[Thread]:
    """Give the threads of caches that are alive in this process, without those that were alive before a test: a client
    of Kafka that an earlier test closed may still be leaving on a thread of the same name.
    """
    return [thread for thread in threads_alive() if thread.name == "statelog" and thread not in before]
