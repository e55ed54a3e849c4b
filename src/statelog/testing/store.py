"""The in-memory twin of the store port, for tests and for the simulation of a whole system.

Owns a `MemoryDisk` that any number of `MemoryStore` handles share, as processes share a bucket. A hook decides per
call whether it fails, and on which side of its effect; a disk can be full, its files can be damaged on purpose, and it
can be told to stop honouring put-if-absent, as a gateway does that was set up anew. The clock is a parameter. Apart
from that it keeps every promise of the port, and invents no outcome a real store lacks.

Invariants: all files change under one lock and are immutable bytes, so nothing torn is ever visible.
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
    """What happens to one call. Each of them raises StoreUnavailable."""

    BEFORE = "before"
    """Nothing took effect and nothing will."""
    AFTER = "after"
    """It took effect, and the answer was lost."""
    LATE = "late"
    """It takes effect when the disk is told to `settle`: a write that was cut off, but not stopped."""


FaultHook = Callable[[str, str], Fault | None]
"""Asked once per call with the method's name and the path, before anything happens. It may block or raise, too."""


class _File(NamedTuple):
    data: bytes
    modified_s: float


def no_store_faults(_method: str, _path: str) -> Fault | None:
    """Every call succeeds."""
    return None


class MemoryDisk:
    """Files by full path ('<log>/<path>'), shared by stores and threads. `capacity_bytes` None is unlimited."""

    def __init__(self, clock: Callable[[], float], *, capacity_bytes: int | None = None) -> None:
        self.clock = clock
        self.capacity_bytes = capacity_bytes
        self.honours_absence = True
        """Set to False it is a store that stopped keeping its word: every create overwrites, and says that it won."""
        self._lock = RLock()
        self._files: dict[str, _File] = {}
        self._late: list[Callable[[], None]] = []
        self._tokens = 0

    def next_token(self) -> str:
        """A name that this disk never gave before; counted, so that the same run makes the same names."""
        with self._lock:
            self._tokens += 1
            return str(self._tokens)

    def used_bytes(self) -> int:
        """The size of all files together."""
        with self._lock:
            return sum(len(file.data) for file in self._files.values())

    def write(self, path: str, data: bytes, *, absent: bool) -> None:
        """Write a file whole. Raises AlreadyExists if it must be `absent` and is not, StorageFull with no effect."""
        with self._lock:
            old = self._files.get(path)
            if absent and old is not None and self.honours_absence:
                raise AlreadyExists(f"{path} is there already", path=path)
            grown = self.used_bytes() + len(data) - (len(old.data) if old else 0)
            if self.capacity_bytes is not None and grown > self.capacity_bytes:
                raise StorageFull("The disk is full", path=path, capacity_bytes=self.capacity_bytes)
            self._files[path] = _File(bytes(data), self.clock())

    def get(self, path: str) -> bytes:
        """The bytes of a file. Raises NotFound."""
        with self._lock:
            if path not in self._files:
                raise NotFound(f"There is no {path}", path=path)
            return self._files[path].data

    def remove(self, path: str) -> None:
        """Delete a file, if it is there: by a store, or by a test as damage."""
        with self._lock:
            self._files.pop(path, None)

    def files(self, prefix: str) -> list[FileInfo]:
        """All files whose full path starts with `prefix`."""
        with self._lock:
            return [FileInfo(p, len(f.data), f.modified_s) for p, f in self._files.items() if p.startswith(prefix)]

    def postpone(self, effect: Callable[[], None]) -> None:
        """Keep an effect for `settle`."""
        with self._lock:
            self._late.append(effect)

    def settle(self) -> int:
        """Let every late write arrive now, in order; those that lose or do not fit change nothing. Returns how many."""
        with self._lock:
            late, self._late = self._late, []
        for effect in late:
            try:
                effect()
            except (AlreadyExists, StorageFull):
                # Its caller was told "unavailable" long ago and can hear no more of it.
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
    """One log's directory on a `MemoryDisk`, as one process sees it: faults are per handle, files are shared."""

    def __init__(self, disk: MemoryDisk, log: str, *, faults: FaultHook = no_store_faults) -> None:
        self.disk = disk
        """The disk behind it, for damage and for further handles."""
        self._prefix = f"{check_name('log', log)}/"
        self._faults = faults

    @property
    def url(self) -> str:
        """A URL for people; nothing else can open it."""
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
        """A reader over the bytes that the file has now."""
        return io.BytesIO(self._bytes_of("open", check_path(path)))

    def free_bytes(self) -> int | None:
        """What the disk has left, if it is bounded."""
        self._ask("free_bytes", "")
        limit = self.disk.capacity_bytes
        return None if limit is None else max(0, limit - self.disk.used_bytes())

    def now_s(self) -> float:
        """The disk's clock."""
        self._ask("now_s", "")
        return self.disk.clock()

    def _create(self, path: str, data: bytes) -> None:
        self._effect("put_if_absent", path, lambda: self.disk.write(self._prefix + path, data, absent=True))

    def _read(self, path: str) -> bytes:
        return self._bytes_of("read", path)

    def _delete(self, path: str) -> None:
        self._effect("delete", path, lambda: self.disk.remove(self._prefix + path))

    def siblings(self) -> Sequence[str]:
        """The first parts of all paths on the disk."""
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
        """A call without effect: any fault means that it is not answered."""
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
