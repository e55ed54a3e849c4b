"""What this process has read and verified: kept manifests, and runs, so that no round reads all of them again.

Manifests never change. So one whose file is still listed, with the same size and the same time of its write, says what
it said; that it is still there is asked of the store every time.

Rounds on several threads may share both: one that was given up may still be under way when the next one begins.
"""

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from statelog.errors import CorruptRun, NotFound
from statelog.schemas.snapshot.manifest import Manifest, RunRef, sha256
from statelog.storage.log.files import ManifestChain
from statelog.storage.runs.read import read_back
from statelog.storage.store import FileInfo, Store

__all__ = ["KeptManifest", "KeptManifests", "VerifiedRuns"]

_MOST_BYTES = 32 << 20


class KeptManifest(NamedTuple):
    """A manifest, and the hash of its file, which the one that was built on it names."""

    manifest: Manifest
    sha256: bytes


class KeptManifests:
    """Remembers manifests by the listing's entry of their file, up to `most_bytes` of files; others are read again."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._known: dict[FileInfo, KeptManifest] = {}
        self._lock = threading.Lock()

    def read(
        self, chain: ManifestChain, listed: Mapping[int, FileInfo], numbers: Collection[int]
    ) -> list[KeptManifest]:
        """Those of `numbers` that are listed, ascending. One that is gone by now was dropped by a newer winner.

        Raises CorruptManifest, UnknownFormat, StoreUnavailable.
        """
        found: list[KeptManifest] = []
        for number in sorted(numbers & listed.keys()):
            info = listed[number]
            known = self._known.get(info)
            if known is None:
                try:
                    stored = chain.read(number)
                except NotFound:
                    continue
                known = KeptManifest(stored.manifest, sha256(stored.data))
                self._remember(info, known)
            found.append(known)
        return found

    def forget_all_but(self, numbers: Collection[int]) -> None:
        """Forget manifests that are not kept, so that memory does not grow."""
        with self._lock:
            self._known = {info: known for info, known in self._known.items() if known.manifest.number in numbers}

    def _remember(self, info: FileInfo, manifest: KeptManifest) -> None:
        with self._lock:
            if sum(known.size_bytes for known in self._known) + info.size_bytes <= self._most_bytes:
                self._known[info] = manifest


class VerifiedRuns:
    """Remembers by path and sha256. Runs are immutable, so one reading vouches for the content ever after.

    That a file is still there, with its size, is asked of the store every time. `manifests` are those that were
    kept; `may_truncate` says that the right to delete records was proved.
    """

    def __init__(self) -> None:
        self.manifests = KeptManifests()
        self.may_truncate = False
        self._known: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def add(self, runs: Iterable[RunRef]) -> None:
        """Remember runs that were read back elsewhere."""
        with self._lock:
            self._known.update({run.path: run.sha256 for run in runs})

    def check(self, store: Store, runs: Iterable[RunRef]) -> None:
        """Raise CorruptRun unless every run is there and whole; StoreUnavailable if that cannot be checked."""
        sizes = {info.path: info.size_bytes for info in store.list("runs/")}
        for run in runs:
            if sizes.get(run.path) != run.size_bytes:
                raise CorruptRun(
                    "a run is missing or has the wrong length",
                    path=run.path,
                    size_bytes=run.size_bytes,
                    found_bytes=sizes.get(run.path, -1),
                    hint="Restore the file from a copy of the store, or recover from another snapshot",
                )
            if self._known.get(run.path) != run.sha256:
                read_back(store, run.file)
                self.add([run])

    def forget_all_but(self, paths: Collection[str]) -> None:
        """Forget runs that no kept manifest names, so that memory does not grow."""
        with self._lock:
            self._known = {path: digest for path, digest in self._known.items() if path in paths}
