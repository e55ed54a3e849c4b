"""Any number of writers and readers over one log, key groups re-assigned at every restart.

A job counts events. It is restarted with another number of workers again and again, while the earlier ones are still
running. Workers die between any two steps, rounds roll up and truncate, readers restore any share of the state. The
counts always equal the committed events: nothing lost, nothing counted twice, nothing of a zombie.
"""

import re
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.schemas.key_groups import share
from tests.sim.plays.rescale import KEY_GROUPS, PARTITIONS, Care, RescaleWorld, first_key
from tests.support.rigs.log import TwinLog

DEATHS = ("",) * 4 + Writer.CRASH_POINTS[1:]
events = st.integers(0, 6)


class RescaleMachine(RuleBasedStateMachine):
    """Restarts, steps, deaths, zombies, rounds and readers in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self._world = RescaleWorld(Path(self._scratch.name))

    def teardown(self) -> None:
        """Check once more that the whole state is right."""
        self._world.read(2)
        self._scratch.cleanup()

    @rule(
        workers=st.integers(1, PARTITIONS),
        zombies=st.lists(st.tuples(st.integers(0, 9), events), max_size=4),
        data=st.data(),
    )
    def restart(self, workers: int, zombies: list[tuple[int, int]], data: st.DataObject) -> None:
        """Start another number of workers one by one; the earlier ones run on meanwhile, some of them unharmed."""
        world = self._world
        for worker in list(world.workers):
            world.leave(worker)
        for number in data.draw(st.permutations(range(workers))):
            world.open(number, workers)
            if number < len(zombies):
                which, events = zombies[number]
                self._step_zombie(which, events, "")

    @precondition(lambda self: self._world.workers)
    @rule(which=st.integers(0, PARTITIONS - 1), events=events, dies_at=st.sampled_from(DEATHS))
    def work(self, which: int, events: int, dies_at: str) -> None:
        """Step a worker, which may die on the way; nobody has its share then."""
        workers = self._world.workers
        self._world.step(workers[which % len(workers)], events, dies_at)

    @precondition(lambda self: self._world.workers)
    @rule(which=st.integers(0, PARTITIONS - 1))
    def replace(self, which: int) -> None:
        """Start one worker a second time, while the first of its name still runs."""
        worker = self._world.workers[which % len(self._world.workers)]
        self._world.leave(worker)
        self._world.open(worker.number, worker.workers)

    @precondition(lambda self: self._world.zombies)
    @rule(which=st.integers(0, 9), events=events, dies_at=st.sampled_from(DEATHS))
    def zombie(self, which: int, events: int, dies_at: str) -> None:
        """Step a worker that was left running."""
        self._step_zombie(which, events, dies_at)

    @rule()
    def materialize(self) -> None:
        """Roll the commits up, and truncate the log below."""
        self._world.round()

    @rule(readers=st.integers(1, KEY_GROUPS + 2))
    def read(self, readers: int) -> None:
        """Compare the union of all shares with the model, also with more readers than key groups."""
        self._world.read(readers)

    def _step_zombie(self, which: int, events: int, dies_at: str) -> None:
        zombies = self._world.zombies
        if zombies:
            self._world.step(zombies[which % len(zombies)], events, dies_at)


def _run(examples: int, steps: int) -> None:
    checked = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # Explaining a failure takes minutes.
        suppress_health_check=[HealthCheck.too_slow],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run_state_machine_as_test(RescaleMachine, settings=checked)


def test_counts_survive_every_rescale() -> None:
    """After any restarts with any parallelism, the state is the one of the committed events."""
    _run(examples=20, steps=25)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_counts_survive_every_rescale_for_long() -> None:
    """Counts survive every rescale over many more and longer histories."""
    _run(examples=1500, steps=60)


def _shrink_and_grow(world: RescaleWorld) -> None:
    """Run four workers, then two, then four again, each of which commits as soon as it has started."""
    for workers in (4, 2, 4):
        for worker in list(world.workers):
            world.leave(worker)
        for number in range(workers):
            world.open(number, workers)
            world.step(world.workers[-1], 3)


@pytest.mark.parametrize("care", [Care.OWN_COMMIT_ONLY, Care.OWN_PARTITIONS_ONLY])
def test_a_careless_job_counts_twice_and_is_found_out(care: Care, tmp_path: Path) -> None:
    """Without either half of the rule for source positions a partition resumes too early, and counts twice."""
    with pytest.raises(AssertionError, match="position"):
        _shrink_and_grow(RescaleWorld(tmp_path, care))


def test_a_careful_job_counts_once(tmp_path: Path) -> None:
    """With both halves of the rule the same history counts once."""
    world = RescaleWorld(tmp_path)
    _shrink_and_grow(world)
    assert world.committed == dict.fromkeys(range(PARTITIONS), 9)
    world.read(3)


def test_the_worked_example_of_the_documentation() -> None:
    """The functions of docs/key-groups.md, as printed, count once with four workers, two, then three."""
    page = (Path(__file__).parents[2] / "docs" / "key-groups.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(def start.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"Counter": Counter, "Writer": Writer, "recover": recover, "share": share}
    exec(program, names)
    twin = TwinLog(partitions=PARTITIONS)
    for workers in (4, 2, 3):
        for worker in range(workers):
            _count_one_more(names, twin, worker, workers)

    with twin.open() as log:
        assert sorted(recover(log).to_dict().values()) == [b"3"] * PARTITIONS


def _count_one_more(names: dict[str, Any], twin: TwinLog, worker: int, workers: int) -> None:
    """Count one event for each partition of a worker's share; its key is the partition's first, its value the count."""
    with twin.open() as log:
        writer, state, positions = names["start"](log, worker, workers)
        for partition in writer.grant.partitions:
            key = first_key(partition)
            assert positions[str(partition)] == int(state.get(key, 0))
            writer.put(key, b"%d" % (int(state.get(key, 0)) + 1))
            positions[str(partition)] += 1
        last = writer.last_commit
        names["commit"](writer, last.checkpoint.id + 1 if last else 1, positions)
        writer.close()
