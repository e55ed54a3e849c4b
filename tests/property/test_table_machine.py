"""Any sequence of calls on a table, next to a plain dict: commits of every kind, undo, restarts, kills, other owners.

The oracle stores the state of every commit by its number, and the messages up to it. Every later incarnation finds a
committed state, not older than the last acknowledged one, and names its number as `progress`. Once it is open, exactly
the messages up to that commit are published.
"""

import tempfile
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from statelog.environment import Environment, inline
from statelog.errors import ClosedError
from statelog.history import source
from statelog.kafka.port import TopicSpec
from statelog.materializer import run_round
from statelog.pending import Pending
from statelog.reading.claims import list_leases
from statelog.recovery import RecoverySettings
from statelog.schemas.key_groups import key_group_of
from statelog.schemas.ledger.state import LastCommit
from statelog.tables import Loading, Table, TableSettings
from statelog.tables.setup import TableTuning
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import Fate, SendAttempt
from statelog.testing.store import MemoryDisk
from tests.support.rigs.log import settings_for, twin_rig
from tests.support.rigs.table import TableRig, content, stalling
from tests.support.samples.folds import apply_all, put_all
from tests.support.told import lines

KEYS = st.sampled_from([b"", b"ab", b"\xff"])
VALUES = st.binary(max_size=3)
BOUNDS = st.none() | KEYS
LOADINGS = st.sampled_from(list(Loading))
CHANGES = st.dictionaries(KEYS, st.none() | VALUES, min_size=1)
TARGET = "target"


class _Slow:
    """Faults where records arrive at once, or wait until they are released: then several commits are in flight."""

    is_slow = False

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the fate that the test wants."""
        return Fate.DELAY if self.is_slow and not attempt.topic.endswith(".ledger") else Fate.DELIVER


class TableMachine(RuleBasedStateMachine):
    """A table, and its expected state."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.now_s = 0.0
        self.faults = _Slow()
        self.cluster = MemoryCluster(faults=self.faults)
        self.rig = twin_rig("log", cluster=self.cluster, disk=MemoryDisk(lambda: 0.0))
        self.model: dict[bytes, bytes] = {}
        self.states: dict[int, dict[bytes, bytes]] = {0: {}}
        self.sends = False
        self.sent: list[bytes] = []
        """The messages up to now, and up to each commit."""
        self.messages: dict[int, list[bytes]] = {0: []}
        self.number = self.acknowledged = 0
        self.under_way: list[tuple[int, Pending[LastCommit]]] = []
        self.loading, self.key_groups_loaded = Loading.FIRST, 1

    @initialize(is_kept=st.booleans(), every=st.booleans(), skips=st.booleans(), loading=LOADINGS, sends=st.booleans())
    def start(self, is_kept: bool, every: bool, skips: bool, loading: Loading, sends: bool) -> None:
        """Start the first incarnation of a new log, whose changes come with messages, or without."""
        self.loading, self.sends = loading, sends
        self.cluster.create(TopicSpec(name=TARGET, partitions=1, replication_factor=1))
        self.tables = TableRig(self.rig, Path(self.scratch.name) / "local" if is_kept else None)
        recovery = RecoverySettings(threads=1, lease_ttl_s=15.0)
        self.settings = TableSettings(
            every_change=every, skip_equal=skips, recovery=recovery, _tuning=TableTuning(commits_under_way_max=3)
        )
        self.table = self.open(self.tables)

    def open(self, tables: TableRig) -> Table[Any, Any]:
        """Open the next incarnation, which finds a committed state."""
        self.faults.is_slow = False
        self.cluster.release()
        environment = Environment(
            clock=lambda: self.now_s, start=inline, crash=stalling(lambda _: None, self.key_groups_loaded)
        )
        table = tables.open(settings=replace(self.settings, loading=self.loading), environment=environment)
        self.number = int(table.progress.get("number", 0))
        assert self.acknowledged <= self.number
        assert self.number in self.states
        self.acknowledged = self.number
        self.states = {number: state for number, state in self.states.items() if number <= self.number}
        self.messages = {number: sent for number, sent in self.messages.items() if number <= self.number}
        self.undo()
        assert self.published() == self.sent
        self.under_way.clear()
        return table

    def undo(self) -> None:
        """Let the model be that of the last commit."""
        self.model, self.sent = dict(self.states[self.number]), list(self.messages[self.number])

    def note(self) -> None:
        """Number the next commit."""
        self.number += 1
        self.states[self.number], self.messages[self.number] = dict(self.model), list(self.sent)

    def published(self) -> list[bytes]:
        """Return what a committed reader sees."""
        return [one.value or b"" for one in self.cluster.outputs(TARGET, 0)]

    # ---- one key, many keys

    def change(self, some: dict[bytes, bytes | None]) -> None:
        """Set or remove some keys, present or not."""
        self.apply(some)
        self.take(some)

    def apply(self, some: dict[bytes, bytes | None]) -> None:
        """Apply the changes to the table."""
        put_all(self.table, some.items())
        if self.sends:
            self.table.send(TARGET, repr(some))

    def take(self, some: dict[bytes, bytes | None]) -> None:
        """Apply the changes to the model."""
        apply_all(self.model, some.items())
        if self.sends and some:
            self.sent.append(repr(some).encode())

    @rule(key=KEYS, start=BOUNDS, end=BOUNDS, groups=st.sets(st.integers(0, 15)))
    def ask(self, key: bytes, start: bytes | None, end: bytes | None, groups: set[int]) -> None:
        """Read one key, the ones between two keys, with a prefix, and of some key groups, in order and in reverse."""
        assert (self.table.get(key), key in self.table) == (self.model.get(key), key in self.model)
        wanted = sorted(key for key in self.model if (start is None or key >= start) and (end is None or key < end))
        assert list(self.table.range(start, end)) == [(key, self.model[key]) for key in wanted]
        assert list(self.table.range(start, end, reverse=True)) == [(key, self.model[key]) for key in wanted[::-1]]
        alike = sorted(one for one in self.model.items() if one[0].startswith(key))
        assert list(self.table.prefix(key)) == alike
        assert list(self.table.prefix(key, reverse=True)) == alike[::-1]
        part = {one: value for one, value in self.model.items() if key_group_of(one, "bytes", 16) in groups}
        assert dict(self.table.items(key_groups=sorted(groups))) == part
        assert self.table.pop(key, None) == self.model.pop(key, None)

    @invariant()
    def shows_the_model(self) -> None:
        """Compare all rows."""
        if hasattr(self, "table"):
            assert content(self.table) == self.model
            assert len(self.table) == len(self.model)
            published = self.published()
            assert published == self.sent[: len(published)]

    # ---- undo

    @rule()
    def rollback(self) -> None:
        """Undo to the last commit, in flight or over."""
        self.table.rollback()
        self.undo()

    @rule(some=CHANGES, stays=st.booleans())
    def transaction(self, some: dict[bytes, bytes | None], stays: bool) -> None:
        """Run a block that ends well, or is undone."""
        with nullcontext() if stays else suppress(KeyError), self.table.transaction():
            self.apply(some)
            if not stays:
                del self.table[b"never there"]
        self.take(some if stays else {})

    # ---- commit

    @rule()
    def arrive(self) -> None:
        """Let the records in flight arrive."""
        self.faults.is_slow = False
        self.cluster.release()

    @precondition(lambda self: len(self.under_way) < 3)
    @rule(some=CHANGES, is_slow=st.booleans())
    def commit_async(self, some: dict[bytes, bytes | None], is_slow: bool) -> None:
        """Commit and go on; from now on commits stay in flight, or arrive at once."""
        self.change(some)
        self.faults.is_slow = is_slow
        self.note()
        self.under_way.append((self.number, self.table.commit_async({"number": self.number})))
        self.hear()

    @rule(some=CHANGES)
    def commit(self, some: dict[bytes, bytes | None]) -> None:
        """Commit, and wait for all."""
        self.change(some)
        self.arrive()
        self.note()
        assert self.table.commit({"number": self.number}).metadata == {"number": self.number}
        self.hear()
        assert not self.under_way
        assert self.table.progress == {"number": self.number}

    @rule(some=CHANGES)
    def commit_late(self, some: dict[bytes, bytes | None]) -> None:
        """Commit by the clock."""
        self.change(some)
        self.arrive()
        self.now_s += 10
        self.note()
        self.table.commit_every(5.0, {"number": self.number})
        self.hear()

    def hear(self) -> None:
        """Take the outcomes, which come in order."""
        over = [commit.is_over for _, commit in self.under_way]
        assert over == sorted(over, reverse=True)
        for number, commit in self.under_way:
            if commit.done():
                self.acknowledged = max(self.acknowledged, number)
        self.under_way = [one for one in self.under_way if not one[1].is_over]

    # ---- incarnations

    @rule()
    def restart(self) -> None:
        """Close the table, which commits all that is in flight."""
        self.rollback()
        self.arrive()
        self.acknowledged = self.number
        self.table.close()
        with pytest.raises(ClosedError):
            self.table.get(b"a")
        self.table = self.open(self.tables)

    @rule()
    def kill(self) -> None:
        """Kill the process, so that only the system closes; sent records arrive, or do not."""
        self.die()
        self.table = self.open(self.tables)

    def die(self) -> None:
        """Drop the table as the memory of a process is dropped."""
        with pytest.raises(RuntimeError), self.table:
            raise RuntimeError

    @rule(key=KEYS, value=VALUES)
    def elsewhere(self, key: bytes, value: bytes) -> None:
        """Take over on another machine, without the directory, and die."""
        self.die()
        rival = self.open(TableRig(self.rig, None))
        rival[key] = self.model[key] = value
        self.note()
        rival.commit({"number": self.number})
        self.acknowledged = self.number
        rival.close()
        self.table = self.open(self.tables)

    @rule(loading=LOADINGS, key_groups=st.integers(1, 5))
    def load(self, loading: Loading, key_groups: int) -> None:
        """Choose for later incarnations when the state is local, and how much of it is loaded by then."""
        self.loading, self.key_groups_loaded = loading, key_groups if loading is Loading.BEHIND else 100

    @rule(is_held=st.booleans())
    def roll_up(self, is_held: bool) -> None:
        """Run a round, with a snapshot and truncation; as if the leases had expired, or not."""
        self.arrive()
        with self.rig.open() as log:
            for lease in () if is_held else list_leases(log.store):
                log.store.delete(lease.path)
            run_round(log, settings_for(Path(self.scratch.name)))

    def teardown(self) -> None:
        """End the last incarnation."""
        if hasattr(self, "table"):
            self.die()
        self.scratch.cleanup()


@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
@pytest.mark.usefixtures("busy_ledger")
def test_one_commit_for_several_checkpoints(is_kept: bool, tmp_path: Path) -> None:
    """Checkpoints that become durable together are history together: with the changes of all, in their order."""
    faults = _Slow()
    rig = twin_rig("log", cluster=MemoryCluster(faults=faults), disk=MemoryDisk(lambda: 0.0))
    with TableRig(rig, tmp_path / "local" if is_kept else None).open() as table:
        faults.is_slow = True
        commits: list[Pending[LastCommit]] = []
        for number in range(3):
            table[b"n"] = table[b"k%d" % number] = b"%d" % number
            commits.append(table.commit_async({"number": number}))
        table.delete(b"k1")
        commits.append(table.commit_async({"number": 3}))
        assert not any(commit.done() for commit in commits)
        faults.is_slow = False
        rig.cluster.release()
        assert len({commit.result().offset for commit in commits}) == 1
        assert table.progress == {"number": 3}
        assert content(table) == {b"n": b"2", b"k0": b"0", b"k2": b"2"}


def _run(examples: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_ASK_AGAIN_S", 0.0)
    checked = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    with lines():  # A directory that is behind truncation is quarantined, with a warning.
        run_state_machine_as_test(TableMachine, settings=checked)


def test_any_sequence_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any sequence of calls agrees with the model: some in every run of the tests."""
    _run(40, 40, monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_sequences_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many long sequences of calls agree with the model."""
    _run(1_000, 60, monkeypatch)
