"""A broker that is paused in the middle of a call: no log is taken for an empty or a damaged one."""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from statelog.errors import Unavailable
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from tests.support.rigs.log import LogRig, real_rig, settings_for, where_at
from tests.support.services.faulty_broker import FaultyBroker
from tests.support.services.tcp_proxy import Deed

pytestmark = pytest.mark.broker
_REQUEST_TIMEOUT_MS = "500"
_BACK_S = 120.0
T = TypeVar("T")


@pytest.fixture
def rig(faulty_broker: FaultyBroker, log_name: str, tmp_path: Path) -> LogRig:
    """Return a log with five commits."""
    rig = real_rig(log_name, faulty_broker.direct, tmp_path / "root")
    with rig.create(partitions=2) as made, Writer(made, "w") as writer:
        for number in range(1, 6):
            writer.put(b"k%d" % number, b"v")
            writer.commit(checkpoint_id=number)
    return rig


@contextmanager
def _seen(rig: LogRig, broker: FaultyBroker, tmp_path: Path, more: Mapping[str, str]) -> Generator[Log]:
    """Yield the log as a process behind the proxy sees it."""
    kafka = {
        "bootstrap.servers": broker.bootstrap,
        **more,
    }
    with _soon(lambda: Log.open(rig.name, where_at(kafka, tmp_path / "root"))) as log:
        yield log


def _keys(log: Log) -> int:
    with recover(log) as state:
        return len(state.to_dict())


def _checkpoint(log: Log) -> int:
    with Writer(log, "w") as writer:
        assert writer.last_commit is not None
        return writer.last_commit.checkpoint.id


def _calls(log: Log, scratch: Path) -> dict[str, Callable[[], object]]:
    return {
        "offsets": lambda: log.kafka.offsets(log.ledger_topic, [0])[0].end > 5,
        "recover": lambda: _keys(log) == 5,
        "writer": lambda: _checkpoint(log) == 5,
        "round": lambda: run_round(log, settings_for(scratch)),
        "recover with a snapshot": lambda: _keys(log) == 5,
    }


def _soon(call: Callable[[], T]) -> T:
    """Return the answer of a caller that repeats on BrokerUnavailable: its connections have to come back first."""
    deadline_s = time.monotonic() + _BACK_S
    while True:
        try:
            return call()
        except Unavailable:
            if time.monotonic() > deadline_s:
                raise


@pytest.mark.parametrize("stall_s", [0.6, 1.4])
def test_a_stalled_broker_is_unavailable_or_right(
    faulty_broker: FaultyBroker, rig: LogRig, tmp_path: Path, stall_s: float
) -> None:
    """A call to a broker paused for longer than a request may take raises BrokerUnavailable, or is right."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with _seen(rig, faulty_broker, tmp_path, {"socket.timeout.ms": _REQUEST_TIMEOUT_MS}) as log:
        for what, call in _calls(log, scratch).items():
            faulty_broker.broker.pause()
            timer = threading.Timer(stall_s, faulty_broker.broker.resume)
            timer.start()
            try:
                assert call(), what
            except Unavailable:
                pass
            finally:
                timer.join()
            assert _soon(call), what


def test_a_reset_question_is_no_empty_log(faulty_broker: FaultyBroker, rig: LogRig, tmp_path: Path) -> None:
    """A connection reset at any one query for offsets leaves the state whole."""
    with _seen(rig, faulty_broker, tmp_path, {}) as log:
        for at in range(1, 5):
            faulty_broker.proxy.on("list_offsets", Deed.RESET, at=at)
            assert _keys(log) == 5
            faulty_broker.proxy.reset()
