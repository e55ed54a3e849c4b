"""The runs and manifests that this process has read whole, so that each is verified once and not in every round.

Rounds on several threads may share it: one that was given up may still be under way when the next one begins.
"""

import threading
from collections.abc import Collection, Iterable

from statelog.errors import CorruptRun
from statelog.materializer.round.kept_manifests import KeptManifests
from statelog.schemas.snapshot.manifest import RunRef
from statelog.storage.runs.read import read_back
from statelog.storage.store import Store

__all__ = ["VerifiedRuns"]


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
