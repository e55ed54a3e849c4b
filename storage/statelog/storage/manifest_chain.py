"""The manifest chain on the store: list, read, and put the next one if its slot is free.

It executes; which manifests are kept, what a manifest says and what may be deleted is decided in `schemas`.

Invariants:
- A slot is written once. Who put it is told by the nonce inside, never by the outcome of the put.
- "Newest" is the highest number listed; a listing is never cached.
"""

from typing import NamedTuple

from statelog.schemas.errors import AlreadyExists, NotFound, StoreUnavailable
from statelog.schemas.manifest import Manifest
from statelog.schemas.names import manifest_number, manifest_path
from statelog.storage.store import Store

__all__ = ["ManifestChain", "StoredManifest"]


class StoredManifest(NamedTuple):
    """A manifest and the bytes that it was read from (the next one carries their hash)."""

    manifest: Manifest
    data: bytes


class ManifestChain:
    """The `manifests/` folder of one log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def numbers(self) -> list[int]:
        """The numbers that there are, ascending. Raises StoreUnavailable."""
        found = (manifest_number(info.path) for info in self._store.list("manifests/"))
        return sorted(number for number in found if number is not None)

    def read(self, number: int) -> StoredManifest:
        """One manifest. Raises NotFound, CorruptManifest, UnknownFormat, StoreUnavailable."""
        path = manifest_path(number)
        data = self._store.read(path)
        return StoredManifest(Manifest.from_bytes(data, path), data)

    def newest(self) -> StoredManifest | None:
        """The newest manifest, or None before the first."""
        while numbers := self.numbers():
            try:
                return self.read(numbers[-1])
            except NotFound:
                # Only numbers that a newer one replaced are ever deleted: the list is stale, ask again.
                continue
        return None

    def put(self, manifest: Manifest) -> bool:
        """Put a manifest into its slot. True if it is ours that stands there, False if another one does.

        Raises StoreUnavailable if that cannot be told, StorageFull.
        """
        path, data = manifest_path(manifest.number), manifest.to_bytes()
        try:
            self._store.put_if_absent(path, data)
        except (AlreadyExists, StoreUnavailable) as error:
            # A store's client retries below us, so "exists" may be our own write, and a failure may have landed.
            try:
                return self.read(manifest.number).manifest.nonce == manifest.nonce
            except NotFound:
                raise StoreUnavailable("a manifest was neither written nor refused", path=path) from error
        return True
