"""Leases are written before use, renewed at most every third of their time, and removed at the end."""

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
    """A store with a clock that the test moves, and with a switch that fails every write."""

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
    """A lease with all facts is on the store while it is held, and neither before nor after."""
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
    """A child that leaves its parent's context, as at the end of reading changes, does not remove the lease."""
    store = LocalStore(tmp_path, "log")
    with Hold(store, _TERMS).claim(Needs(7, {0: 5}, 3)) as hold:
        assert in_fork(hold.close) == 0
        assert len(list_leases(store)) == 1
    assert list_leases(store) == []


def test_renewing_is_cheap_and_keeps_the_lease_alive() -> None:
    """A lease renewed every second for ten times its life is written every third of its time, and never expires."""
    scene = _Scene()
    with scene.hold() as hold:
        for _ in range(300):
            scene.now_s += 1.0
            hold.renew()
            (held,) = list_leases(scene.store)
            assert not expired(held.lease, held.modified_s, scene.now_s, cap_s=1000.0)
    assert scene.puts == 1 + 300 // 10


def test_the_store_is_asked_for_its_time_once_a_lease_is_renewed() -> None:
    """The store's time is asked for once, at the first renewal. The cap still counts from when the lease was made."""
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
    """The next renewal writes new offsets and position, and retains the creation time."""
    scene = _Scene()
    with scene.hold() as hold:
        scene.now_s += 10.0
        hold.needs = hold.needs._replace(position=9, next_offsets={0: 8})
        assert hold.renew()
        (held,) = list_leases(scene.store)
    assert (held.lease.position, held.lease.next_offsets, held.lease.created_s) == (9, {0: 8}, 500.0)


def test_what_was_held_is_held_when_the_next_claim_fails() -> None:
    """A failed claim leaves the lease as it was, and renewals repeat only the earlier claim."""
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
    """A failing renewal matters only once the lease has expired. After the store answers again, all is well."""
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
    """A lease that cannot be written raises, and leaves nothing to remove."""
    scene = _Scene()
    scene.down = True
    with pytest.raises(StoreUnavailable):
        scene.hold()
    scene.down = False
    assert list_leases(scene.store) == []


def test_a_lease_that_cannot_be_removed_is_told_and_left_to_expire() -> None:
    """A lease that cannot be removed is a warning and expires: the work under it is done."""
    scene = _Scene()
    hold = scene.hold()
    scene.down = True
    with told("runs out in 30 s"):
        hold.close()
    hold.close()
    (held,) = list_leases(scene.store)
    assert expired(held.lease, held.modified_s, scene.now_s + 31, cap_s=1000.0)


def test_a_damaged_lease_is_told_and_left_out() -> None:
    """An unreadable lease is reported and hides no other."""
    scene = _Scene()
    with scene.hold() as hold:
        scene.store.put("leases/broken.avro", b"not a lease")
        with told("broken"):
            (held,) = list_leases(scene.store)
        assert held.lease.holder == "test"
        assert hold.is_held


@pytest.mark.parametrize("error", [StoreRefused("no right"), StorageFull("no room")])
def test_a_store_that_takes_no_lease_costs_the_lease_and_a_warning(error: Exception) -> None:
    """A reader that may not write, or finds no room, continues with a warning and without a lease."""
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
    """Without a wish for a lease, nothing is written, and nothing warns."""
    scene = _Scene()
    asked = list[str]()
    store = MemoryStore(scene.disk, "log", faults=lambda method, _path: asked.append(method))
    with Hold(store, Terms("test", 30.0, wanted=False)).claim(Needs(0, {})) as hold:
        assert not hold.is_held
    assert asked == []
