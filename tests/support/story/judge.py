"""The judge of a story: plain code over what is on the twins and what anybody was told, with a fold of its own.

It believes nothing that statelog says of itself: history is what `NaiveFold` makes of every record that the ledger ever
held, and a state is what the commits of history say, change by change.

Standing properties: an acknowledged commit is in history exactly once, a refused one is not; whatever was read at a
position is history's state there; a reader that began after an acknowledgement has it; nobody is told of damage unless
something was lost; in the end nothing is left behind.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from statelog.schemas.ledger.records import decode
from statelog.schemas.names import DESCRIPTOR_PATH, ledger_topic
from statelog.storage.kafka.memory import MemoryKafka
from statelog.storage.log.log import Log
from statelog.storage.manifest_chain import StoredManifest
from statelog.storage.store.memory import MemoryStore
from tests.support.rigs.log import UNSAFE
from tests.support.story.world import LOG, State, World
from tests.support.worlds.naive_fold import NaiveFold

__all__ = ["Fact", "check_acknowledged", "check_end", "check_reads", "check_warnings", "history_of"]

_HARMLESS = (
    "could not be removed and runs out in",
    "could not be renewed and runs out in",
    "was closed with uncommitted changes",
    "unclosed ",
)
"""The last one is of processes that died, which close nothing."""


class Fact(NamedTuple):
    """A commit of history: its ledger offset and the tag of the attempt that made it."""

    offset: int
    tag: str


def history_of(world: World) -> list[Fact]:
    """Every valid commit that the ledger holds or held below its start, in order."""
    log = _log(world)
    fold = NaiveFold(log.descriptor.identity)
    ledger = world.cluster.log(ledger_topic(LOG), 0)
    for offset, value in zip(ledger.offsets, ledger.values, strict=True):
        fold.apply(offset, decode(value))
    return [Fact(offset, str(commit.read_body().metadata["tag"])) for offset, commit in fold.commits()]


def check_acknowledged(world: World, history: Sequence[Fact]) -> None:
    """Told and true are the same, wherever anybody was told anything."""
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
    """Every state that was handed out is the one that history has at its position, and none is too old."""
    for read in world.reads:
        assert read.state == state_at(world, history, read.position), f"{read.reader} got another state: {read}"
        assert read.position >= read.floor, f"{read.reader} missed what was acknowledged before it began: {read}"


def state_at(world: World, history: Sequence[Fact], position: int) -> State:
    """The state that history has at a position."""
    state: State = {}
    for fact in history:
        if fact.offset < position:
            for key, value in world.attempts[fact.tag].changes.items():
                state.pop(key, None)
                if value is not None:
                    state[key] = value
    return state


def check_warnings(caught: Sequence[str]) -> None:
    """Nobody was told of damage; a lease that stays until it runs out is told, and harmless."""
    for text in caught:
        assert any(harmless in text for harmless in _HARMLESS), f"a false alarm: {text}"


def check_end(world: World, history: Sequence[Fact]) -> None:
    """The story came to its end, and left nothing behind that no manifest names."""
    last = {world.attempts[fact.tag].writer: world.attempts[fact.tag].checkpoint_id for fact in history}
    assert last == {"w": 8, "job": 1}
    assert world.reads[-1].state == state_at(world, history, world.reads[-1].position)
    manifests = [stored.manifest for stored in _manifests(world)]
    assert len(manifests) == 2
    named = {run.path for manifest in manifests for run in manifest.runs}
    named |= {f"manifests/{manifest.number:020d}.avro" for manifest in manifests} | {DESCRIPTOR_PATH}
    there = {info.path.removeprefix(f"{LOG}/") for info in world.disk.files(f"{LOG}/")}
    assert there == named, f"left behind: {there - named}; missing: {named - there}"


def _manifests(world: World) -> list[StoredManifest]:
    manifests = _log(world).manifests
    return [manifests.read(number) for number in manifests.numbers()]


def _log(world: World) -> Log:
    assert world.nemesis.is_quiet
    kafka, store = MemoryKafka(cluster=world.cluster), MemoryStore(world.disk, LOG)
    return Log.open(LOG, kafka=kafka, root=store, allow_unsafe=UNSAFE)
