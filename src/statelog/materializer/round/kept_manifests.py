"""The kept manifests that this process has read, so that a round does not read all of them again.

Manifests never change. So one whose file is still listed, with the same size and the same time of its write, says what
it said; that it is still there is asked of the store every time.

Rounds on several threads may share it: one that was given up may still be under way when the next one begins.
"""

import threading
from collections.abc import Collection, Mapping
from typing import NamedTuple

from statelog.errors import NotFound
from statelog.schemas.snapshot.manifest import Manifest, sha256
from statelog.storage.manifest_chain import ManifestChain
from statelog.storage.store import FileInfo

__all__ = ["KeptManifest", "KeptManifests"]

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
