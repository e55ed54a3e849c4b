"""What travels to the workers of a stage of the Spark engine."""

import random
from pathlib import Path

from statelog.materializer.tasks import Task, TaskOutput
from statelog.schemas.changes.replay_plan import ReplayPlan, WriterLife
from statelog.schemas.ledger.handle import Entry
from statelog.schemas.snapshot.run_ref import Cuts
from statelog.spark.engine import TaskWork
from statelog.spark.option_texts import LogAddress
from statelog.storage.log.where import Where

_SETS = 100_000


def test_tasks_travel_whole_and_small() -> None:
    """The plan of 100,000 change sets, as those of small commits are: less than 3 MB, and the same when it has come."""
    rng, nonce = random.Random(1), b"n" * 16
    listed: dict[Entry, WriterLife] = {}
    life = WriterLife(77, nonce)
    for number in range(_SETS):
        changes = rng.randrange(1, 50)
        entry = Entry(3, number, 1, changes, 130 * changes, number, number + 1, rng.getrandbits(64), b"\xff\x0f")
        listed[entry] = life
    output = TaskOutput(
        start_position=0,
        end_position=_SETS + 1,
        key_groups=range(128),
        level=0,
        value_schema_id=1,
        drop_deletes=True,
        cuts=Cuts(max_bytes=1 << 30),
    )
    task = Task(output=output, replay=ReplayPlan(ranges={3: ((0, _SETS),)}, listed={3: listed}, accepted=()))
    where = LogAddress("planes", Where({"bootstrap.servers": "127.0.0.1:9"}, "/nowhere"))
    work = TaskWork.of(where, Path("/nowhere"), [task, task])
    assert work.task(1) == task
    assert all(len(packed) < 3_000_000 for packed in work.tasks)
