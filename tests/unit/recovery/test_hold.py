"""Leases on the store: written before use, renewed at most every third of their time, removed at the end."""

from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import StorageFull, StoreRefused, StoreUnavailable
from statelog.reading.claims import list_leases
from statelog.reading.hold import Hold, Needs, Terms
from statelog.schemas.names import lease_path
from statelog.schemas.snapshot.claims import expired
from statelog.store.local import LocalStore
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from tests.support.processes.starts import in_fork
from tests.support.told import told

_TERMS = Terms("test", 30.0)


class _Scene:
    """A store with a clock that the test moves, and a switch that makes every write fail."""

    def __init__(self) -> None:
        self.now_s = 500.0
        self.down = False
        self.puts = 0
        self.clocks = 0
        self.disk = MemoryDisk(lambda: self.now_s)
        self.store = MemoryStore(self.disk, "log", faults=self._ask)

    def hold(self) -> Hold:
        environment = Environment(clock=lambda: self.now_s)
        return Hold(self.store, _TERMS, environment=environment).claim(Needs(7, {0: 5}, 3))

    def _ask(self, method: str, _path: str) -> Fault | None:
        self.puts += method == "put"
        self.clocks += method == "now_s"
        return Fault.BEFORE if self.down and method in ("put", "delete") else None


def test_a_lease_lies_on_the_store_while_it_is_held() -> None:
    """Nothing before, one with all facts inside, nothing after."""
    scene = _Scene()
    assert list_leases(scene.store) == []
    with scene.hold():
        (held,) = list_leases(scene.store)
        assert held[1:] == (500.0, lease_path(held.lease.id))
        assert (held.lease.holder, held.lease.ttl_s) == ("test", 30.0)
        assert (held.lease.manifest_number, held.lease.position, held.lease.next_offsets) == (3, 7, {0: 5})
        assert held.created_s == 500.0
    assert list_leases(scene.store) == []


def test_a_fork_leaves_its_parents_lease_alone(tmp_path: Path) -> None:
    """A child that leaves the parent's context, as one that ends inside a read of changes does, removes nothing."""
    store = LocalStore(tmp_path, "log")
    with Hold(store, _TERMS).claim(Needs(7, {0: 5}, 3)) as hold:
        assert in_fork(hold.close) == 0
        assert len(list_leases(store)) == 1
    assert list_leases(store) == []


def test_renewing_is_cheap_and_keeps_the_lease_alive() -> None:
    """Renewed every second for ten lives, it is written every third of its time and never expires."""
    scene = _Scene()
    with scene.hold() as hold:
        for _ in range(300):
            scene.now_s += 1.0
            hold.renew()
            (held,) = list_leases(scene.store)
            assert not expired(held.lease, held.modified_s, scene.now_s, cap_s=1000.0)
    assert scene.puts == 1 + 300 // 10


def test_the_store_is_asked_for_its_time_once_a_lease_is_renewed() -> None:
    """Once, and not before: most leases are never renewed. The cap counts from when the lease was made all the same."""
    scene = _Scene()
    with scene.hold() as hold:
        assert scene.clocks == 0
        (held,) = list_leases(scene.store)
        assert [expired(held.lease, held.modified_s, now_s, cap_s=20.0) for now_s in (520.0, 521.0)] == [False, True]
        for _ in range(3):
            scene.now_s += 10.0
            assert hold.renew()
            (held,) = list_leases(scene.store)
            assert (held.lease.created_s, held.modified_s) == (500.0, scene.now_s)
        assert scene.clocks == 1
        assert expired(held.lease, held.modified_s, scene.now_s, cap_s=20.0)


def test_a_renewal_carries_what_is_needed_by_then() -> None:
    """New offsets and a new position are in the lease with the next renewal; its creation time stays."""
    scene = _Scene()
    with scene.hold() as hold:
        scene.now_s += 10.0
        hold.needs = hold.needs._replace(position=9, next_offsets={0: 8})
        assert hold.renew()
        (held,) = list_leases(scene.store)
    assert (held.lease.position, held.lease.next_offsets, held.lease.created_s) == (9, {0: 8}, 500.0)


def test_what_was_held_is_held_when_the_next_claim_fails() -> None:
    """Its renewals say so, too: what was claimed in vain was never looked for."""
    scene = _Scene()
    hold = scene.hold()
    scene.down = True
    with pytest.raises(StoreUnavailable):
        hold.claim(Needs(9, {0: 8}))
    scene.down = False
    scene.now_s += 20
    assert hold.renew()
    assert [(one.lease.position, one.lease.next_offsets) for one in list_leases(scene.store)] == [(7, {0: 5})]


def test_a_failed_renewal_is_borne_while_the_lease_stands() -> None:
    """A store that does not answer matters only once the lease has run out; when it answers again, all is well."""
    scene = _Scene()
    with scene.hold() as hold:
        scene.down = True
        scene.now_s += 29.0
        with told("could not be renewed and runs out in 1 s") as texts:
            assert not hold.renew()
            assert not hold.renew()
        assert len(texts) == 1, "one line for each time that it begins to fail"
        scene.now_s += 1.0
        with pytest.raises(StoreUnavailable):
            hold.renew()
        scene.down = False
        assert hold.renew()


def test_a_lease_that_cannot_be_written_is_not_held() -> None:
    """To hold raises, and leaves nothing to remove."""
    scene = _Scene()
    scene.down = True
    with pytest.raises(StoreUnavailable):
        scene.hold()
    scene.down = False
    assert list_leases(scene.store) == []


def test_a_lease_that_cannot_be_removed_is_told_and_left_to_expire() -> None:
    """Leaving warns and does not raise: the work under the lease is done."""
    scene = _Scene()
    hold = scene.hold()
    scene.down = True
    with told("runs out in 30 s"):
        hold.close()
    hold.close()
    (held,) = list_leases(scene.store)
    assert expired(held.lease, held.modified_s, scene.now_s + 31, cap_s=1000.0)


def test_a_damaged_lease_is_told_and_left_out() -> None:
    """One unreadable lease hides no other."""
    scene = _Scene()
    with scene.hold() as hold:
        scene.store.put("leases/broken.avro", b"not a lease")
        with told("broken"):
            (held,) = list_leases(scene.store)
        assert held.lease.holder == "test"
        assert hold.is_held


@pytest.mark.parametrize("error", [StoreRefused("no right"), StorageFull("no room")])
def test_a_store_that_takes_no_lease_costs_the_lease_and_a_warning(error: Exception) -> None:
    """Who may not write, or finds no room, goes on without one: nothing to renew, nothing to remove."""
    scene = _Scene()

    def refuse(method: str, _path: str) -> None:
        if method in ("put", "now_s", "delete"):
            raise error

    store, environment = MemoryStore(scene.disk, "log", faults=refuse), Environment(clock=lambda: scene.now_s)
    with told("does not wait"), Hold(store, _TERMS, environment=environment).claim(Needs(0, {})) as hold:
        assert not hold.is_held
        scene.now_s += 100.0
        assert not hold.renew()
    assert list_leases(scene.store) == []


def test_a_lease_that_nobody_wants_asks_the_store_for_nothing() -> None:
    """Not wanted, it writes nothing and warns of nothing."""
    scene = _Scene()
    asked = list[str]()
    store = MemoryStore(scene.disk, "log", faults=lambda method, _path: asked.append(method))
    with Hold(store, Terms("test", 30.0, wanted=False)).claim(Needs(0, {})) as hold:
        assert not hold.is_held
    assert asked == []
