"""Recovery equals a naive fold of the history, whatever writers, snapshots and truncation did in between."""

import random
import warnings
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import Fenced, NotFound
from statelog.producer.settings import WriterSettings
from statelog.producer.writer import Writer
from statelog.recovery.planning.at import AtCheckpoint, AtPosition
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from tests.support.rigs.history import Committed, HistoryRig, history_rig

_TINY = WriterSettings(roll_rows=3, list_bytes=64, roll_bytes=256, chunk_bytes=96)
_NAMES: tuple[str, ...] = ("A", "B")


@dataclass
class _World:
    """A rig with two writers whose partitions are disjoint, driven by one seed."""

    seed: int
    rig: HistoryRig = field(default_factory=history_rig)
    oldest: int = 0
    """The lowest position that is still held."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.ids: dict[str, int] = dict.fromkeys(_NAMES, 0)
        self.writers = {name: self.open(name) for name in _NAMES}
        keys = [b"key-%d" % i for i in range(40)]
        self.keys = {n: [k for k in keys if self.rig.partition(k) in self.partitions(n)] for n in _NAMES}

    def partitions(self, name: str) -> list[int]:
        return [0, 1] if name == "A" else [2]

    def open(self, name: str) -> Writer:
        return Writer(self.rig.log, name, partitions=self.partitions(name), settings=_TINY)

    def changes(self, name: str) -> list[tuple[Any, Any]]:
        count = self.rng.choice([0, 1, 3, 12])
        found: list[tuple[Any, Any]] = []
        for _ in range(count):
            deletes = self.rng.random() < 0.3
            value = None if deletes else self.rng.randbytes(self.rng.choice([0, 4, 40]))
            found.append((self.rng.choice(self.keys[name]), value))
        return found

    def step(self) -> None:
        name = self.rng.choice(_NAMES)
        acts = [self.commit, self.commit, self.commit, self.orphan, self.fence, self.adopt, self.snapshot]
        self.rng.choice(acts)(name)

    def commit(self, name: str) -> None:
        self.ids[name] += 1
        self.rig.commit(self.writers[name], self.ids[name], self.changes(name), {"id": str(self.ids[name])})

    def orphan(self, name: str) -> None:
        """A life that persists and dies: its chunks are in the log and count for nobody."""
        writer = self.writers[name]
        self.rig.append(writer, self.changes(name))
        writer.persist(self.ids[name] + 1).result()
        writer.close()
        self.writers[name] = self.open(name)

    def fence(self, name: str) -> None:
        """A life that is fenced and commits all the same: its commit is void."""
        old = self.writers[name]
        self.writers[name] = self.open(name)
        self.rig.append(old, [(self.keys[name][0], b"from the fenced writer")])
        try:
            old.commit(self.ids[name] + 1)
        except Fenced:
            old.close()
        else:
            raise AssertionError("the fenced writer was told that it committed")

    def adopt(self, name: str) -> None:
        """A life that persists and dies, and a next one that commits its handle."""
        old, changes = self.writers[name], self.changes(name)
        self.rig.append(old, changes)
        handle = old.persist(self.ids[name] + 1).result()
        old.close()
        self.ids[name] += 1
        self.writers[name] = self.open(name)
        position = self.writers[name].adopt(handle).offset + 1
        self.rig.history.append(Committed(position, name, self.ids[name], changes))

    def snapshot(self, _: str) -> None:
        rig = self.rig
        if rig.manifests and rig.manifests[-1].position == rig.end():
            return
        rig.snapshot(merge=self.rng.random() < 0.4)
        if len(rig.manifests) > 2 and self.rng.random() < 0.5:
            rig.drop(rig.manifests[0])
            rig.truncate(rig.manifests[0])
            self.oldest = rig.manifests[0].position
            for name in _NAMES:
                self.writers[name].close()
                self.writers[name] = self.open(name)

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


def _world(seed: int, steps: int) -> _World:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Writers warn about what they discard; here that is the point.
        world = _World(seed)
        for _ in range(steps):
            world.step()
        world.close()
    return world


_seeds = st.integers(0, 2**32)
_steps = st.integers(0, 30)


@settings(deadline=None, max_examples=60)
@given(seed=_seeds, steps=_steps, fold_bytes=st.sampled_from([1, 1000, 1 << 20]))
def test_recovery_is_the_naive_fold(seed: int, steps: int, fold_bytes: int) -> None:
    """The newest state, as a dict and as a table in and out of order, is the history applied change by change."""
    world = _world(seed, steps)
    rig = world.rig
    recovery = recover(rig.log, settings=RecoverySettings(fold_bytes=fold_bytes))
    expected = rig.state_at(rig.end())
    assert recovery.to_dict() == expected
    rows = sorted((rig.key_group(key), key, value) for key, value in expected.items())
    loose, ordered = recovery.to_arrow(), recovery.to_arrow(ordered=True)
    assert sorted(zip(*(loose.column(i).to_pylist() for i in range(3)), strict=True)) == rows
    assert list(zip(*(ordered.column(i).to_pylist() for i in range(3)), strict=True)) == rows
    assert recovery.position == rig.end()
    assert list(rig.log.store.list("leases/")) == []


@settings(deadline=None, max_examples=40)
@given(seed=_seeds, steps=_steps, picks=st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_any_retained_position_can_be_recovered(seed: int, steps: int, picks: list[float]) -> None:
    """Every position from the oldest retained one to the end gives the state that was there; none below does."""
    world = _world(seed, steps)
    rig, end = world.rig, world.rig.end()
    for pick in picks:
        position = world.oldest + round(pick * (end - world.oldest))
        assert recover(rig.log, at=AtPosition(position)).to_dict() == rig.state_at(position)
    for position in (world.oldest - 1, end + 1):
        if position >= 0:
            try:
                recover(rig.log, at=AtPosition(position))
            except NotFound as error:
                assert error.facts["oldest_position"] == world.oldest
                assert error.facts["newest_position"] == end
            else:
                raise AssertionError(f"position {position} was recovered")


@settings(deadline=None, max_examples=40)
@given(seed=_seeds, steps=_steps)
def test_a_checkpoint_is_the_position_behind_its_commit(seed: int, steps: int) -> None:
    """Every retained checkpoint of every writer is found, and its state is that right behind its commit."""
    world = _world(seed, steps)
    rig = world.rig
    for commit in rig.history:
        at = AtCheckpoint(commit.writer, commit.checkpoint_id)
        if commit.position < world.oldest:
            continue
        recovery = recover(rig.log, at=at)
        assert recovery.position == commit.position
        last = recovery.last_commit(commit.writer)
        assert last is not None
        assert last.checkpoint.id == commit.checkpoint_id
        assert recovery.to_dict() == rig.state_at(commit.position)


@settings(deadline=None, max_examples=40)
@given(seed=_seeds, steps=_steps, groups=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_key_group_subsets_add_up(seed: int, steps: int, groups: list[int]) -> None:
    """Each set of key groups gives exactly its keys, and disjoint sets add up to the whole."""
    world = _world(seed, steps)
    rig, end = world.rig, world.rig.end()
    whole: dict[Any, Any] = {}
    for part in range(3):
        wanted = [group for group, owner in enumerate(groups) if owner == part]
        found = recover(rig.log, key_groups=wanted).to_dict()
        assert found == rig.state_at(end, wanted)
        assert not whole.keys() & found.keys()
        whole.update(found)
    assert whole == rig.state_at(end)
