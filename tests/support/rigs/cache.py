"""A recovery cache over an in-memory store: runs of arbitrary bytes, a clock that stands still, and gates."""

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
    """A gate where downloads wait until it is opened. The first download sets `reached`."""

    def __init__(self) -> None:
        self.reached = Event()
        self._open = Event()

    def wait(self) -> None:
        """Wait, as a download."""
        self.reached.set()
        assert self._open.wait(_DEADLINE_S), "nobody opened the gate"

    def open(self) -> None:
        """Let all downloads pass, now and later."""
        self._open.set()

    def await_reached(self) -> None:
        """Await a download at the gate."""
        assert self.reached.wait(_DEADLINE_S), "no download came"


class CacheRig:
    """One cache of log `rig` below `base`, and its downloads."""

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
        """Return the time, which changes only when a test sets it."""
        self.on_clock()
        return self.now_s

    def put(self, name: str, data: bytes) -> RunFile:
        """Put a run of exactly these bytes into the store."""
        run = run_of(name, data)
        self.disk.write(f"rig/{run.path}", data, absent=True)
        return run

    def read(self, run: RunFile) -> bytes:
        """Open a run through the cache, read all of it, and close it."""
        with self.cache.open(self.store, run) as file:
            return file.read()

    def files(self) -> list[int]:
        """Return the sizes of all runs and partial downloads below the base."""
        return sorted(path.stat().st_size for path in self.base.rglob("*") if path.suffix in (".run", ".partial"))

    def _count(self, method: str, path: str) -> Fault | None:
        if method == "download":
            self.downloads[path] += 1
            self.on_download(path)
        return None


def run_of(name: str, data: bytes) -> RunFile:
    """Return the facts of a run with these bytes, and with an index that no reader could use."""
    sha256 = hashlib.sha256(data).digest()
    return RunFile(path=f"runs/{name}.parquet", size_bytes=len(data), rows=0, sha256=sha256, index=_NO_INDEX)


def janitors(before: Collection[Thread] = ()) -> list[Thread]:
    """Return the cache threads that are alive in this process, without the ones that were alive before a test.

    A Kafka client of an earlier test may still be closing on a thread of the same name.
    """
    return [thread for thread in threads_alive() if thread.name == "statelog" and thread not in before]
