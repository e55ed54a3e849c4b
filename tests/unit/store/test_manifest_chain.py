"""The manifest chain where the store contradicts itself."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.errors import CorruptManifest, NotFound, StoreUnavailable
from statelog.materializer.round import run_round
from statelog.schemas.names import MANIFESTS
from statelog.schemas.snapshot.manifest import Manifest
from statelog.store.files import ManifestChain
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.rigs.log import TwinLog, settings_for, twin_rig
from tests.support.waiting import Compared


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


def test_of_two_threads_that_see_a_manifest_at_once_the_newer_one_stays_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the store went back behind it is noticed, also if the older one was noted last."""
    twin = TwinLog()
    with twin.open() as log, ThreadPoolExecutor(1) as rival:
        for turn in range(3):
            twin.write({b"a": str(turn).encode()})
            twin.environment.run(run_round, log, settings_for(tmp_path))
        chain, second, third = ManifestChain(log.store, log.descriptor), log.manifests.read(2), log.manifests.read(3)
        number = Compared(2)
        number.meanwhile = []
        begins: list[Callable[[], object]] = [lambda: wait([rival.submit(chain.put, third)], 0.2)]

        def read(_: int) -> Manifest:
            number.meanwhile, begins[:] = begins[:], []
            return second if number.meanwhile else third

        monkeypatch.setattr(chain, "read", read)
        chain.put(replace(second, number=number))
        monkeypatch.undo()
        rival.shutdown()
        twin.disk.remove(f"log/{MANIFESTS.path(3)}")
        with pytest.raises(StoreUnavailable, match="the store went back"):
            chain.newest()


def test_a_manifest_that_is_listed_as_it_was_is_not_read_again(tmp_path: Path) -> None:
    """It never changes: one of another time is another file, and one that is gone, or is damaged, is noticed."""
    twin, reads = TwinLog(), list[str]()
    twin.write({b"a": b"1"})
    twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    store = MemoryStore(twin.disk, "log", faults=lambda method, path: reads.append(path) if method == "read" else None)
    chain = ManifestChain(store, twin.open().descriptor)

    def read() -> Manifest:
        return chain.read(1, listed=chain.listed()[1])

    first = read()
    assert read() is first
    assert chain.find(1) == first, "without a listing it is read"
    assert read() == first
    assert reads == [MANIFESTS.path(1)] * 2
    twin.now_s += 1.0
    store.put(MANIFESTS.path(1), replace(first, nonce=bytes(16)).to_bytes())
    assert read() == replace(first, nonce=bytes(16))
    twin.disk.flip_byte(f"log/{MANIFESTS.path(1)}", -40)
    with pytest.raises(CorruptManifest):
        chain.newest()
    with pytest.raises(CorruptManifest):
        read()
