"""Those who write on a cluster, as README and `examples/coordinator.py` do: writers, a coordinator, and its tasks.

Each opens, restores its key groups, resumes at its last commit, and opens again after an error that says so.
"""

import pickle
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from statelog.pending import Pending
from statelog.producer import Coordinator, TaskGrant, TaskWriter, Writer
from statelog.recovery import recover
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.state import LastCommit
from statelog.storage.log.log import Log
from tests.sim.cluster.part import Part, Stage
from tests.sim.cluster.story import JOB, PARTITIONS_OF, Attempt, State, changes_of, partition_of_key
from tests.sim.world import AGAIN

__all__ = ["coordinate", "serve", "write"]

_PATIENCE_S = 4.0


class Letter(NamedTuple):
    """From the coordinator to a task: write the part of this attempt that lies in one partition."""

    attempt: Attempt
    task: TaskGrant
    slot: int
    partition: int


def write(part: Part) -> None:
    """A writer of its own partitions."""
    opening = 0
    with part.open() as log:
        while not part.stage.is_over:
            opening += 1
            try:
                with Writer(log, part.name, partitions=PARTITIONS_OF[part.name]) as writer:
                    life = _opened(part, opening, writer.grant.epoch, writer.last_commit)
                    _restore(part, log, life)
                    source = _Source(part, life, writer.last_commit)
                    while not part.stage.is_over:
                        _commit_two(writer, source) if source.chance.random() < 0.2 else _commit_one(writer, source)
            except AGAIN as error:
                part.failed(error)


def coordinate(part: Part) -> None:
    """A coordinator, whose tasks are actors, too: one that does not answer is asked again, in a new slot."""
    opening = 0
    with part.open() as log:
        while not part.stage.is_over:
            opening += 1
            try:
                with Coordinator(log, part.name, partitions=PARTITIONS_OF[part.name]) as coordinator:
                    life = _opened(part, opening, coordinator.grant.epoch, coordinator.last_commit)
                    _restore(part, log, life)
                    source = _Source(part, life, coordinator.last_commit)
                    desk = _Desk(part, coordinator)
                    while not part.stage.is_over:
                        attempt = source.next()
                        source.told(attempt, desk.commit(attempt))
            except AGAIN as error:
                part.failed(error)


def _opened(part: Part, opening: int, epoch: int, last: LastCommit | None) -> str:
    """Note what an opener found; returns the name of its life, which its values carry."""
    life = f"{part.life}.{opening}"
    found: Mapping[str, object] = {} if last is None else {"metadata": dict(last.metadata), "offset": last.offset}
    part.journal.note("opened", life=life, epoch=epoch, checkpoint=last.checkpoint.id if last else 0, **found)
    return life


def _restore(part: Part, log: Log, life: str) -> None:
    """Open first, then recover: what is read is final for these partitions."""
    key_groups = log.descriptor.key_groups_in(PARTITIONS_OF[part.name])
    recovery = recover(log, key_groups=key_groups)
    state = State(recovery.to_dict().items())
    last = recovery.last_commit(part.name)
    part.journal.note(
        "restored", life=life, checkpoint=last.checkpoint.id if last else 0, digest=state.digests[part.name]
    )


class _Source:
    """Where one life of a writer takes its events from: what it tries next, and what it was told."""

    def __init__(self, part: Part, life: str, last: LastCommit | None) -> None:
        self.chance = random.Random(f"{part.name} {life}")
        self._part = part
        self._life = life
        self._begin = int(last.metadata["end"]) if last else 0
        self._checkpoint = last.checkpoint.id + 1 if last else 1
        self._board = part.stage.board

    def next(self) -> Attempt:
        """The next attempt; noted."""
        end = self._begin + self.chance.randint(1, 12)
        facts: dict[str, Any] = {
            "life": self._life, "checkpoint": self._checkpoint, "begin": self._begin, "end": end
        }  # fmt: skip
        self._part.journal.note("attempt", **facts)
        self._begin, self._checkpoint = end, self._checkpoint + 1
        return Attempt(writer=self._part.name, **facts)

    def told(self, attempt: Attempt, offset: int) -> None:
        """The attempt is committed, at this ledger offset. Rests a little."""
        self._board.tell(attempt.writer, offset + 1)
        self._part.journal.note("ack", life=self._life, checkpoint=attempt.checkpoint, offset=offset)
        time.sleep(self.chance.uniform(0.05, 0.25))


def _metadata(attempt: Attempt) -> dict[str, str]:
    return {"end": str(attempt.end), "life": attempt.life}


def _append(writer: Writer | TaskWriter, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
    for key, value in changes:
        writer.delete(key) if value is None else writer.put(key, value)


def _commit_one(writer: Writer, source: _Source) -> None:
    attempt = source.next()
    _append(writer, changes_of(attempt))
    source.told(attempt, writer.commit(attempt.checkpoint, _metadata(attempt)).offset)


def _commit_two(writer: Writer, source: _Source) -> None:
    """Two checkpoints under way at the same time."""
    attempts = source.next(), source.next()
    persisted: list[Pending[Handle]] = []
    for attempt in attempts:
        _append(writer, changes_of(attempt))
        persisted.append(writer.persist(attempt.checkpoint))
    for attempt, persist in zip(attempts, persisted, strict=True):
        source.told(attempt, writer.confirm(persist.result(), _metadata(attempt)).offset)


class _Desk:
    """Where a coordinator writes letters to tasks and waits for handles, in files that appear by a rename."""

    def __init__(self, part: Part, coordinator: Coordinator) -> None:
        self._part = part
        self._coordinator = coordinator
        self._slot = 0

    def commit(self, attempt: Attempt) -> int:
        """Have the attempt written by the tasks, and commit what the first to answer return."""
        task = self._coordinator.task(attempt.checkpoint)
        handles = self._collect(attempt, task)
        return self._coordinator.commit(handles, _metadata(attempt), checkpoint_id=attempt.checkpoint).offset

    def _collect(self, attempt: Attempt, task: TaskGrant) -> list[Handle]:
        """One handle for each partition: the first that comes. Who does not answer is asked again, in a new slot."""
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
    """A task: writes under whatever grant it is handed, with one producer until that fails."""
    partition = int(part.name.removeprefix("task"))
    with part.open() as log:
        producer = log.kafka.producer()
        while not part.stage.is_over:
            for path in sorted(part.stage.mail.glob(f"*.{partition}.letter")):
                letter: Letter = pickle.loads(path.read_bytes())
                try:
                    writer = TaskWriter(producer, letter.task, slot=letter.slot)
                    changes = changes_of(letter.attempt)
                    _append(writer, (change for change in changes if partition_of_key(change[0]) == partition))
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
