"""The judge of plays: plain code over the twins' contents and all acknowledgements, with a fold of its own.

It believes no report of statelog itself: history is `NaiveFold` over every record that the ledger ever held, and a
state is the commits of history, change by change.

Standing properties: an acknowledged commit is in history exactly once, a refused one is not. Every state read at a
position is history's state there, and a reader that began after an acknowledgement has it. No process gets a damage
error unless something was lost, and in the end no file is left behind. Programs that process an input (`InputJudge`):
each visible state is the fold of the input below its progress, and an owner's state lacks no acknowledged input.
"""

from collections import Counter
from collections.abc import Callable, ItemsView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from statelog.log import Log
from statelog.recovery import RecoverySettings, recover
from statelog.schemas.ledger.records import decode
from statelog.schemas.names import DESCRIPTOR_PATH, ledger_topic
from statelog.schemas.snapshot.manifest import Manifest
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore
from tests.sim.naive_fold import NaiveFold
from tests.sim.world import LOG, State, World
from tests.support.rigs.log import where_at
from tests.support.samples.folds import apply_all

__all__ = [
    "Fact",
    "InputJudge",
    "Processed",
    "check",
    "check_acknowledged",
    "check_end",
    "check_reads",
    "check_warnings",
    "history_of",
]

_HARMLESS = (
    "could not be removed and runs out in",
    "could not be renewed and runs out in",
    "was closed with uncommitted changes",
    "unclosed ",
)
"""The last one comes from dead processes, which close nothing."""


class Fact(NamedTuple):
    """A commit of history: its ledger offset and the tag of the attempt that made it."""

    offset: int
    tag: str


class Processed(Protocol):
    """The result of a program over its input: a table, or a standby."""

    @property
    def progress(self) -> Mapping[str, Any]:
        """Its progress in the input."""
        ...

    def items(self) -> ItemsView[bytes, bytes]:
        """Return the state."""
        ...


@dataclass(slots=True)
class InputJudge:
    """A judge of programs that process an input of which `fold` gives the state below an offset.

    `field` of their progress is the offset up to which they have processed it, and `acknowledged` the highest that a
    commit named.
    """

    fold: Callable[[int], State]
    field: str = "offset"
    acknowledged: int = 0

    def hear(self, offset: int) -> None:
        """Record that the input below this offset is acknowledged."""
        self.acknowledged = max(self.acknowledged, offset)

    def check(self, found: Processed, *, is_owner: bool = True) -> int:
        """Return its offset, after checking that the state is right."""
        offset = int(found.progress.get(self.field, 0))
        missing = f"an acknowledged commit is gone: {offset} < {self.acknowledged}"
        assert not is_owner or offset >= self.acknowledged, missing
        assert dict(found.items()) == self.fold(offset), f"{found!r} is not the state at {offset}"
        return offset

    def check_end(self, log: Log, end: int) -> None:
        """Check that all of the input was processed, and that the log says so behind a barrier.

        Without a barrier a process that has read nothing may believe a deposed leader.
        """
        with recover(log, barrier=True, settings=RecoverySettings(threads=1)) as recovery:
            assert recovery.to_dict() == self.fold(end)
            last = recovery.last_commit("table")
        assert last is not None
        assert last.metadata == {self.field: end}
        assert self.acknowledged <= end


def check(world: World) -> None:
    """Check all invariants of a play in which nothing was lost."""
    history = history_of(world)
    check_acknowledged(world, history)
    check_reads(world, history)
    check_warnings(world.told)
    check_end(world, history)


def history_of(world: World) -> list[Fact]:
    """Return every valid commit that the ledger holds or held below its start, in order."""
    log = _log(world)
    fold = NaiveFold(log.descriptor.identity)
    ledger = world.cluster.log(ledger_topic(LOG), 0)
    for record in ledger.records:
        fold.apply(record.offset, decode(record.value))
    return [Fact(offset, str(commit.read_body().metadata["tag"])) for offset, commit in fold.commits()]


def check_acknowledged(world: World, history: Sequence[Fact]) -> None:
    """Check that acknowledgements and history agree."""
    times = Counter(fact.tag for fact in history)
    assert set(times) <= set(world.attempts), "a commit that nobody tried"
    assert not [tag for tag, count in times.items() if count > 1], "a commit is in history twice"
    facts = set(history)
    for attempt in world.attempts.values():
        if attempt.offset is not None:
            assert Fact(attempt.offset, attempt.tag) in facts, f"acknowledged, and not in history: {attempt}"
        assert not (attempt.refused and attempt.tag in times), f"refused, and in history: {attempt}"
    for writer in ("w", "job"):
        ids = [world.attempts[fact.tag].checkpoint_id for fact in history if world.attempts[fact.tag].writer == writer]
        assert ids == sorted(set(ids)), f"the checkpoints of {writer} do not grow: {ids}"


def check_reads(world: World, history: Sequence[Fact]) -> None:
    """Check that every state given out is history's at its position, and that none is too old."""
    for read in world.reads:
        assert read.state == state_at(world, history, read.position), f"{read.reader} got another state: {read}"
        assert read.position >= read.floor, f"{read.reader} missed an earlier acknowledgement: {read}"


def state_at(world: World, history: Sequence[Fact], position: int) -> State:
    """Return the state that history has at a position."""
    state: State = {}
    for fact in history:
        if fact.offset < position:
            apply_all(state, world.attempts[fact.tag].changes.items())
    return state


def check_warnings(caught: Sequence[str]) -> None:
    """Check that there was no damage warning; a warning of a lease that stays until it expires is harmless."""
    for text in caught:
        assert any(harmless in text for harmless in _HARMLESS), f"a false alarm: {text}"


def check_end(world: World, history: Sequence[Fact]) -> None:
    """Check that the play came to its end, and left no file behind that no manifest names."""
    last = {world.attempts[fact.tag].writer: world.attempts[fact.tag].checkpoint_id for fact in history}
    assert last == {"w": 8, "job": 1}
    assert world.reads[-1].state == state_at(world, history, world.reads[-1].position)
    manifests = _manifests(world)
    assert len(manifests) == 2
    named = {run.path for manifest in manifests for run in manifest.runs}
    named |= {f"manifests/{manifest.number:020d}.avro" for manifest in manifests} | {DESCRIPTOR_PATH}
    there = {info.path.removeprefix(f"{LOG}/") for info in world.disk.files(f"{LOG}/")}
    assert there == named, f"left behind: {there - named}; missing: {named - there}"


def _manifests(world: World) -> list[Manifest]:
    manifests = _log(world).manifests
    return [manifests.read(number) for number in manifests.numbers()]


def _log(world: World) -> Log:
    assert world.nemesis.is_quiet
    kafka, store = MemoryKafka(cluster=world.cluster), MemoryStore(world.disk, LOG)
    return Log.open(LOG, where_at(kafka, store))
