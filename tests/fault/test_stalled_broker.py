"""A broker that is stopped in the middle of a call: no log is taken for an empty or a damaged one."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statelog.errors import Unavailable
from statelog.materializer.round.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.storage.log.log import Log
from tests.support.rigs.log import UNSAFE, settings_for
from tests.support.services.faulty_broker import FaultyBroker
from tests.support.services.tcp_proxy import Deed

pytestmark = pytest.mark.broker
_REQUEST_TIMEOUT_S = 0.5
_BACK_S = 15.0


@pytest.fixture
def log(faulty_broker: FaultyBroker, log_name: str, tmp_path: Path) -> Iterator[Log]:
    """A log with five commits, seen by a process that waits half a second for an answer."""
    timeout_ms = str(int(_REQUEST_TIMEOUT_S * 1000))
    kafka, root = {"bootstrap.servers": faulty_broker.direct}, str(tmp_path / "root")
    with (
        Log.create(log_name, kafka=kafka, root=root, partitions=2, replication_factor=1, allow_unsafe=UNSAFE) as made,
        Writer(made, "w") as writer,
    ):
        for number in range(1, 6):
            writer.put(b"k%d" % number, b"v")
            writer.commit(number)
    settings = {"bootstrap.servers": faulty_broker.bootstrap, "socket.timeout.ms": timeout_ms}
    with Log.open(log_name, kafka=settings, root=root, allow_unsafe=UNSAFE) as opened:
        yield opened


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


def _soon(call: Callable[[], object]) -> object:
    """The answer of a caller who tries again, as BrokerUnavailable says: its connections have to come back first."""
    deadline_s = time.monotonic() + _BACK_S
    while True:
        try:
            return call()
        except Unavailable:
            if time.monotonic() > deadline_s:
                raise


@pytest.mark.parametrize("stall_s", [0.6, 1.4])
def test_a_stalled_broker_is_unavailable_or_right(
    faulty_broker: FaultyBroker, log: Log, tmp_path: Path, stall_s: float
) -> None:
    """Every call that meets a broker which stands still for longer than a request may take says so, or is right."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
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


def test_a_reset_question_is_no_empty_log(faulty_broker: FaultyBroker, log: Log) -> None:
    """One connection that is reset at any one question for offsets: the state is whole."""
    for at in range(1, 5):
        faulty_broker.proxy.on("list_offsets", Deed.RESET, at=at)
        assert _keys(log) == 5
        faulty_broker.proxy.reset()
