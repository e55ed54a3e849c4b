"""SIGKILL of a worker with timers, on a real broker: each timer's effect is in the state once, whatever was killed."""

import random
import time
from pathlib import Path

import pytest

import statelog
from tests.support.processes.group import Group
from tests.support.processes.timed import RAN, TimedMember
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

MESSAGES, KILLS = 400, 5
QUICK = {"heartbeat.interval.ms": "300", "session.timeout.ms": "6000"}


@pytest.mark.parametrize("backend", ["dict", "rocksdb"])
def test_timers_run_once_through_kills(broker: Broker, log_name: str, tmp_path: Path, backend: str) -> None:
    """A worker is killed again and again while timers are armed and run: in the end each has run exactly once."""
    group = Group(
        name=log_name,
        bootstrap=broker.bootstrap,
        root=tmp_path / "root",
        partitions=2,
        consumer=QUICK,
        directory=tmp_path / "local" if backend == "rocksdb" else None,
        commit_s=0.05,
    )
    chance, each = random.Random(backend), MESSAGES // (KILLS + 1)
    with group.input() as producer:
        for kill in range(KILLS):
            member = TimedMember(group)
            before = _ran(group)
            group.feed(producer, range(kill * each, (kill + 1) * each))
            wait_for(lambda: _ran(group) > before, "no timer has run")  # noqa: B023 - called at once
            time.sleep(chance.uniform(0.0, 0.3))
            member.kill()
        member = TimedMember(group)
        group.feed(producer, range(KILLS * each, MESSAGES))
        wait_for(lambda: _ran(group) == MESSAGES * group.partitions, "timers are missing", timeout_s=90.0)
        member.end()
    expected = {(one, RAN + b"%d" % number): b"1" for one in range(group.partitions) for number in range(MESSAGES)}
    assert statelog.recovery.read(log_name, group.where).to_dict() == expected


def _ran(group: Group) -> int:
    """Return how many timers have run, by the committed state."""
    try:
        state = statelog.recovery.read(group.name, group.where).to_dict()
    except statelog.errors.NotFound:
        return 0
    return sum(key.startswith(RAN) for _, key in state)
