"""Leases on the store: written before use, renewed at most every third of their time, removed at the end."""

import pytest

from statelog.environment import Environment
from statelog.errors import StorageFull, StoreRefused, StoreUnavailable
from statelog.schemas.names import lease_path
from statelog.schemas.snapshot.claims import expired
from statelog.storage.held_lease import LeaseHolder, list_leases
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from tests.support.told import told


class _Scene:
    """A store with a clock that the test moves, and a switch that makes every write fail."""

    def __init__(self) -> None:
        self.now_s = 500.0
        self.down = False
        self.puts = 0
        self.disk = MemoryDisk(lambda: self.now_s)
        self.store = MemoryStore(self.disk, "log", faults=self._ask)
        self.holder = LeaseHolder.claim(
            self.store,
            holder="test",
            manifest_number=3,
            position=7,
            next_offsets={0: 5},
            ttl_s=30.0,
            environment=Environment(clock=lambda: self.now_s),
        )

    def _ask(self, method: str, _path: str) -> Fault | None:
        self.puts += method == "put"
        return Fault.BEFORE if self.down and method in ("put", "delete") else None


def test_a_lease_lies_on_the_store_while_it_is_held() -> None:
    """Nothing before, one with all facts inside, nothing after."""
    scene = _Scene()
    assert list_leases(scene.store) == []
    with scene.holder as holder:
        (held,) = list_leases(scene.store)
        assert held == (holder.lease, 500.0, lease_path(holder.lease.id))
        assert (held.lease.manifest_number, held.lease.position, held.lease.next_offsets) == (3, 7, {0: 5})
        assert held.lease.created_s == 500.0
    assert list_leases(scene.store) == []


def test_renewing_is_cheap_and_keeps_the_lease_alive() -> None:
    """Renewed every second for ten lives, it is written every third of its time and never expires."""
    scene = _Scene()
    with scene.holder as holder:
        for _ in range(300):
            scene.now_s += 1.0
            holder.renew()
            (held,) = list_leases(scene.store)
            assert not expired(held.lease, held.modified_s, scene.now_s, cap_s=1000.0)
    assert scene.puts == 1 + 300 // 10


def test_a_renewal_carries_what_is_needed_by_then() -> None:
    """New offsets and a new position are in the lease with the next renewal; its creation time stays."""
    scene = _Scene()
    with scene.holder as holder:
        scene.now_s += 10.0
        assert holder.renew(position=9, next_offsets={0: 8})
        (held,) = list_leases(scene.store)
    assert (held.lease.position, held.lease.next_offsets, held.lease.created_s) == (9, {0: 8}, 500.0)


def test_a_failed_renewal_is_borne_while_the_lease_stands() -> None:
    """A store that does not answer matters only once the lease has run out; when it answers again, all is well."""
    scene = _Scene()
    with scene.holder as holder:
        scene.down = True
        scene.now_s += 29.0
        with told("could not be renewed and runs out in 1 s") as texts:
            assert not holder.renew()
            assert not holder.renew()
        assert len(texts) == 1, "one line for each time that it begins to fail"
        scene.now_s += 1.0
        with pytest.raises(StoreUnavailable):
            holder.renew()
        scene.down = False
        assert holder.renew()


def test_a_lease_that_cannot_be_written_is_not_held() -> None:
    """Entering raises, and leaves nothing to remove."""
    scene = _Scene()
    scene.down = True
    with pytest.raises(StoreUnavailable):
        scene.holder.__enter__()
    scene.holder.release()
    assert not scene.holder.renew()


def test_a_lease_that_cannot_be_removed_is_told_and_left_to_expire() -> None:
    """Leaving warns and does not raise: the work under the lease is done."""
    scene = _Scene()
    scene.holder.__enter__()
    scene.down = True
    with told("runs out in 30 s"):
        scene.holder.release()
    scene.holder.release()
    (held,) = list_leases(scene.store)
    assert expired(held.lease, held.modified_s, scene.now_s + 31, cap_s=1000.0)


def test_a_damaged_lease_is_told_and_left_out() -> None:
    """One unreadable lease hides no other."""
    scene = _Scene()
    with scene.holder as holder:
        scene.store.put("leases/broken.avro", b"not a lease")
        with told("broken"):
            found = list_leases(scene.store)
        assert [held.lease for held in found] == [holder.lease]


@pytest.mark.parametrize("error", [StoreRefused("no right"), StorageFull("no room")])
def test_a_store_that_takes_no_lease_costs_the_lease_and_a_warning(error: Exception) -> None:
    """Who may not write, or finds no room, goes on without one: nothing to renew, nothing to remove."""
    scene = _Scene()

    def refuse(method: str, _path: str) -> None:
        if method in ("put", "now_s", "delete"):
            raise error

    holder = LeaseHolder.claim(
        MemoryStore(scene.disk, "log", faults=refuse),
        holder="test", manifest_number=0, position=0, next_offsets={}, ttl_s=30.0,
        environment=Environment(clock=lambda: scene.now_s),
    )  # fmt: skip
    with told("does not wait"), holder:
        assert not holder.is_held
        scene.now_s += 100.0
        assert not holder.renew()
    assert list_leases(scene.store) == []


def test_a_lease_that_nobody_wants_asks_the_store_for_nothing() -> None:
    """Not wanted, it writes nothing and warns of nothing."""
    scene = _Scene()
    asked = list[str]()
    store = MemoryStore(scene.disk, "log", faults=lambda method, _path: asked.append(method))
    with LeaseHolder.claim(
        store,
        holder="test",
        manifest_number=0,
        position=0,
        next_offsets={},
        ttl_s=30.0,
        wanted=False,
        environment=Environment(),
    ) as holder:
        assert not holder.is_held
    assert asked == []
