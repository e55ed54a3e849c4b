"""SIGKILL of workers that send, on a real broker, beside a reader with isolation.level=read_committed.

Each message of the input sends one message. Whatever is killed: each comes out once, in the order of its partition's
commits, and the state is the fold of the input.
"""

import random
import time
from pathlib import Path

import pytest

from tests.support.processes.committed_reader import CommittedReader
from tests.support.processes.group import OUTPUT_PARTITIONS, Group, Member, sent
from tests.support.services.broker import Broker, OwnBroker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

QUICK = {"heartbeat.interval.ms": "300", "session.timeout.ms": "6000"}
NAMES = ("a", "b")
KILLS, SOAK_KILLS = 12, 200
MESSAGES = 40
"""Fed to each partition of the input in each turn."""


class _Storm:
    """Processes of a group that are killed, restarted, joined and asked to leave, turn by turn."""

    def __init__(self, group: Group) -> None:
        self._group, self._chance = group, random.Random()
        self._members: dict[str, Member] = {}
        self.kills = self.rebalances = 0

    def turn(self) -> None:
        """Kill one process at some moment of its work, and start it again. Now and then another one comes or goes."""
        self._start()
        time.sleep(self._chance.random())
        doomed = self._chance.choice(NAMES)
        self._members.pop(doomed).kill()
        self.kills += 1
        if self._chance.random() < 0.15:
            self._move()
        for member in self._members.values():
            if not member.is_away:
                member.check()

    def _start(self) -> None:
        """Start the processes that do not run, as a supervisor does."""
        for name in NAMES:
            if name not in self._members or self._members[name].is_away:
                self._members[name] = self._group.start(name)

    def _move(self) -> None:
        self.rebalances += 1
        guest = self._members.pop("", None)
        if guest is None:
            self._members[""] = self._group.start()
        elif not guest.is_away:
            guest.end()

    def end(self, fed: int, reader: CommittedReader) -> None:
        """Let the rest be processed, and judge what came out."""
        self._start()
        self._group.await_end(fed)
        wait_for(lambda: reader.count >= fed * self._group.partitions, f"only {reader.count} came out", tick_s=0.05)
        for member in self._members.values():
            if not member.is_away:
                member.end()
        _judge(self._group, fed, reader)


def _judge(group: Group, fed: int, reader: CommittedReader) -> None:
    """Check that nothing was lost, nothing came twice, and the order of each partition of the input is kept."""
    time.sleep(0.5)  # A message too many would come now.
    for partition in range(group.partitions):
        values = [one.value or b"" for one in reader.of(partition % OUTPUT_PARTITIONS)]
        mine = [value for value in values if value.startswith(b"%d " % partition)]
        assert mine == [sent(partition, offset) for offset in range(fed)]
    assert reader.count == fed * group.partitions
    assert len({dict(one.headers)["statelog"] for one in reader.records}) == reader.count


def _play(group: Group, kills: int, restart: "OwnBroker | None" = None) -> _Storm:
    storm, fed = _Storm(group), 0
    with group.input() as producer, CommittedReader(group.bootstrap, group.output, OUTPUT_PARTITIONS) as reader:
        while storm.kills < kills:
            group.feed(producer, range(fed, fed + MESSAGES))
            fed += MESSAGES
            storm.turn()
            if restart is not None and storm.kills % 25 == 0 and storm.kills < kills:
                restart.restart()
        storm.end(fed, reader)
    return storm


def test_each_message_comes_out_once_whichever_worker_is_killed(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Workers are killed at any moment, also within transactions: a reader sees each output once, in order."""
    group = Group(
        name=log_name, bootstrap=broker.bootstrap, root=tmp_path / "root", partitions=3, consumer=QUICK, commit_s=0.05,
        sends=True,
    )  # fmt: skip
    _play(group, KILLS)


@pytest.mark.soak
@pytest.mark.parametrize("has_standbys", [False, True], ids=["alone", "standbys"])
def test_two_hundred_kills(own_broker: OwnBroker, log_name: str, tmp_path: Path, has_standbys: bool) -> None:
    """The same with 200 kills, and a broker that is killed and restarted in between."""
    group = Group(
        name=log_name, bootstrap=own_broker.bootstrap, root=tmp_path / "root", partitions=3, consumer=QUICK,
        commit_s=0.05, sends=True, has_standbys=has_standbys, directory=tmp_path / "local" if has_standbys else None,
    )  # fmt: skip
    storm = _play(group, SOAK_KILLS, own_broker)
    assert storm.rebalances > 10
