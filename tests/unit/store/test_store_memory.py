"""The in-memory store plays faults before and after an effect, late writes, a full disk, and damage."""

from collections.abc import Callable

import pytest

from statelog.errors import AlreadyExists, NotFound, StorageFull, StoreUnavailable
from statelog.testing.store import Fault, MemoryDisk, MemoryStore


def _once(fault: Fault) -> Callable[[str, str], Fault | None]:
    """Return a hook that fails the first call, and no other."""
    faults = iter([fault])
    return lambda _method, _path: next(faults, None)


def _disk(capacity_bytes: int | None = None) -> MemoryDisk:
    return MemoryDisk(lambda: 5.0, capacity_bytes=capacity_bytes)


def test_a_fault_before_the_effect_leaves_nothing() -> None:
    """BEFORE raises, and the file never appears."""
    store = MemoryStore(_disk(), "orders", faults=_once(Fault.BEFORE))
    with pytest.raises(StoreUnavailable):
        store.put_if_absent("a", b"x")
    assert store.disk.settle() == 0
    with pytest.raises(NotFound):
        store.read("a")


def test_a_fault_after_the_effect_leaves_all_of_it() -> None:
    """AFTER raises, but the file is there, whole, as the caller must find out by reading."""
    store = MemoryStore(_disk(), "orders", faults=_once(Fault.AFTER))
    with pytest.raises(StoreUnavailable):
        store.put_if_absent("a", b"x")
    assert store.read("a") == b"x"


def test_a_late_create_arrives_when_settled_and_loses_to_an_earlier_one() -> None:
    """LATE raises, takes effect at `settle`, and respects the slot as it is then."""
    disk = _disk()
    for path in ("free", "taken"):
        with pytest.raises(StoreUnavailable):
            MemoryStore(disk, "orders", faults=_once(Fault.LATE)).put_if_absent(path, b"late")
    other = MemoryStore(disk, "orders")
    other.put_if_absent("taken", b"early")
    assert [info.path for info in other.list()] == ["taken"]
    assert disk.settle() == 2
    assert (other.read("free"), other.read("taken")) == (b"late", b"early")


def test_a_fault_of_a_read_is_unavailable_not_missing() -> None:
    """A failed read is unavailable, whether or not the file exists."""
    store = MemoryStore(_disk(), "orders", faults=lambda _method, _path: Fault.BEFORE)
    for call in (lambda: store.read("a"), lambda: store.open("a"), store.list, store.now_s):
        with pytest.raises(StoreUnavailable):
            call()


def test_the_hook_is_told_what_is_called() -> None:
    """The hook gets method and path of each call, in order."""
    seen: list[tuple[str, str]] = []
    store = MemoryStore(_disk(), "orders", faults=lambda method, path: seen.append((method, path)))
    store.put_if_absent("a", b"x")
    store.read("a")
    store.delete("a")
    assert seen == [("put_if_absent", "a"), ("read", "a"), ("delete", "a")]


def test_a_full_disk_takes_nothing_and_keeps_everything() -> None:
    """A write beyond the capacity raises StorageFull without an effect. Freed space is usable."""
    store = MemoryStore(_disk(capacity_bytes=10), "orders")
    store.put_if_absent("a", b"x" * 6)
    with pytest.raises(StorageFull):
        store.put_if_absent("b", b"x" * 5)
    with pytest.raises(StorageFull):
        store.put("a", b"x" * 11)
    assert [(info.path, info.size_bytes) for info in store.list()] == [("a", 6)]
    store.put("a", b"x" * 10)
    store.delete("a")
    store.put_if_absent("b", b"x" * 10)
    assert store.disk.used_bytes() == 10


def test_damage_changes_what_is_read_and_nothing_else() -> None:
    """A flipped byte, a cut and a removal show in the next read. The times of writing stay."""
    store = MemoryStore(_disk(), "orders")
    store.put_if_absent("a", b"abc")
    store.disk.flip_byte("orders/a", -1)
    assert store.read("a") == b"ab\x9c"
    store.disk.truncate("orders/a", 1)
    assert store.read("a") == b"a"
    assert [info.modified_s for info in store.list()] == [5.0]
    store.disk.remove("orders/a")
    with pytest.raises(NotFound):
        store.read("a")
    with pytest.raises(NotFound):
        store.disk.flip_byte("orders/a", 0)


def test_two_handles_share_the_disk_and_not_the_faults() -> None:
    """Faults belong to one handle, as to one process. The slots belong to all handles."""
    disk = _disk()
    MemoryStore(disk, "orders").put_if_absent("a", b"x")
    broken = MemoryStore(disk, "orders", faults=lambda _method, _path: Fault.BEFORE)
    with pytest.raises(StoreUnavailable):
        broken.read("a")
    with pytest.raises(AlreadyExists):
        MemoryStore(disk, "orders").put_if_absent("a", b"y")
