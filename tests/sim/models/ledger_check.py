"""What must hold of every simulated ledger history, at every prefix of it. Raises ViolationError where it does not."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from statelog.schemas.avro import RecordCodec
from statelog.schemas.ledger.fold import LedgerFold, Void
from statelog.schemas.ledger.handle import Entry
from statelog.schemas.ledger.records import Commit, CommitBody, Open
from statelog.schemas.ledger.state import LedgerState
from tests.sim.models.ledger import PARTITIONS, Told, World
from tests.sim.naive_fold import NaiveFold, same_verdict

__all__ = ["Outcome", "ViolationError", "check_history"]

_STATES = RecordCodec("ledger_state")


class ViolationError(AssertionError):
    """An invariant of the ledger does not hold."""


class Outcome(NamedTuple):
    """How many records of a history were valid commits, and how many void."""

    valid: int
    void: int


class _Listed(NamedTuple):
    """A valid commit as the checks read it. `era` counts the writer's final commits before it."""

    offset: int
    commit: Commit
    body: CommitBody
    writer: str
    era: int

    @property
    def entries(self) -> list[Entry]:
        return [entry for handle in self.body.handles for entry in handle.entries]


class _Fact(NamedTuple):
    """A change as a reader applies it."""

    writer: str
    era: int
    value: int


class _Prefix(NamedTuple):
    """The fold's state before one record, and how many valid commits lie below."""

    state: LedgerState
    commits: int


States = list[list[_Fact]]


def _require(truth: bool, message: str) -> None:
    if not truth:
        raise ViolationError(message)


def check_history(world: World) -> Outcome:
    """Check all invariants of one history."""
    fold = world.make_fold()
    verdicts: list[Void | None] = []
    prefixes: list[_Prefix] = []
    commits: list[_Listed] = []
    views = _Views(world)
    for offset, record in enumerate(world.ledger):
        prefixes.append(_Prefix(fold.freeze(), len(commits)))
        verdict = fold.apply(offset, record)
        verdicts.append(verdict)
        if verdict is None and isinstance(record, Open):
            views.opened(offset, record)
        elif verdict is None and isinstance(record, Commit):
            commits.append(_list(offset, record, views.writer(record), commits))
            views.committed(record)
    _check_ranges(commits)
    _check_told(world.told, commits)
    full = _check_replay(world, commits)
    _check_prefixes(world, commits, prefixes, full)
    _check_meta(fold, commits)
    _check_twin(world, verdicts)
    _check_frozen(world, prefixes, verdicts, fold.freeze())
    return Outcome(len(commits), sum(verdict is not None for verdict in verdicts))


def _list(offset: int, commit: Commit, writer: str, earlier: Sequence[_Listed]) -> _Listed:
    era = sum(listed.commit.final for listed in earlier if listed.writer == writer)
    return _Listed(offset, commit, commit.read_body(), writer, era)


class _Views:
    """What every live opener believes: nothing changes on its partitions and its name but by its own commits."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._opens: dict[int, Open] = {}
        self._live: set[int] = set()

    def writer(self, commit: Commit) -> str:
        return self._opens[commit.epoch].writer

    def opened(self, offset: int, record: Open) -> None:
        for epoch in sorted(self._live):
            if self._share(self._opens[epoch], record.writer, record.partitions):
                seen = epoch < self._world.seen_end[record.nonce]
                _require(seen, f"the Open at {offset} fenced epoch {epoch}, which its opener had not seen")
                self._live.discard(epoch)
        self._opens[offset] = record
        self._live.add(offset)

    def committed(self, commit: Commit) -> None:
        partitions = [extent.partition for extent in commit.extents]
        for epoch in self._live - {commit.epoch}:
            changed = self._share(self._opens[epoch], self.writer(commit), partitions)
            _require(not changed, f"a commit of epoch {commit.epoch} changed what epoch {epoch} had read")
        if commit.final:
            self._live.discard(commit.epoch)

    @staticmethod
    def _share(mine: Open, writer: str, partitions: Iterable[int]) -> bool:
        return mine.writer == writer or bool(set(mine.partitions) & set(partitions))


def _check_ranges(commits: Sequence[_Listed]) -> None:
    """Exactly once: the source ranges of a writer's commits join up, from 0 on after a final commit."""
    ends: dict[tuple[str, int], int] = defaultdict(int)
    for listed in commits:
        key, span = (listed.writer, listed.era), listed.body.metadata
        at = f"{listed.writer}: the commit at {listed.offset} starts at {span['from']}, the last ended at {ends[key]}"
        _require(int(span["from"]) == ends[key], at)
        ends[key] = int(span["to"])


def _check_told(told: Sequence[Told], commits: Sequence[_Listed]) -> None:
    done = {Told(listed.writer, listed.commit.checkpoint, int(listed.body.metadata["to"])) for listed in commits}
    _require(set(told) <= done, f"told committed, and is not: {set(told) - done}")


def _check_replay(world: World, commits: Sequence[_Listed]) -> States:
    """The state of all commits; per writer and partition its values are in source order, each once."""
    full = _replay(world, commits, {}, _empty())
    for partition, facts in enumerate(full):
        for key in {(fact.writer, fact.era) for fact in facts}:
            mine = [fact.value for fact in facts if (fact.writer, fact.era) == key]
            _require(mine == sorted(set(mine)), f"partition {partition}: values of {key} twice or out of order")
    in_commit_order = _empty()
    for listed in commits:
        _replay(world, [listed], {}, in_commit_order)
    _require(in_commit_order == full, "offset order differs from commit order")
    return full


def _check_prefixes(world: World, commits: Sequence[_Listed], prefixes: Sequence[_Prefix], full: States) -> None:
    """Every ledger position is a safe snapshot: state so far, then replay from its committed positions."""
    for prefix in prefixes:
        state = _replay(world, commits[: prefix.commits], {}, _empty())
        starts = prefix.state.committed_positions
        again = _replay(world, commits[prefix.commits :], starts, state)
        _require(again == full, f"a snapshot at {prefix.state.position} loses or repeats changes")


def _check_meta(fold: LedgerFold, commits: Sequence[_Listed]) -> None:
    expected: dict[tuple[str, str], bytes | None] = {}
    for listed in commits:
        for handle in listed.body.handles:
            for step in handle.steps:
                expected.update({(listed.writer, key): value for key, value in step.meta.items()})
    kept = {key: value for key, value in expected.items() if value is not None}
    _require(fold.meta == kept, "the meta records are not those of the last commits")


def _check_twin(world: World, verdicts: Sequence[Void | None]) -> None:
    """The naive fold comes to the same verdict on every record. Only asked of the fold with all its guards."""
    if type(world.make_fold()) is not LedgerFold:
        return
    naive = NaiveFold(world.make_fold().identity)
    for offset, (record, verdict) in enumerate(zip(world.ledger, verdicts, strict=True)):
        reason = naive.apply(offset, record)
        mine = verdict.reason if verdict else None
        _require(same_verdict(mine, reason), f"the record at {offset}: {mine} here, {reason} by the naive fold")


def _check_frozen(world: World, prefixes: Sequence[_Prefix], verdicts: Sequence[Void | None], end: LedgerState) -> None:
    """A fold that starts from any frozen state goes on as one that started at 0."""
    if type(world.make_fold()) is not LedgerFold:
        return
    for prefix in prefixes:
        datum, _ = _STATES.decode(_STATES.encode(prefix.state.to_datum()))
        thawed = LedgerState.from_datum(datum)
        _require(thawed == prefix.state, f"the state at {thawed.position} does not survive its bytes")
        fold = LedgerFold(world.make_fold().identity, thawed)
        for offset in range(thawed.position, len(world.ledger)):
            _require(fold.apply(offset, world.ledger[offset]) == verdicts[offset], f"another verdict on {offset}")
        _require(fold.freeze() == end, f"a fold from {thawed.position} ends in another state")


def _empty() -> States:
    return [[] for _ in range(PARTITIONS)]


def _replay(world: World, commits: Sequence[_Listed], starts: Mapping[int, int], into: States) -> States:
    """Apply commits as a reader does: each partition in offset order from its start, listed change sets only."""
    for partition in range(PARTITIONS):
        wanted = {
            (handle.epoch, handle.nonce, entry.sqn): (entry, listed)
            for listed in commits
            for handle in listed.body.handles
            for entry in handle.entries
            if entry.partition == partition
        }
        seen: dict[tuple[int, bytes, int], int] = defaultdict(int)
        for offset in range(starts.get(partition, 0), len(world.data[partition])):
            chunk = world.data[partition][offset]
            found = wanted.get(chunk[:3])
            if found is not None and found[0].first_offset <= offset < found[0].end_offset:
                seen[chunk[:3]] += 1
                into[partition].append(_Fact(found[1].writer, found[1].era, chunk.value))
        for key, (entry, _) in wanted.items():
            _require(seen[key] == entry.chunks, f"partition {partition}: a change set has {seen[key]} of its chunks")
    return into
