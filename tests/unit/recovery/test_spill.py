"""The spill queue: bad settings, waiting, ownership of its files, and that they never have a name."""

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

from statelog.errors import ClosedError, ConfigError, Corrupt, StoreUnavailable
from statelog.recovery.cursor import Applied, decode_frame, encode_frame
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.ledger.place import Place
from statelog.store.disk import spill_queue
from statelog.store.disk.spill import SpillSegment
from statelog.store.disk.spill_queue import SpillQueue
from tests.support.faults.spill import Disks
from tests.support.processes.starts import in_fork

_PATIENCE_S = 60.0


def _queue(directory: Path, disks: Disks, *, memory_bytes: int = 0, segment_bytes: int = 100) -> SpillQueue:
    return SpillQueue(
        memory_bytes=memory_bytes, segment_bytes=segment_bytes, directories=(directory,), open_file=disks.open
    )


def _leave_files_to_open(count: int) -> None:
    """Bring this process to its limit of open files, except for `count`. Only for a child process."""
    gc.freeze()  # The parent's garbage would close files, and so make room, at any moment.
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + count + 1  # noqa: PTH208 - names, not paths
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.dup(0))
    for descriptor in held[-count:]:
        os.close(descriptor)


def test_directories_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """No directory, a missing one and a file in its place are ConfigError before anything is read."""
    (tmp_path / "file").touch()
    for directories in ((), (tmp_path / "none",), (tmp_path / "file",)):
        with pytest.raises(ConfigError) as caught:
            SpillQueue(memory_bytes=0, segment_bytes=100, directories=directories)
        assert "spill_directories" in caught.value.hint


def test_a_budget_without_sense_is_refused() -> None:
    """A memory budget below 64 KiB is refused."""
    with pytest.raises(ConfigError):
        RecoverySettings(memory_bytes=65535)


def test_segments_rotate_over_the_directories(tmp_path: Path) -> None:
    """Each full segment is followed by one in the next directory."""
    paths, disks = [tmp_path / "a", tmp_path / "b"], Disks()
    for path in paths:
        path.mkdir()
    queue = SpillQueue(memory_bytes=0, segment_bytes=100, directories=tuple(paths), open_file=disks.open)
    for _ in range(8):
        queue.put(memoryview(bytes(40)))  # 56 bytes with its header: two make a segment.
    assert disks.opened == [*paths, *paths]
    assert (queue.statistics().segments, queue.statistics().disk_bytes) == (4, 8 * 56)
    queue.close()


def test_a_segment_goes_when_its_last_frame_was_taken_and_nobody_looks(tmp_path: Path) -> None:
    """A segment is freed when its last frame was taken.

    A view retains its segments while the queue is drained and closed.
    """
    disks = Disks()
    queue = _queue(tmp_path, disks, segment_bytes=1)
    for number in range(3):
        queue.put(memoryview(bytes([number])))
    queue.take()
    assert disks.open_files == 2
    with queue.view() as view:
        queue.take()
        queue.take()
        assert disks.open_files == 2
        queue.close()
        assert [bytes(data) for data in view] == [b"\x00", b"\x01", b"\x02"]
        assert [bytes(data) for data in view] == [b"\x00", b"\x01", b"\x02"]
    view.close()
    assert disks.open_files == 0
    with pytest.raises(ClosedError):
        next(iter(view))


def test_after_close_everything_is_refused(tmp_path: Path) -> None:
    """Put, offer, take and view of a closed queue raise ClosedError. Closing again does nothing."""
    disks = Disks()
    queue = _queue(tmp_path, disks)
    queue.put(memoryview(b"x"))
    queue.close()
    queue.close()
    assert disks.open_files == 0
    for use in (lambda: queue.put(memoryview(b"x")), lambda: queue.offer(memoryview(b"x"), 0), queue.take, queue.view):
        with pytest.raises(ClosedError):
            use()


def test_a_segment_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    """A segment refuses a frame after its seal, and a reference or a frame after its last release."""
    segment = SpillSegment(tmp_path)
    segment.append(memoryview(b"x"))
    segment.seal()
    with pytest.raises(ClosedError):
        segment.append(memoryview(b"y"))
    segment.release()
    for use in (segment.hold, lambda: segment.read(0)):
        with pytest.raises(ClosedError):
            use()


def test_a_failure_comes_before_what_is_left(tmp_path: Path) -> None:
    """A failed producer side releases everything, and the consumer gets its error."""
    disks = Disks()
    queue = _queue(tmp_path, disks)
    queue.put(memoryview(b"x"))
    queue.fail(StoreUnavailable("test"))
    assert disks.open_files == 0
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            queue.take()


def test_a_read_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    """A disk that fails once costs an error, but not the frame."""
    disks = Disks()
    queue = _queue(tmp_path, disks)
    queue.put(memoryview(b"one"))
    queue.put(memoryview(b"two"))
    held = queue.view()
    disks.cut_at = 0
    with pytest.raises(Exception, match="ends inside a frame"):
        queue.take()
    disks.cut_at = None
    assert [bytes(queue.take() or b"") for _ in range(2)] == [b"one", b"two"]
    held.close()
    queue.close()


def test_an_interrupted_take_misses_nothing_and_keeps_no_room(tmp_path: Path) -> None:
    """Ctrl-C at any call of a take loses no frame and no room: the frame in hand comes first, then the next one."""
    frames, point = [bytes([number]) * 8 for number in range(6)], 0
    while True:
        point, disks = point + 1, Disks()
        queue = _queue(tmp_path, disks, memory_bytes=16, segment_bytes=20)
        for frame in frames:
            queue.put(memoryview(frame))
        queue.end()
        left, taken = [point], list[bytes]()

        def interrupt(frame: FrameType, event: str, _arg: object, left: list[int] = left) -> None:
            caller = frame if event == "c_return" else frame.f_back or frame
            left[0] -= event in ("return", "c_return") and caller.f_code.co_filename == spill_queue.__file__
            if left[0] == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

        while True:
            try:
                sys.setprofile(interrupt if left[0] > 0 else None)
                data = queue.take(0)
                sys.setprofile(None)
            except KeyboardInterrupt:
                data = queue.in_hand if queue.in_hand is not None else queue.take(0)
            if data is None:
                break
            if taken[-1:] != [bytes(data)]:
                taken.append(bytes(data))
        assert (taken, queue.statistics().memory_bytes, disks.open_files) == (frames, 0, 0), point
        queue.close()
        if left[0] > 0:
            return


def test_an_offer_waits_for_room_and_for_the_disk_to_be_drained(tmp_path: Path) -> None:
    """Offered frames never spill: each waits for the disk and the budget, and comes out last."""
    queue = _queue(tmp_path, Disks(), memory_bytes=10)
    queue.put(memoryview(bytes(8)))
    queue.put(memoryview(b"spilled"))
    assert not queue.offer(memoryview(b"x"), 0)
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(queue.offer(memoryview(b"offered"), _PATIENCE_S)))
    thread.start()
    assert [bytes(queue.take() or b"") for _ in range(3)] == [bytes(8), b"spilled", b"offered"]
    thread.join()
    assert done == [True]
    assert queue.statistics().spilled_bytes == len(b"spilled")
    queue.close()


def test_who_waits_is_told_of_the_close(tmp_path: Path) -> None:
    """Closing ends a consumer that waits for a frame, and a producer that waits for room."""
    empty, full = _queue(tmp_path, Disks()), _queue(tmp_path, Disks(), memory_bytes=1)
    full.put(memoryview(b"x"))
    errors: list[BaseException] = []

    def wait_for(use: object) -> None:
        assert callable(use)
        try:
            use()
        except ClosedError as error:
            errors.append(error)

    threads = [
        threading.Thread(target=wait_for, args=[use])
        for use in (empty.take, lambda: full.offer(memoryview(b"y"), _PATIENCE_S))
    ]
    for thread in threads:
        thread.start()
    empty.close()
    full.close()
    for thread in threads:
        thread.join()
    assert len(errors) == 2


_SPILL_AND_WAIT = """
import sys
from pathlib import Path
from types import FrameType
from statelog.store.disk.spill_queue import SpillQueue
queue = SpillQueue(memory_bytes=0, segment_bytes=1 << 20, directories=(Path(sys.argv[1]),))
for _ in range(4):
    queue.put(memoryview(bytes(1 << 20)))
print(queue.statistics().disk_bytes, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    """Segments have no name while they are used, so SIGKILL frees them, too."""
    child = subprocess.Popen(
        [sys.executable, "-c", _SPILL_AND_WAIT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with child:
        assert child.stdout is not None
        assert int(child.stdout.readline()) > 4 << 20
        assert list(tmp_path.iterdir()) == []
        child.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_segments_grow_with_their_number(tmp_path: Path) -> None:
    """Segments grow with their number, since each is an open file, so a long queue has few of them."""
    disks = Disks()
    queue = SpillQueue(memory_bytes=0, segment_bytes=100, directories=(tmp_path,), open_file=disks.open)
    frames = [b"%04d" % number * 25 for number in range(1000)]
    for frame in frames:
        queue.put(memoryview(frame))
    assert disks.open_files < 32 * 6
    queue.end()
    assert [bytes(data) for data in iter(queue.take, None)] == frames
    assert disks.open_files == 0


def test_without_another_file_the_last_segment_grows(tmp_path: Path) -> None:
    """At the process's limit of open files, the last segment grows and nothing is lost.

    Without any file, the error names the limit.
    """

    def child() -> None:
        signal.alarm(30)
        first = SpillQueue(memory_bytes=0, segment_bytes=100, directories=(tmp_path,))
        _leave_files_to_open(4)
        frames = [b"%04d" % number * 25 for number in range(40)]
        for frame in frames:
            first.put(memoryview(frame))
        assert first.statistics().segments < 10
        second = SpillQueue(memory_bytes=0, segment_bytes=100, directories=(tmp_path,))
        with pytest.raises(StoreUnavailable) as caught:
            second.put(memoryview(b"x"))
        assert (caught.value.facts["code"], "ulimit" in caught.value.hint) == ("EMFILE", True)
        first.end()
        assert [bytes(data) for data in iter(first.take, None)] == frames

    assert in_fork(child) == 0


def test_a_frame_of_more_rows_than_bytes_is_corrupt() -> None:
    """A frame of a column of nulls is refused as corrupt: it is tiny, but would take all memory when read."""
    hollow = pa.RecordBatch.from_arrays([pa.nulls(1 << 24)], ["key_group"])
    with pytest.raises(Corrupt):
        decode_frame(encode_frame(hollow, Applied(Place(1))))
