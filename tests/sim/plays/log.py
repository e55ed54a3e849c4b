"""A fixed story: a log is made, written, rolled up, truncated, recovered, followed and taken over, on the twins.

Every actor follows the documentation: it opens again after `Unavailable`, `PersistFailed` and `OutcomeUnknown`, resumes
from its last commit, and stops at every other error. Nothing is random, and one thread acts at a time, so the same
faults make the same story.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from statelog.environment import Environment, inline
from statelog.errors import AlreadyExists, Fenced, StatelogError
from statelog.log import Log, LogOptions
from statelog.materializer.outcome import CompletedRound
from statelog.producer import Coordinator, TaskGrant, TaskWriter, Writer
from statelog.producer.guard import Life
from statelog.reading.plan import At
from statelog.recovery import AtCheckpoint, Portion, recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.recovery.stream import Stream
from statelog.schemas.key_groups import KeyType, key_group_of
from statelog.schemas.ledger.handle import Handle
from tests.sim.actors import Actor, Stepper
from tests.sim.nemesis import Kind, Nemesis
from tests.sim.world import AGAIN, LOG, Attempt, Process, Read, StuckError, World
from tests.support.rigs.log import where_at
from tests.support.samples.folds import apply_to_dict, put_all

__all__ = ["PARTITIONS", "SCENES", "tell"]

PARTITIONS = 2
KEY_GROUPS = 4
_STEPS = 60


def _keys(group: int) -> list[bytes]:
    named = (f"k{i}".encode() for i in range(100))
    return [key for key in named if key_group_of(key, KeyType.BYTES, KEY_GROUPS) == group][:3]


KEYS = [_keys(group) for group in range(KEY_GROUPS)]
"""Three keys of each key group. Groups 0 and 1 lie in partition 0, the writer's; the job has the others."""


Scene = Callable[[World], None]


def tell(scratch: Path, faults: Mapping[int, Kind], accidents: Mapping[int, Scene] | None = None) -> World:
    """Play the story with these faults, by number of the operation; `accidents` come before the scene of a number."""
    world = World(scratch, Nemesis(faults))
    with world.listening():
        for number, scene in enumerate(SCENES):
            if accidents and number in accidents:
                accidents[number](world)
            scene(world)
            world.rest()
        _end(world)
    return world


# ---- the scenes


def _create(process: Process) -> None:
    try:
        Log.create(
            LOG,
            where_at(process.kafka, process.store),
            LogOptions(partitions=PARTITIONS, key_groups=KEY_GROUPS),
        )
    except AlreadyExists:
        assert process.log.descriptor.partitions == PARTITIONS


def _wake_up_late(world: World) -> None:
    """Write on with the first incarnation, which learns that it is fenced: it does not open again."""
    late = world.process("w1").writer
    if late is None or late.life is not Life.OPEN:
        return

    def scene(process: Process) -> None:
        if process.writer is not late:
            return  # It died.
        try:
            _commit(process, late, 9)
        except (Fenced, *AGAIN):
            process.writer = None
        else:
            raise AssertionError("the first incarnation still commits")

    world.play("w1", scene)


def _by(name: str, scene: Callable[..., None], *args: Any, **options: Any) -> Scene:
    """Return a scene that the process of this name plays."""
    return lambda world: world.play(name, lambda process: scene(process, *args, **options))


def _end(world: World) -> None:
    """End the faults: a day later everything is written, rolled up and read once more."""
    world.nemesis.is_quiet = True
    world.disk.settle()
    world.now_s += 100_000
    world.play("w2", lambda process: _write(process, 8))
    world.play("end", _round)
    world.play("end", _read)


# ---- the actors


def _write(process: Process, up_to: int, *, restore: bool = False) -> None:
    """Run a writer: open unless it is open, and commit until this checkpoint is history."""
    if process.writer is not None and process.writer.life is not Life.OPEN:
        process.writer.close()
        process.writer = None
    if process.writer is None:
        process.writer = process.environment().run(Writer, process.log, "w", partitions=[0])
        if restore:
            _read(process, at_least=0)
    writer = process.writer
    while (last := writer.last_commit.checkpoint.id if writer.last_commit else 0) < up_to:
        _commit(process, writer, last + 1)


def _commit(process: Process, writer: Writer, checkpoint_id: int) -> None:
    mine = [*KEYS[0], *KEYS[1]]
    chosen: dict[bytes, str | None] = {mine[checkpoint_id % 6]: "a", mine[(checkpoint_id * 2 + 1) % 6]: "b"}
    if checkpoint_id % 3 == 0:
        chosen[mine[(checkpoint_id + 4) % 6]] = None
    attempt = process.world.try_commit(process, "w", checkpoint_id, chosen)
    with _Telling(process.world, attempt):
        put_all(writer, attempt.changes.items())
        attempt.offset = writer.commit({"tag": attempt.tag}, checkpoint_id=checkpoint_id).offset


class _Telling:
    """A block that records what its error says about a commit."""

    def __init__(self, world: World, attempt: Attempt) -> None:
        self._world = world
        self._attempt = attempt

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StatelogError):
            self._world.failed(self._attempt, error)


def _commit_tasks(process: Process) -> None:
    """Run a coordinator: two tasks write a key group each, and their handles are committed as one checkpoint."""
    world = process.world
    if process.coordinator is not None:
        process.coordinator.close()
    coordinator = process.environment().run(Coordinator, process.log, "job", partitions=[1])
    process.coordinator = coordinator
    if coordinator.last_commit is not None:
        return
    changes: dict[bytes, str | None] = {key: "t" for group in (2, 3) for key in KEYS[group]}
    attempt = world.try_commit(process, "job", 1, changes)
    with _Telling(world, attempt):
        grant = coordinator.task(1)
        handles = [_run_task(world, grant, attempt, group) for group in (2, 3)]
        attempt.offset = coordinator.commit(handles, {"tag": attempt.tag}, checkpoint_id=1).offset


def _run_task(world: World, grant: TaskGrant, attempt: Attempt, group: int) -> Handle:
    """Run a task in a process of its own, again in a new slot if it fails or dies; return its handle."""
    handles: list[Handle] = []

    def scene(process: Process) -> None:
        producer = process.kafka.producer()
        try:
            slot = int.from_bytes(world.nonce())
            environment = process.environment(nonce=lambda: slot.to_bytes(16, "big"))
            task = environment.run(TaskWriter, producer, grant, slot=slot)
            for key in KEYS[group]:
                value = attempt.changes[key]
                assert value is not None
                task.put(key, value)
            handles.append(task.finish())
        finally:
            producer.close()

    world.play(f"task{group}", scene)
    return handles[-1]


def _round(process: Process) -> None:
    outcome = process.roll_up()
    if isinstance(outcome, CompletedRound):
        assert not outcome.cleanup.held_back, outcome


_SETTINGS = RecoverySettings(threads=1, _tuning=RecoveryTuning(stall_timeout_s=5.0))


def _environment(process: Process, start: Callable[[Callable[[], None]], None]) -> Environment:
    return Environment(clock=process.tick, start=start, nonce=process.world.nonce)


def _read(process: Process, at: At | None = None, *, at_least: int | None = None, barrier: bool = False) -> None:
    """Run a recovery. A reader of another process names its known position, or asks for a barrier."""
    world = process.world
    floor = world.acknowledged()
    known = 0 if barrier else floor if at_least is None else at_least
    recovery = _environment(process, inline).run(
        recover,
        process.log,
        at=at,
        at_least=known,
        barrier=barrier,
        settings=_SETTINGS,
    )
    state = recovery.to_dict()
    world.reads.append(Read(process.name, recovery.position, 0 if at else floor, state))


# ---- the follower


class _Hand:
    """A hand that starts the follower's thread as an actor, and runs any thread of its own in place."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self.actor: Actor | None = None

    def __call__(self, work: Callable[[], None]) -> None:
        if self.actor is None:
            self.actor = self._stepper.actor(work)
        else:
            work()

    def step(self) -> None:
        """Let it go on to its next call."""
        if self.actor is not None and not self.actor.over:
            self.actor.step()

    def finish(self) -> None:
        """Let it go on to its end."""
        for _ in range(_STEPS):
            self.step()
        assert self.actor is None or self.actor.over


def _follow_one(process: Process) -> None:
    """Run a follower over the state and then one commit more. It resumes at its position."""
    world = process.world
    hand = _Hand(world.stepper)
    known = 0 if process.cursor else world.acknowledged()
    recovery = _environment(process, hand).run(
        recover, process.log, resume=process.cursor, at_least=known, settings=_SETTINGS
    )
    stream = recovery.follow(poll_s=0.0)
    try:
        _step_to(process, stream, hand, known)
        world.play("w1", lambda writer: _write(writer, 5))
        _step_to(process, stream, hand, world.acknowledged())
    finally:
        stream.stop()
        hand.finish()
        stream.close()


def _step_to(process: Process, stream: Stream, hand: _Hand, position: int) -> None:
    """Step the follower until it has the whole state of this position, or of a later one."""
    for _ in range(_STEPS):
        while (portion := stream.take(timeout_s=0.0)) is not None:
            _apply(process, portion)
            if portion.cursor.is_complete:
                process.world.reads.append(Read(process.name, portion.cursor.position, 0, dict(process.state)))
        if process.cursor and process.cursor.is_complete and process.cursor.position >= position:
            return
        hand.step()
    raise StuckError(f"the follower does not come to {position}")


def _apply(process: Process, portion: Portion) -> None:
    apply_to_dict(portion.changes, process.state)
    process.cursor = portion.cursor


SCENES: tuple[Scene, ...] = (
    _by("create", _create),
    _by("w1", _write, 3),
    _by("job", _commit_tasks),
    _by("mat", _round),
    _by("reader", _read),
    _by("w1", _write, 4),
    _by("mat", _round),
    _by("reader", _read, AtCheckpoint("w", 4)),
    _by("follower", _follow_one),
    _by("w2", _write, 6, restore=True),
    _wake_up_late,
    _by("w2", _write, 7),
    _by("last", _read, barrier=True),
)
