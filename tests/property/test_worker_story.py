"""Workers in a group that decides at any time, next to deaf and stopped ones, on a cluster that loses answers.

In every case each table of a worker is the fold of the input up to its progress, and no committed progress goes back.
In the end the state is the fold of all.
"""

import random

import pytest

from statelog.errors import StatelogError
from statelog.tables.group.schedule import passes
from statelog.testing.faults import Fate, SendAttempt
from tests.sim.plays.workers import PARTITIONS, SteppedWorker, WorkersWorld
from tests.sim.source import WORK
from tests.support.told import told

pytestmark = [
    pytest.mark.usefixtures("impatient"),
    pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges"),  # A loop that stops within a message.
]

WORKERS, END = 3, 60
STORIES = 400


class _Fates:
    """Fates where one send of many fails, while `is_on`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.is_on = False

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the fate of one record."""
        del attempt
        if not self.is_on or self._chance.random() > 0.04:
            return Fate.DELIVER
        return self._chance.choice([Fate.LOSE, Fate.APPEND_UNANSWERED, Fate.SKIP, Fate.FATAL, Fate.ACK_WITHOUT_OFFSET])


class _Story(WorkersWorld):
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fates = _Fates(self.chance)
        super().__init__(self.fates)
        self.group.batch = self.chance.choice([1, 2, 7])

    def run(self, worker: SteppedWorker, messages: int) -> None:
        """Run a worker for some messages, as a user's loop takes them."""
        worker.go_on()
        try:
            for message, table in worker:
                worker.idle_s = 0.0
                offset = message.offset()
                assert offset is not None
                WORK.step(table, offset)
                what = self.chance.random()
                if what < 0.7:
                    worker.commit_every(0.02)
                elif what < 0.8:
                    for one, end in worker.commit().items():
                        assert end <= self.group.ends[one]
                        self.heard[one] = max(self.heard[one], end)
                messages -= 1
                if messages <= 0:
                    return
        except StatelogError as error:
            assert passes(error), repr(error)
            self.end(worker, error)

    def end(self, worker: SteppedWorker, error: BaseException | None = None) -> None:
        """Let a worker leave, or die."""
        del self.workers[worker]
        worker.__exit__(None if error is None else type(error), error, None)


def _act(story: _Story) -> None:
    """Do one random action."""
    chance, group = story.chance, story.group
    what = chance.random()
    member = chance.choice(list(story.workers.values())) if story.workers else None
    if what < 0.10 and len(story.workers) < WORKERS:
        story.start()
    elif what < 0.14 and story.workers:
        story.end(chance.choice(list(story.workers)))
    elif what < 0.17 and story.workers:
        story.end(chance.choice(list(story.workers)), RuntimeError("killed"))
    elif what < 0.25 and member is not None:
        member.is_deaf = not member.is_deaf
        member.calls_losses_revocations = chance.random() < 0.5
    elif what < 0.50 and member is not None:
        partition = chance.randrange(PARTITIONS)
        owner = group.owner.get(partition)
        group.give(partition, member, waits=owner is not None and not owner.is_deaf and chance.random() < 0.8)
    elif what < 0.55:
        story.feed(chance.randrange(1, 6))
    elif story.workers:
        story.run(chance.choice(list(story.workers)), chance.randrange(1, 12))


def _tell(seed: int, acts: int) -> None:
    story = _Story(seed)
    story.feed(END)
    for partition in range(PARTITIONS):
        story.start()
        story.group.give(partition, list(story.workers.values())[partition], waits=True)
    story.fates.is_on = seed % 2 == 0
    for _ in range(acts):
        _act(story)
    story.fates.is_on = False
    for worker in list(story.workers):
        story.end(worker, RuntimeError("killed") if story.chance.random() < 0.5 else None)
    story.start()
    (worker, member), *_ = story.workers.items()
    for partition in range(PARTITIONS):
        story.group.give(partition, member, waits=False)
    story.run(worker, 1_000_000)
    assert worker.commit() == dict(enumerate(story.group.ends))
    for partition, table in worker.tables.items():
        assert dict(table.items()) == WORK.fold(story.group.ends[partition])
    story.end(worker)


def test_any_group() -> None:
    """Any group keeps the fold in short stories, half of them with lost answers."""
    with told("is opened again|lost to the group"):
        for seed in range(4):
            _tell(seed, 40)


@pytest.mark.soak
def test_any_group_for_long() -> None:
    """Any group keeps the fold in many stories."""
    with told("is opened again"):
        for seed in range(1_000, 1_000 + STORIES):
            _tell(seed, 150)
