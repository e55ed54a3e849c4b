"""A spill queue is a plain queue, whatever its bounds and its disk."""

import tempfile
from collections import deque
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import Corrupt, StorageFull
from statelog.store.disk.spill_queue import SpillQueue, SpillView
from tests.support.faults.spill import Disks

_SIZES = st.one_of(st.integers(0, 40), st.integers(0, 400))
_STEPS = st.lists(
    st.one_of(st.tuples(st.just("put"), _SIZES), st.sampled_from([("take", 0), ("view", 0)])), max_size=80
)


def _frame(number: int, size_bytes: int) -> memoryview:
    return memoryview(number.to_bytes(4, "big") * (size_bytes // 4 + 1))[:size_bytes]


def _queue(disks: Disks, root: str, directories: int, memory_bytes: int, segment_bytes: int) -> SpillQueue:
    paths = tuple(Path(root) / str(number) for number in range(directories))
    for path in paths:
        path.mkdir()
    return SpillQueue(memory_bytes=memory_bytes, segment_bytes=segment_bytes, directories=paths, open_file=disks.open)


@settings(deadline=None, max_examples=100)
@given(steps=_STEPS, directories=st.integers(1, 3), memory=st.integers(0, 300), segment=st.integers(1, 500))
def test_it_is_a_queue_within_its_memory(
    steps: list[tuple[str, int]], directories: int, memory: int, segment: int
) -> None:
    """Frames come out in order, views show the rest, memory stays in its bounds, and the disk ends empty."""
    disks, model, taken = Disks(), deque[bytes](), b""
    views: list[tuple[SpillView, list[bytes]]] = []
    with tempfile.TemporaryDirectory() as root:
        queue = _queue(disks, root, directories, memory, segment)
        for number, (act, size_bytes) in enumerate(steps):
            if act == "put":
                queue.put(_frame(number, size_bytes))
                model.append(bytes(_frame(number, size_bytes)))
            elif act == "take":
                data = queue.take(0)
                assert (None if data is None else bytes(data)) == (model[0] if model else None)
                taken = model.popleft() if model else b""
            else:
                views.append((queue.view(), ([taken] if taken else []) + list(model)))
            _check_bounds(queue, disks, memory, max((len(frame) for frame in [taken, *model]), default=0))
        queue.end()
        rest = [bytes(data) for data in iter(queue.take, None)]
        assert rest == list(model)
        assert queue.is_drained
        queue.close()
        for view, expected in views:
            assert [bytes(data) for data in view if data] == [data for data in expected if data]
            view.close()
        assert (disks.open_files, sum(disks.used_bytes.values())) == (0, 0)
        assert not [path for path in Path(root).rglob("*") if path.is_file()]


def _check_bounds(queue: SpillQueue, disks: Disks, memory: int, largest: int) -> None:
    now = queue.statistics()
    assert now.memory_bytes <= max(memory, largest)
    assert now.disk_bytes <= sum(disks.used_bytes.values())
    assert not [path for directory in disks.opened for path in directory.iterdir()]


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=30),
    directories=st.integers(1, 3),
    segment=st.integers(1, 500),
    room=st.integers(0, 1500),
)
def test_a_full_disk_is_told_and_loses_nothing(sizes: list[int], directories: int, segment: int, room: int) -> None:
    """A put that does not fit into any directory is StorageFull and leaves no trace; all stored frames come out."""
    disks = Disks(room_bytes=room)
    with tempfile.TemporaryDirectory() as root:
        queue = _queue(disks, root, directories, 0, segment)
        kept: list[bytes] = []
        for number, size_bytes in enumerate(sizes):
            data, used = _frame(number, size_bytes), sum(disks.used_bytes.values())
            try:
                queue.put(data)
            except StorageFull:
                assert sum(disks.used_bytes.values()) == used
                assert all(room - held < size_bytes + 16 for held in disks.used_bytes.values())
                continue
            kept.append(bytes(data))
        queue.end()
        assert [bytes(data) for data in iter(queue.take, None)] == kept
        queue.close()
        assert disks.open_files == 0


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=20),
    segment=st.integers(1, 500),
    place=st.floats(0, 1, exclude_max=True),
    cuts=st.booleans(),
)
def test_damage_is_never_skipped(sizes: list[int], segment: int, place: float, cuts: bool) -> None:
    """A flipped bit or a cut file is Corrupt, again and again; on a repaired disk no frame is missing."""
    disks = Disks()
    with tempfile.TemporaryDirectory() as root:
        queue = _queue(disks, root, 1, 0, segment)
        frames = [bytes(_frame(number, size_bytes)) for number, size_bytes in enumerate(sizes)]
        for data in frames:
            queue.put(memoryview(data))
        queue.end()
        at = int(place * (len(frames[0]) + 16))
        disks.cut_at, disks.flip_at = (at, None) if cuts else (None, at)
        for _ in range(2):
            try:
                queue.take()
            except Corrupt as error:
                assert error.hint
            else:
                raise AssertionError("a damaged frame came out")
        disks.cut_at = disks.flip_at = None
        assert [bytes(data) for data in iter(queue.take, None)] == frames
        queue.close()
