"""The manifest chain where the store contradicts itself."""

import pytest

from statelog.errors import NotFound, StoreUnavailable
from statelog.schemas.names import MANIFESTS
from statelog.storage.log.files import ManifestChain
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.rigs.log import twin_rig


class _Stale(MemoryStore):
    """Lists manifests that it does not have any more."""

    reads = 0

    def read(self, path: str) -> bytes:
        if path.startswith("manifests/"):
            self.reads += 1
            raise NotFound(f"There is no {path}", path=path)
        return super().read(path)


def test_a_manifest_that_is_listed_and_not_there_is_not_looked_for_for_ever() -> None:
    """A list may be stale for a moment. One that stays so is a store that does not answer."""
    with twin_rig("stale").create() as log:
        store = _Stale(MemoryDisk(lambda: 0.0), "stale")
        store.put(MANIFESTS.path(3), b"m")
        with pytest.raises(StoreUnavailable):
            ManifestChain(store, log.descriptor).newest()
    assert 1 < store.reads < 20
