"""The matrix of losses: with any loss, any regrowth and any snapshot every way in raises or is right.

The exceptions, which Kafka cannot show, are on the list of docs/protocol-losses.md.
"""

from contextlib import closing
from pathlib import Path

import pytest

from statelog.errors import DataLoss
from statelog.history import history
from statelog.log.producers import append_all
from tests.sim.plays.losses import CASES, DOORS, Case, Loss, Verdict, World, verdict
from tests.sim.plays.workers import PARTITIONS, SteppedWorker, WorkersWorld
from tests.sim.source import WORK
from tests.support.rigs.log import TwinRig, twin_rig
from tests.support.told import told

pytestmark = pytest.mark.usefixtures("at_once", "often")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the ledger ten times a second, and not once: each world waits until the last comparison is too old."""
    monkeypatch.setattr(history, "COMPARE_S", 0.1)


class Twins:
    """A world on twins."""

    def __init__(self, case: Case, scratch: Path) -> None:
        self.log: TwinRig = twin_rig("log")
        self.table: TwinRig = twin_rig("table", cluster=self.log.cluster, disk=self.log.disk)
        self.world = World(case, self.log, self.table, scratch)
        self.world.write_first()
        ends = {topic: self._end(*topic) for topic in self._topics()}
        self.world.write_on()
        for topic, end in ends.items():
            self._lose(case.loss, *topic, end)
        self.world.regrow()

    def _topics(self) -> list[tuple[str, int]]:
        return [(f"{name}{suffix}", p) for name in ("log", "table") for suffix, p in (("", 0), ("", 1), (".ledger", 0))]

    def _end(self, topic: str, partition: int) -> int:
        return self.log.cluster.log(topic, partition).end

    def _lose(self, loss: Loss, topic: str, partition: int, end: int) -> None:
        is_data = not topic.endswith(".ledger")
        if loss is Loss.TAIL and is_data:
            return
        if loss is Loss.POWER and is_data:
            end = max(end, self._end(topic, partition) - 1)
        self.log.cluster.lose_tail(topic, partition, end)


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_way_in_is_loud_or_right(case: Case, tmp_path: Path) -> None:
    """On twins every way in raises or is right. Where Kafka shows nothing, clients with a memory raise all the same."""
    silent, strangers = _silent(case, tmp_path)
    assert silent == (strangers if case.hides_from_strangers else set())


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_those_who_remember_are_loud_where_records_carry_changes(case: Case, tmp_path: Path) -> None:
    """Clients with a memory raise where records carry changes, which the ledger lost with its tail.

    Strangers raise while a witness in the data topic is left.
    """
    silent, strangers = _silent(case, tmp_path)
    assert silent in (set(), strangers)
    if case.loss is Loss.TAIL and not case.hides_from_strangers:
        assert not silent


def _silent(case: Case, tmp_path: Path) -> tuple[set[str], set[str]]:
    """Return the ways in without a loss error, and the ones without a memory."""
    with told("the standby of table has failed"):
        world = Twins(case, tmp_path).world
        with world.living:
            found = {name: verdict(world, door) for name, door in DOORS.items()}
    silent = {name for name, one in found.items() if one is Verdict.SILENT}
    return silent, {name for name, door in DOORS.items() if not door.remembers} - {"recover an early state"}


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("junk", [0, 12])
def test_a_worker_ends_on_a_log_that_lost_what_it_committed(junk: int) -> None:
    """A worker ends when it gets a partition of a log that lost its commits, before it processes a message."""
    world = WorkersWorld()
    world.feed(6)
    with _given_all(world) as worker:
        for message, table in worker:
            WORK.step(table, int(message.value() or b""))
            worker.commit()
    cluster = world.rig.cluster
    cluster.lose_tail("log.ledger", 0, cluster.log("log.ledger", 0).end - 5)
    with world.rig.open() as log, closing(log.kafka.producer()) as producer:
        append_all(producer, log.ledger_topic, 0, b"junk", junk)
    processed = 0
    with pytest.raises(DataLoss), _given_all(world) as worker:
        for _ in worker:
            processed += 1
    assert not processed


def _given_all(world: WorkersWorld) -> SteppedWorker:
    worker = world.start()
    for partition in range(PARTITIONS):
        world.group.give(partition, world.workers[worker], waits=True)
    return worker
