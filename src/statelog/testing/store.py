"""The in-memory twin of the store port, for tests and for the simulation of a whole system.

Owns a `MemoryDisk` that any number of `MemoryStore` handles share, as processes share a bucket. A hook decides for each
call whether it fails, before or after its effect. A disk can be full, its files can be damaged on purpose, and it can
stop honouring put-if-absent, as a reconfigured gateway may. The clock is a parameter. Otherwise the twin keeps every
promise of the port, and has no outcome that a real store lacks.

Invariants: all files change under one lock and are immutable bytes, so no torn file is ever visible.
"""

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from threading import RLock
from typing import BinaryIO, NamedTuple

from statelog.errors import AlreadyExists, NotFound, StorageFull, StoreUnavailable
from statelog.schemas.names import check_name
from statelog.store.port import FileInfo, Store
from statelog.store.url import check_path


class Fault(Enum):
    """The fault of one call. Each raises StoreUnavailable."""

    BEFORE = "before"
    """The call has no effect, now or later."""
    AFTER = "after"
    """The call took effect, and the answer was lost."""
    LATE = "late"
    """The call takes effect at the disk's `settle`: a write whose connection broke, but which went on."""


FaultHook = Callable[[str, str], Fault | None]
"""Called once per call with the method's name and the path, before anything happens. It may also block or raise."""


class _File(NamedTuple):
    data: bytes
    modified_s: float


def no_store_faults(_method: str, _path: str) -> Fault | None:
    """Let every call succeed."""
    return None


class MemoryDisk:
    """Files by full path ('<log>/<path>'), shared by stores and threads. `capacity_bytes` None is unlimited."""

    def __init__(self, clock: Callable[[], float], *, capacity_bytes: int | None = None) -> None:
        self.clock = clock
        self.capacity_bytes = capacity_bytes
        self.honours_absence = True
        """If False, the store breaks put-if-absent: every create overwrites, and reports success."""
        self._lock = RLock()
        self._files: dict[str, _File] = {}
        self._late: list[Callable[[], None]] = []
        self._tokens = 0

    def next_token(self) -> str:
        """Return a new name; a counter, so that the same run makes the same names."""
        with self._lock:
            self._tokens += 1
            return str(self._tokens)

    def used_bytes(self) -> int:
        """Return the total size of all files."""
        with self._lock:
            return sum(len(file.data) for file in self._files.values())

    def write(self, path: str, data: bytes, *, absent: bool) -> None:
        """Write a whole file. Raises AlreadyExists if it must be `absent` and is not, StorageFull without effect."""
        with self._lock:
            old = self._files.get(path)
            if absent and old is not None and self.honours_absence:
                raise AlreadyExists(f"{path} exists already", path=path)
            grown = self.used_bytes() + len(data) - (len(old.data) if old else 0)
            if self.capacity_bytes is not None and grown > self.capacity_bytes:
                raise StorageFull("The disk is full", path=path, capacity_bytes=self.capacity_bytes)
            self._files[path] = _File(bytes(data), self.clock())

    def get(self, path: str) -> bytes:
        """Return the bytes of a file. Raises NotFound."""
        with self._lock:
            if path not in self._files:
                raise NotFound(f"There is no {path}", path=path)
            return self._files[path].data

    def remove(self, path: str) -> None:
        """Delete a file if it exists: for a store, or for a test as damage."""
        with self._lock:
            self._files.pop(path, None)

    def files(self, prefix: str) -> list[FileInfo]:
        """Return all files whose full path starts with `prefix`."""
        with self._lock:
            return [FileInfo(p, len(f.data), f.modified_s) for p, f in self._files.items() if p.startswith(prefix)]

    def postpone(self, effect: Callable[[], None]) -> None:
        """Postpone an effect until `settle`."""
        with self._lock:
            self._late.append(effect)

    def settle(self) -> int:
        """Apply every late write, in order, and return their number. Writes that lose or do not fit change nothing."""
        with self._lock:
            late, self._late = self._late, []
        for effect in late:
            try:
                effect()
            except (AlreadyExists, StorageFull):
                # Its caller got StoreUnavailable long ago.
                continue
        return len(late)

    def flip_byte(self, path: str, index: int) -> None:
        """Damage: invert all bits of the byte at `index` (from the end if negative). Raises NotFound, IndexError."""
        data = bytearray(self.get(path))
        data[index] ^= 0xFF
        self._damage(path, bytes(data))

    def truncate(self, path: str, size_bytes: int) -> None:
        """Damage: cut a file to its first `size_bytes`. Raises NotFound."""
        self._damage(path, self.get(path)[:size_bytes])

    def _damage(self, path: str, data: bytes) -> None:
        with self._lock:
            self._files[path] = _File(data, self._files[path].modified_s)


class MemoryStore(Store):
    """One process's handle on a log's directory of a `MemoryDisk`: faults are per handle, files are shared."""

    def __init__(self, disk: MemoryDisk, log: str, *, faults: FaultHook = no_store_faults) -> None:
        self.disk = disk
        """The disk, for damage and for further handles."""
        self._prefix = f"{check_name('log', log)}/"
        self._faults = faults

    @property
    def url(self) -> str:
        """A URL for people; it cannot be opened."""
        return f"memory://twin/{self._prefix.rstrip('/')}"

    def check(self) -> None:
        """Prove put-if-absent, with faults as in any call."""
        self.prove(self.disk.next_token())

    def put(self, path: str, data: bytes) -> None:
        """Write or replace a file."""
        self._effect("put", check_path(path), lambda: self.disk.write(self._prefix + path, data, absent=False))

    def upload(self, local: Path, path: str) -> None:
        """Copy a local file onto the disk."""
        check_path(path)
        with self._guard("upload", path, reading=False):
            data = local.read_bytes()
        self._effect("upload", path, lambda: self.disk.write(self._prefix + path, data, absent=False))

    def download(self, path: str, local: Path) -> None:
        """Copy a file to a local path."""
        local.write_bytes(self._bytes_of("download", check_path(path)))

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Return a reader of the file's current bytes."""
        return io.BytesIO(self._bytes_of("open", check_path(path)))

    def free_bytes(self) -> int | None:
        """Return the disk's free space, if it is bounded."""
        self._ask("free_bytes", "")
        limit = self.disk.capacity_bytes
        return None if limit is None else max(0, limit - self.disk.used_bytes())

    def now_s(self) -> float:
        """Return the time of the disk's clock."""
        self._ask("now_s", "")
        return self.disk.clock()

    def _create(self, path: str, data: bytes) -> None:
        self._effect("put_if_absent", path, lambda: self.disk.write(self._prefix + path, data, absent=True))

    def _read(self, path: str) -> bytes:
        return self._bytes_of("read", path)

    def _delete(self, path: str) -> None:
        self._effect("delete", path, lambda: self.disk.remove(self._prefix + path))

    def siblings(self) -> Sequence[str]:
        """Return the first parts of all paths on the disk."""
        self._ask("list", "..")
        return sorted({info.path.partition("/")[0] for info in self.disk.files("")})

    def _files(self, prefix: str) -> Sequence[FileInfo]:
        self._ask("list", prefix)
        found, cut = self.disk.files(self._prefix + prefix), len(self._prefix)
        return [info._replace(path=info.path[cut:]) for info in found]

    def _bytes_of(self, method: str, path: str) -> bytes:
        self._ask(method, path)
        return self.disk.get(self._prefix + path)

    def _ask(self, method: str, path: str) -> None:
        """Make a call without effect: any fault leaves it unanswered."""
        if self._faults(method, path) is not None:
            raise self._unavailable(method, path)

    def _effect(self, method: str, path: str, effect: Callable[[], None]) -> None:
        fault = self._faults(method, path)
        if fault in (None, Fault.AFTER):
            effect()
        if fault is Fault.LATE:
            self.disk.postpone(effect)
        if fault is not None:
            raise self._unavailable(method, path)

    def _unavailable(self, method: str, path: str) -> StoreUnavailable:
        return StoreUnavailable(f"The store does not answer {method}", store=self.url, path=path)
