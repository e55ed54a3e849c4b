"""The manifest chain on a store that contradicts itself."""

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
    """A store that lists removed manifests."""

    reads = 0

    def read(self, path: str) -> bytes:
        if path.startswith("manifests/"):
            self.reads += 1
            raise NotFound(f"There is no {path}", path=path)
        return super().read(path)


def test_a_manifest_that_is_listed_and_not_there_is_not_looked_for_for_ever() -> None:
    """A manifest that stays listed but missing makes the store unavailable. A list may be stale only for a moment."""
    with twin_rig("stale").create() as log:
        store = _Stale(MemoryDisk(lambda: 0.0), "stale")
        store.put(MANIFESTS.path(3), b"m")
        with pytest.raises(StoreUnavailable):
            ManifestChain(store, log.descriptor).newest()
    assert 1 < store.reads < 20


def test_of_two_threads_that_see_a_manifest_at_once_the_newer_one_stays_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two manifests that threads observe concurrently, the newer one counts: a store that goes back is noticed."""
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
    """A manifest that is listed unchanged is not read again.

    Another time means another file, and missing or damaged ones are noticed.
    """
    twin, reads = TwinLog(), list[str]()
    twin.write({b"a": b"1"})
    twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    store = MemoryStore(twin.disk, "log", faults=lambda method, path: reads.append(path) if method == "read" else None)
    chain = ManifestChain(store, twin.open().descriptor)

    def read() -> Manifest:
        return chain.read(1, listed=chain.listed()[1])

    first = read()
    assert read() is first
    assert chain.find(1) == first, "the manifest is read without a listing"
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
