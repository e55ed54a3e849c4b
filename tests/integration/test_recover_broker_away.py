"""Recoveries whose real broker stops answering: closing, and Ctrl-C, do not wait for it; a follower survives it."""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from statelog.environment import Environment, start_thread
from statelog.log import Log, LogOptions
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from tests.support.rigs.history import HistoryRig, Reader
from tests.support.rigs.log import where_at
from tests.support.services.broker import OwnBroker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

_REQUEST_TIMEOUT_MS = "280000"
_AT_ONCE_S = 120.0  # A dead broker costs at least twice as much: the time of one request until it fails.
_PATIENCE_S = 120.0


@pytest.fixture
def rig(own_broker: OwnBroker, log_name: str, tmp_path: Path) -> Generator[HistoryRig]:
    """Yield a log with one commit on a broker of the test's own."""
    with Log.create(
        log_name,
        where_at(own_broker.bootstrap, tmp_path / "root"),
        LogOptions(partitions=2, key_groups=8),
    ) as log:
        rig = HistoryRig(log)
        with Writer(log, "w") as writer:
            rig.commit(writer, 1, [(b"key-%d" % i, b"1") for i in range(100)])
        yield rig


@contextmanager
def _pausing(broker: OwnBroker) -> Generator[Environment]:
    """Yield an environment that pauses the broker when the first thread begins: a claimed plan, and nothing read."""
    is_paused = False

    def start(work: Callable[[], None]) -> None:
        nonlocal is_paused
        if not is_paused:
            broker.pause()
            is_paused = True
        start_thread(work)

    try:
        yield Environment(start=start)
    finally:
        if is_paused:
            broker.resume()


def _wait_for_no_lease(log: Log) -> None:
    wait_for(lambda: not list_leases(log.store), "the lease was never removed", timeout_s=_PATIENCE_S)


@pytest.fixture
def patient(rig: HistoryRig, own_broker: OwnBroker, tmp_path: Path) -> Generator[Log]:
    """Yield the log as a process sees it whose requests wait for long."""
    kafka = {"bootstrap.servers": own_broker.bootstrap, "socket.timeout.ms": _REQUEST_TIMEOUT_MS}
    with Log.open(rig.log.name, where_at(kafka, tmp_path / "root")) as log:
        yield log


def test_closing_a_stream_does_not_wait_for_a_broker(patient: Log, own_broker: OwnBroker) -> None:
    """Closing returns at once; the thread that waits for the broker ends later, and removes the lease then."""
    with _pausing(own_broker) as environment:
        recovery = environment.run(recover, patient)
        stream = recovery.stream()
        assert not stream.wait_fetched(1.0)
        started_s = time.monotonic()
        stream.close()
        recovery.close()
        assert time.monotonic() - started_s < _AT_ONCE_S
    _wait_for_no_lease(patient)


def test_ctrl_c_does_not_wait_for_a_broker(patient: Log, own_broker: OwnBroker) -> None:
    """A real SIGINT in the middle of a read is KeyboardInterrupt at once, and leaves no lease."""
    with _pausing(own_broker) as environment:
        recovery = environment.run(recover, patient)
        ctrl_c = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        started_s = time.monotonic()
        ctrl_c.start()
        with pytest.raises(KeyboardInterrupt):
            recovery.to_dict()
        assert time.monotonic() - started_s < 1.0 + _AT_ONCE_S
        ctrl_c.join()
        assert list_leases(patient.store) == []


@pytest.mark.soak
@pytest.mark.parametrize("how", ["pause", "kill"])
def test_a_follower_outlives_its_broker(rig: HistoryRig, own_broker: OwnBroker, how: str) -> None:
    """A follower survives a broker's absence beyond a request's time-out, within `stall_timeout_s`."""
    reader = Reader()
    with recover(rig.log, settings=RecoverySettings(_tuning=RecoveryTuning(stall_timeout_s=_PATIENCE_S))).follow(
        poll_s=0.1
    ) as stream:
        while not reader.state or not reader.cursor.is_complete:
            reader.apply(next(stream))
        assert stream.wait_fetched(_PATIENCE_S)
        own_broker.pause() if how == "pause" else own_broker.kill()
        assert stream.take(30.0) is None
        assert not stream.has_ended
        own_broker.resume() if how == "pause" else own_broker.restart()
        with Writer(rig.log, "w") as writer:
            rig.commit(writer, 2, [(b"new", b"2")])
        while reader.cursor.position < rig.end():
            portion = stream.take(_PATIENCE_S)
            assert portion is not None
            reader.apply(portion)
    assert reader.state == rig.state_at(rig.end())


@pytest.mark.soak
@pytest.mark.parametrize("how", ["parquet", "rocksdb", "ordered"])
def test_a_tail_of_more_than_two_gibibytes_in_a_partition(rig: HistoryRig, tmp_path: Path, how: str) -> None:
    """Sorted targets take a tail of two gibibytes: on disk within three times `fold_bytes` of Arrow, a process within
    six.

    Arrow's pool counts the fold's memory. The rest is the clients': the fetched records of librdkafka, and the
    allocators' remains of records of a mebibyte, which differ from run to run.
    """
    count, value = 2200, os.urandom(1 << 20)
    with Writer(rig.log, "large", partitions=[0]) as writer:
        keys = [key for key in (b"large-%d" % i for i in range(3 * count)) if rig.partition(key) == 0][:count]
        for number in range(0, count, 100):
            for key in keys[number : number + 100]:
                writer.put(key, key + value)
            writer.commit(checkpoint_id=number + 1)
    settings = RecoverySettings(spill_directories=(tmp_path,))
    recovery = recover(rig.log, settings=settings)
    Path("/proc/self/clear_refs").write_text("5")  # The peak starts again from here.
    before = _peak_bytes()
    if how == "parquet":
        rows = recovery.to_parquet(tmp_path / "state.parquet")
    elif how == "rocksdb":
        rows = recovery.to_rocksdb(tmp_path / "state")
    else:
        rows = recovery.to_arrow(ordered=True).num_rows
    assert rows == len(keys) + 100
    if how != "ordered":
        assert 0 < (pa.default_memory_pool().max_memory() or 0) < 3.2 * settings.fold_bytes
        assert _peak_bytes() - before < 6 * settings.fold_bytes


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
