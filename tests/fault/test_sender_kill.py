"""SIGKILL of a writer that sends messages, at every named point: what no commit lists never was.

A life sends one message for each number of its source, with the change that counts it, from the position that the log's
last commit names. In the end the messages are the numbers, each once and in order.
"""

import signal
from pathlib import Path

import pytest

from statelog.producer.writer import Writer
from statelog.reading import outputs_between
from tests.support.processes.doomed import NEVER, sender_life
from tests.support.processes.parts import Lives
from tests.support.rigs.kafka import spec_of
from tests.support.rigs.log import LogRig, real_rig
from tests.support.services.broker import Broker

END = 60


def sent(rig: LogRig) -> list[int]:
    """Return the numbers that were sent with a commit, in order."""
    with rig.open() as log:
        parts = list(outputs_between(log, "sender", 0, log.ledger.end()))
    return [int(one.value or b"") for part in parts for one in part.outputs]


@pytest.mark.broker
@pytest.mark.parametrize("inline_bytes", ["0", "16384"])
def test_killed_between_persist_and_commit(
    broker: Broker, lives: Lives, log_name: str, topic_name: str, tmp_path: Path, inline_bytes: str
) -> None:
    """Messages of a life that was killed before its commit never were; those of a commit are there, once."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    rig.create().close()
    with rig.open() as log:
        target = topic_name
        log.kafka.create_topic(spec_of(target))
    arguments = (rig.name, broker.bootstrap, str(tmp_path / "root"), target, inline_bytes)
    points = [point for point in Writer.CRASH_POINTS if point == "opened" or inline_bytes == "0" or "commit" in point]
    for turn, point in enumerate(points):
        assert (
            lives.live(sender_life, *arguments, point, str(2 + turn if point != "opened" else 1), END)
            == -signal.SIGKILL
        )
        now = sent(rig)
        assert now == list(range(len(now)))
        assert rig.state().get(b"count", b"0") == b"%d" % len(now)
    assert 0 < len(sent(rig)) < END
    assert lives.live(sender_life, *arguments, NEVER, "1", END) == 0
    assert sent(rig) == list(range(END))
    assert rig.state() == {b"count": b"%d" % END}
