"""A process whose first query about a partition reaches a deposed leader: nothing was lost, and no error is raised."""

from collections.abc import Callable
from pathlib import Path

import pytest

from statelog.log import Log, LogOptions
from statelog.materializer.round import run_round
from statelog.producer import Writer
from statelog.recovery import recover
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import TRUE, Answer, Call, old
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.rigs.log import settings_for, twin_rig, where_at

_STATE = {b"k%d" % i: b"v" for i in range(9)}


class _OldAnswers:
    """Old answers to the first queries for a topic's ends, once armed."""

    def __init__(self) -> None:
        self.topic, self.count = "", 0

    def __call__(self, call: Call) -> Answer:
        if (call.method, call.topic) != ("offsets", self.topic) or self.count == 0:
            return TRUE
        self.count -= 1
        return old(1000)


def _recover(log: Log) -> None:
    assert recover(log).to_dict() == _STATE


def _open_writer(log: Log) -> None:
    with Writer(log, "w") as writer:
        assert writer.last_commit is not None
        assert writer.last_commit.checkpoint.id == 9


@pytest.mark.parametrize("do", [_recover, _open_writer])
@pytest.mark.parametrize("topic", ["old", "old.ledger"])
def test_a_first_answer_that_is_old_is_no_loss(do: Callable[[Log], None], topic: str) -> None:
    """An old first answer is no loss: readers and openers know the ledger or the newest snapshot, and ask again."""
    answers = _OldAnswers()
    cluster, disk = MemoryCluster(questions=answers), MemoryDisk(lambda: 0.0)

    def place() -> tuple[MemoryKafka, MemoryStore]:
        return MemoryKafka(cluster=cluster), MemoryStore(disk, "old")

    kafka, store = place()
    with (
        Log.create("old", where_at(kafka, store), LogOptions(partitions=2)) as log,
        Writer(log, "w") as writer,
    ):
        for i, (key, value) in enumerate(_STATE.items(), 1):
            writer.put(key, value)
            writer.commit(checkpoint_id=i)

    kafka, store = place()
    with Log.open("old", where_at(kafka, store)) as log:
        answers.topic, answers.count = topic, 3
        do(log)
        assert answers.count < 3


def test_a_first_answer_below_the_newest_snapshot_is_no_loss(tmp_path: Path) -> None:
    """A first answer below the newest snapshot is no loss: a client that starts from it asks again."""
    answers = _OldAnswers()
    rig = twin_rig("old", cluster=MemoryCluster(questions=answers))
    with rig.create() as log, Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        writer.commit()
        run_round(log, settings_for(tmp_path))
    with rig.open() as log:
        answers.topic, answers.count = log.ledger_topic, 3
        assert log.describe().state.commits["w"].checkpoint.id == 1
        assert answers.count < 3
