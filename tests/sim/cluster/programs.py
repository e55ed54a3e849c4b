"""The programs on a cluster, as README and `examples/coordinator.py` have them: writers, a coordinator, and its tasks;
readers that recover over and over, and a follower that keeps the state warm.

A writer opens, restores its key groups, resumes at its last commit, and opens again after an error that says so.
"""

import pickle
import random
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from statelog.errors import NotFound, Unavailable
from statelog.log import Log
from statelog.pending import Pending
from statelog.producer import Coordinator, TaskGrant, TaskWriter, Writer
from statelog.recovery import AtPosition, CacheSettings, Cursor, Portion, RecoverySettings, recover
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.state import LastCommit
from tests.sim.cluster.stage import (
    JOB,
    PARTITIONS_OF,
    PAUSE_S,
    Attempt,
    Part,
    Stage,
    State,
    changes_of,
    owner_of,
    partition_of_key,
)
from tests.sim.world import AGAIN
from tests.support.samples.folds import put_all, rows_of

__all__ = ["coordinate", "follow", "read", "serve", "write"]

_PATIENCE_S = 4.0


class Letter(NamedTuple):
    """A letter from the coordinator to a task: write the part of this attempt that lies in one partition."""

    attempt: Attempt
    task: TaskGrant
    slot: int
    partition: int


def write(part: Part) -> None:
    """Run a writer of its own partitions."""

    def live(log: Log, opening: int) -> None:
        with Writer(log, part.name, partitions=PARTITIONS_OF[part.name]) as writer:
            source = _begin(part, log, opening, writer)
            while not part.stage.is_over:
                _commit_two(writer, source) if source.chance.random() < 0.2 else _commit_one(writer, source)

    _live_on(part, live)


def coordinate(part: Part) -> None:
    """Run a coordinator, whose tasks are actors, too: a silent one is asked again, in a new slot."""

    def live(log: Log, opening: int) -> None:
        with Coordinator(log, part.name, partitions=PARTITIONS_OF[part.name]) as coordinator:
            source, desk = _begin(part, log, opening, coordinator), _Desk(part, coordinator)
            while not part.stage.is_over:
                attempt = source.next()
                source.told(attempt, desk.commit(attempt))

    _live_on(part, live)


def _live_on(part: Part, live: Callable[[Log, int], None]) -> None:
    """Open, and open again after an error that says so; each opening has its number."""
    with part.open() as log:
        for opening in count(1):
            if part.stage.is_over:
                return
            try:
                live(log, opening)
            except AGAIN as error:
                part.failed(error)


def _begin(part: Part, log: Log, opening: int, owner: Writer | Coordinator) -> "_Source":
    """Record the commit that an opener found; then recover: a read after an Open is final for these partitions.

    The values of this incarnation carry its name.
    """
    life, last = f"{part.life}.{opening}", owner.last_commit
    found: Mapping[str, object] = {} if last is None else {"metadata": dict(last.metadata), "offset": last.offset}
    part.journal.note(
        "opened", life=life, epoch=owner.grant.epoch, checkpoint=last.checkpoint.id if last else 0, **found
    )
    recovery = recover(log, key_groups=log.descriptor.key_groups_in(PARTITIONS_OF[part.name]))
    state = State(recovery.to_dict().items())
    restored = recovery.last_commit(part.name)
    part.journal.note(
        "restored", life=life, checkpoint=restored.checkpoint.id if restored else 0, digest=state.digests[part.name]
    )
    return _Source(part, life, last)


class _Source:
    """The event source of one writer's incarnation: its next attempt, and its acknowledgements."""

    def __init__(self, part: Part, life: str, last: LastCommit | None) -> None:
        self.chance = random.Random(f"{part.name} {life}")
        self._part = part
        self._life = life
        self._begin = int(last.metadata["end"]) if last else 0
        self._checkpoint = last.checkpoint.id + 1 if last else 1
        self._board = part.stage.board

    def next(self) -> Attempt:
        """Return the next attempt, after recording it."""
        end = self._begin + self.chance.randint(1, 12)
        facts: dict[str, Any] = {
            "life": self._life, "checkpoint": self._checkpoint, "begin": self._begin, "end": end
        }  # fmt: skip
        self._part.journal.note("attempt", **facts)
        self._begin, self._checkpoint = end, self._checkpoint + 1
        return Attempt(writer=self._part.name, **facts)

    def told(self, attempt: Attempt, offset: int) -> None:
        """Record that the attempt is committed, at this ledger offset; rest a little."""
        self._board.tell(attempt.writer, offset + 1)
        self._part.journal.note("ack", life=self._life, checkpoint=attempt.checkpoint, offset=offset)
        time.sleep(self.chance.uniform(0.05, 0.25))


def _metadata(attempt: Attempt) -> dict[str, str]:
    return {"end": str(attempt.end), "life": attempt.life}


def _commit_one(writer: Writer, source: _Source) -> None:
    attempt = source.next()
    put_all(writer, changes_of(attempt))
    source.told(attempt, writer.commit(_metadata(attempt), checkpoint_id=attempt.checkpoint).offset)


def _commit_two(writer: Writer, source: _Source) -> None:
    """Commit two checkpoints that are in flight at the same time."""
    attempts = source.next(), source.next()
    persisted: list[Pending[Handle]] = []
    for attempt in attempts:
        put_all(writer, changes_of(attempt))
        persisted.append(writer.persist(attempt.checkpoint))
    for attempt, persist in zip(attempts, persisted, strict=True):
        source.told(attempt, writer.confirm(persist.result(), _metadata(attempt)).offset)


class _Desk:
    """A coordinator's desk: letters to tasks and their handles, in files that appear by a rename."""

    def __init__(self, part: Part, coordinator: Coordinator) -> None:
        self._part = part
        self._coordinator = coordinator
        self._slot = 0

    def commit(self, attempt: Attempt) -> int:
        """Let the tasks write the attempt, and commit the first handles that come."""
        task = self._coordinator.task(attempt.checkpoint)
        handles = self._collect(attempt, task)
        return self._coordinator.commit(handles, _metadata(attempt), checkpoint_id=attempt.checkpoint).offset

    def _collect(self, attempt: Attempt, task: TaskGrant) -> list[Handle]:
        """Return one handle for each partition: the first that comes. A silent task is asked again, in a new slot."""
        asked: dict[int, list[int]] = {partition: [] for partition in PARTITIONS_OF[JOB]}
        handles: dict[int, Handle] = {}
        ask_at = 0.0
        while len(handles) < len(asked):
            if time.monotonic() >= ask_at:
                for partition in asked.keys() - handles.keys():
                    asked[partition].append(self._ask(attempt, task, partition))
                ask_at = time.monotonic() + _PATIENCE_S
            time.sleep(0.005)
            for partition, slots in asked.items():
                answers = [handle for slot in slots if (handle := self._answer(attempt.life, slot)) is not None]
                if answers:
                    handles.setdefault(partition, answers[0])
            if self._part.stage.is_over:
                raise SystemExit(0)
        return [handles[partition] for partition in PARTITIONS_OF[JOB]]

    def _ask(self, attempt: Attempt, task: TaskGrant, partition: int) -> int:
        self._slot += 1
        letter = Letter(attempt, task, self._slot, partition)
        _post(_letter_path(self._part.stage, attempt.life, self._slot, partition), pickle.dumps(letter))
        return self._slot

    def _answer(self, life: str, slot: int) -> Handle | None:
        path = _answer_path(self._part.stage, life, slot)
        if not path.exists():
            return None
        handle = Handle.from_bytes(path.read_bytes())
        path.unlink()
        return handle


def serve(part: Part) -> None:
    """Run a task: write under any grant that it gets, with one producer until that fails."""
    partition = int(part.name.removeprefix("task"))
    with part.open() as log:
        producer = log.kafka.producer()
        while not part.stage.is_over:
            for path in sorted(part.stage.mail.glob(f"*.{partition}.letter")):
                letter: Letter = pickle.loads(path.read_bytes())
                try:
                    writer = TaskWriter(producer, letter.task, slot=letter.slot)
                    changes = changes_of(letter.attempt)
                    put_all(writer, (change for change in changes if partition_of_key(change[0]) == partition))
                    handle = writer.finish()
                except AGAIN as error:
                    part.failed(error)
                    producer.close()
                    producer = log.kafka.producer()
                else:
                    _post(_answer_path(part.stage, letter.attempt.life, letter.slot), handle.to_bytes())
                path.unlink()
            time.sleep(0.01)
        producer.close()


def _letter_path(stage: Stage, life: str, slot: int, partition: int) -> Path:
    return stage.mail / f"{life}-{slot:06}.{partition}.letter"


def _answer_path(stage: Stage, life: str, slot: int) -> Path:
    return stage.mail / f"{life}-{slot:06}.answer"


def _post(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)


def read(part: Part) -> None:
    """Read the newest state on one open log, now and then of a moment ago; every other reader has a cache."""
    chance = random.Random(f"{part.name} {part.life}")
    cache = CacheSettings(directory=part.stage.directory / "cache")
    settings = RecoverySettings(cache=cache) if part.name.endswith("1") else RecoverySettings()
    past = 0
    with part.open() as log:
        while not part.stage.is_over:
            try:
                past = _read_newest(part, log, settings)
                if chance.random() < 0.2:
                    time.sleep(PAUSE_S)
                    _read_at(part, log, settings, past)
            except Unavailable as error:
                part.failed(error)
            else:
                time.sleep(PAUSE_S)


def _read_newest(part: Part, log: Log, settings: RecoverySettings) -> int:
    """Recover the newest state, which has every earlier acknowledged commit. Return its position."""
    begun_at, floor = time.monotonic(), part.stage.board.acknowledged()
    recovery = recover(log, at_least=floor, settings=settings)
    state = State(recovery.to_dict().items())
    part.journal.note("read", begun_at=begun_at, floor=floor, position=recovery.position, digest=state.digest)
    return recovery.position


def _read_at(part: Part, log: Log, settings: RecoverySettings, position: int) -> None:
    """Read a state of a moment ago, if it is still retained."""
    try:
        state = State(recover(log, at=AtPosition(position), settings=settings).to_dict().items())
    except NotFound:
        return
    part.journal.note("revisited", position=position, digest=state.digest)


class _Follower:
    """A state that is kept warm, and a check for marks that come twice."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._state = State()
        self._known: set[bytes] = set()
        self._fresh: list[bytes] = []
        self.cursor: Cursor | None = None

    def begin_anew(self) -> None:
        """Begin again: the log does not hold the resume position any more."""
        self._state, self.cursor = State(), None
        self._known.clear()
        self._fresh.clear()

    def apply(self, portion: Portion) -> None:
        """Apply a portion; at the state of a position, record it."""
        for _, op, key, value in rows_of(portion.changes):
            self._state.change(key, None if op == DELETE else value)
            if key.startswith(owner_of(key).encode() + b"/c"):
                self._fresh.append(key)
        self.cursor = portion.cursor
        if portion.cursor.is_complete:
            doubled = [key.decode() for key in self._fresh if key in self._known]
            self._known.update(self._fresh)
            self._fresh.clear()
            self._part.journal.note(
                "followed", position=portion.cursor.position, digest=self._state.digest, doubled=doubled
            )

    def resumed(self) -> None:
        """Resume: a commit that was applied in part is applied again from its first change."""
        if self.cursor is not None and self.cursor.applied.has_state:
            self._fresh.clear()


def follow(part: Part) -> None:
    """Run a follower: it resumes after Unavailable, and begins again where the log tells it to."""
    follower = _Follower(part)
    with part.open() as log:
        while not part.stage.is_over:
            follower.resumed()
            try:
                with recover(log, resume=follower.cursor).follow(poll_s=0.1) as stream:
                    while not part.stage.is_over and not stream.has_ended:
                        portion = stream.take(timeout_s=0.5)
                        if portion is not None:
                            follower.apply(portion)
            except Unavailable as error:
                part.failed(error)
            except NotFound as error:
                if follower.cursor is None:
                    raise
                part.failed(error)
                follower.begin_anew()
