"""Properties of real rounds under any interleaving of materializers, writers and readers, on the twins.

Each materializer is the real `run_round`, cut into steps at every store call, at Kafka's calls and at its crash points.
Some cut their runs at every key group, or write a round's runs in several tasks. A step may be followed by a stall of
any length, or by the process' death. After every step that changed anything, a plain reader checks the invariants of
DESIGN.md section 3. One seed decides everything; `make soak` takes more of them.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.environment import Environment, inline
from statelog.errors import CorruptRun, NotFound, OffsetGone, StatelogError, StoreUnavailable, SubscriptionEnded
from statelog.log import Log
from statelog.materializer import cleanup
from statelog.materializer.engine import EngineMaker
from statelog.materializer.merging import BackgroundMerge
from statelog.materializer.outcome import CompletedRound, LostRound
from statelog.materializer.round import Round, run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.reading import claims
from statelog.reading.claims import list_subscriptions
from statelog.reading.hold import Hold, Needs, Terms
from statelog.recovery import recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.snapshot.claims import Lease, Subscription, SubscriptionCap, SubscriptionFile, newest_files
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.retention import Floor, RetentionPolicy, condemned, truncation_floor
from tests.sim.actors import Actor
from tests.sim.nemesis import Nemesis
from tests.sim.world import World
from tests.support.rigs.claims import SureSubscription
from tests.support.rigs.engine import split_engine
from tests.support.rigs.log import State, TwinLog, apply_tail, settings_for, state_of_snapshot

KEEP = 2
_SETTINGS = RecoverySettings(lease_ttl_s=80.0, _tuning=RecoveryTuning(attempts=100))
"""The reader may be stalled longer than its lease lasts, again and again."""


_CAP = SubscriptionCap(idle_s=500.0)


class ViolationError(AssertionError):
    """An invariant of the snapshots does not hold."""


class RoundWorld:
    """The twins, the actors on them, and the history that tells right from wrong."""

    def __init__(self, seed: int, scratch: Path) -> None:
        self.rng = random.Random(seed)
        self.twin = TwinLog(partitions=2)
        self.world = World(scratch, Nemesis({}), twin=self.twin, steps=("offsets", "delete_records", "reader", "store"))
        self.stepper = self.world.stepper
        self.twin.write({b"k0": b"first"})
        self.history: dict[int, State] = {}
        self.void: set[int] = set()
        self.completed = self.lost = self.reads = self.replans = self.killed = self.recoveries = 0
        self.moves = self.capped = self.beside = 0
        self._held: dict[str, Subscription] = {}
        self._seen: tuple[object, ...] = ()
        self._observer = self.twin.open()
        self._names: list[int] = []
        self._remember()
        kinds = [self._materialize] * self.rng.randint(1, 3) + [self._read] * self.rng.randint(0, 1)
        kinds += [self._subscribe] * self.rng.randint(0, 2)
        self._kinds = kinds
        self._actors: list[Actor] = [self.stepper.actor(kind) for kind in kinds]
        self._asleep = [0] * len(kinds)

    def run(self, steps: int) -> None:
        """Take so many steps, and check after each. Ends all actors, also after a violation."""
        try:
            for at in range(steps):
                self._step(at)
        finally:
            for actor in self._actors:
                if actor.error is None:
                    actor.kill()

    def settle(self) -> None:
        """Let leases and subscriptions of dead processes expire, then run undisturbed rounds until garbage is gone."""
        self.twin.now_s += 2 * _CAP.idle_s
        settings = settings_for(self.world.scratch, subscriptions=_CAP)
        for _ in range(KEEP + 1):
            self.twin.write({b"last": str(self.rng.random()).encode()})
            outcome = self.twin.environment.run(run_round, self.twin.open(), settings)
            assert isinstance(outcome, CompletedRound), outcome
            assert not outcome.cleanup.held_back, outcome

    # ---- actors

    def _log(self) -> Log:
        return self.world.process("actor").open()

    def _materialize(self) -> None:
        min_age_s, is_daemon = self.rng.choice((0.0, 40.0)), self.rng.random() < 0.5
        settings = settings_for(
            self.world.scratch,
            fanout=2,
            max_run_bytes=self.rng.choice((1, 4 << 30)),
            merge_bytes=1 if is_daemon else self.rng.choice((1, 8 << 30)),
            retention=RetentionPolicy(keep=KEEP, min_age_s=min_age_s),
            lease_cap_s=400.0,
            subscriptions=_CAP,
        )
        make_engine = split_engine(self.rng.choice((1, 3)))
        environment = replace(self.twin.environment, crash=self.stepper.pause, start=inline)
        with environment.run(BackgroundMerge, self._log(), settings, ring=lambda: None) as beside:
            self._rounds(environment, settings, make_engine, beside if is_daemon else None)

    def _rounds(
        self,
        environment: Environment,
        settings: MaterializerSettings,
        make_engine: EngineMaker,
        beside: BackgroundMerge | None,
    ) -> None:
        while True:
            try:
                is_over = beside is not None and beside.is_over
                outcome = environment.run(Round, self._log(), settings, make_engine=make_engine, beside=beside).run()
                self.beside += is_over and isinstance(outcome, CompletedRound) and outcome.runs_merged > 0
                if beside is not None and self.rng.random() < 0.7:
                    beside.begin()
            except StoreUnavailable:
                # The slot was taken at the put and cleaned up before it could be read: a failure that daemons tolerate.
                self.lost += 1
            else:
                self.completed += isinstance(outcome, CompletedRound)
                self.capped += len(outcome.cleanup.capped) if isinstance(outcome, CompletedRound) else 0
                self.lost += isinstance(outcome, LostRound)
            self.stepper.pause()

    def _read(self) -> None:
        """Alternate the plain reader and the real one."""
        while True:
            log = self._log()
            stored = log.manifests.newest()
            if stored is not None:
                self._recover_plainly(log, stored)
            self._recover(log)
            self.stepper.pause()

    def _recover(self, log: Log) -> None:
        """Recover all earlier commits without any damage, since nothing is ever lost here."""
        floor = max(self.history)
        environment = Environment(clock=self.twin.clock, start=inline, nonce=self.world.nonce)
        recovery = environment.run(recover, log, settings=_SETTINGS)
        state = recovery.to_dict()
        self.recoveries += 1
        if recovery.position < floor:
            raise ViolationError(f"a recovery that began at {floor} read the state at {recovery.position}")
        if state != self._state_at(recovery.position):
            raise ViolationError(f"a recovery returned a wrong state of position {recovery.position}")

    def _subscribe(self) -> None:
        while True:
            self._follow()
            self.stepper.pause()

    def _follow(self) -> None:
        """Follow from a snapshot on for ever; the reader gets an error if the cap ended it meanwhile."""
        reader, log = f"reader{self.world.nonce().hex()}", self._log()
        held = Environment(nonce=self.world.nonce).run(SureSubscription, log, reader, holder_id=reader, holder=reader)
        stored = log.manifests.newest()
        if stored is None:
            return
        ledger = log.replay(stored)
        try:
            while True:
                ledger.fold_to(log.ledger.end())
                written = held.hold(ledger.fold.freeze(), ledger.place.last, take_up=True)
                if held.is_sure:
                    self._held[reader] = written
                self.moves += 1
                self.stepper.pause()
        except (OffsetGone, SubscriptionEnded):
            if held.is_sure and not self._has_ended(reader):
                raise ViolationError(f"{reader} lost what it held") from None
        finally:
            ledger.close()

    def _has_ended(self, reader: str) -> bool:
        newest = newest_files(list_subscriptions(self._observer.store, reader).files)
        return bool(newest[reader].subscription.ended)

    def _recover_plainly(self, log: Log, manifest: Manifest) -> None:
        needs = Needs(manifest.position, manifest.next_offsets, manifest.number)
        claim = Hold(log.store, Terms("reader", 80.0), environment=Environment(clock=self.twin.clock)).claim(needs)
        self.reads += 1
        with claim:
            try:
                state = state_of_snapshot(log, log.manifests.read(manifest.number))
                end_position = log.kafka.offsets(log.ledger_topic, [0])[0].end
                apply_tail(log, manifest, state, end_position)
            except (NotFound, OffsetGone):
                self.replans += 1
                return
        if state != self._state_at(end_position):
            raise ViolationError(f"a reader of manifest {manifest.number} returned a wrong state")

    # ---- steps

    def _step(self, at: int) -> None:
        self.twin.now_s += self.rng.choice((0, 1, 1, 2))
        if self.rng.random() < 0.06:
            self._write()
        ready = [i for i, until in enumerate(self._asleep) if until <= at]
        if not ready:
            return
        i = self.rng.choice(ready)
        self._actors[i].step()
        if self.rng.random() < 0.01:
            self._asleep[i] = at + self.rng.choice((10, 50, 100, 400))
        if self.rng.random() < 0.005:
            self._actors[i].kill()
            self._actors[i] = self.stepper.actor(self._kinds[i])
            self.killed += 1
        self.check()

    def _write(self) -> None:
        keys = [f"k{self.rng.randrange(12)}".encode() for _ in range(self.rng.randint(1, 6))]
        self.twin.write({key: None if self.rng.random() < 0.3 else str(self.rng.random()).encode() for key in keys})
        self._remember()

    def _remember(self) -> None:
        ledger = self._observer.ledger_topic
        self.history[self._observer.kafka.offsets(ledger, [0])[0].end] = dict(self.twin.model)

    def _state_at(self, position: int) -> State:
        return self.history[max((end for end in self.history if end <= position), default=0)] if position else {}

    # ---- invariants

    def check(self) -> None:
        """Check that the newest manifest is valid, and that it and the one before it can be recovered to the model."""
        log = self._observer
        numbers = log.manifests.numbers()
        self._note_void(numbers)
        self._check_held(log)
        now = (numbers, self.twin.run_paths(), log.data_offsets(), log.kafka.offsets(log.ledger_topic, [0]))
        if now == self._seen or not numbers:
            return
        self._seen = now
        if numbers[-1] in self.void:
            raise ViolationError(f"the newest manifest {numbers[-1]} is void")
        for number in [number for number in numbers if number not in self.void][-KEEP:]:
            self._check_manifest(log, number)

    def _check_held(self, log: Log) -> None:
        """Check that the range of every sure lease exists, unless its newest file says that it ended."""
        ledger, data = log.kafka.offsets(log.ledger_topic, [0])[0].start, log.data_offsets()
        for reader, held in list(self._held.items()):
            needed = {
                **{p: data[p].start - offset for p, offset in held.next_offsets.items()},
                -1: ledger - held.position,
            }
            if max(needed.values()) > 0:
                if not self._has_ended(reader):
                    raise ViolationError(f"{reader} held {held.position}, and the log starts above: {needed}")
                del self._held[reader]

    def _note_void(self, numbers: list[int]) -> None:
        for number in set(numbers) - set(self._names):
            if self._names and number < self._names[-1]:
                self.void.add(number)
        self._names = numbers

    def _check_manifest(self, log: Log, number: int) -> None:
        manifest = log.manifests.read(number)
        try:
            state = state_of_snapshot(log, manifest)
            if state != self._state_at(manifest.position):
                raise ViolationError(f"manifest {number} holds a wrong state")
            if apply_tail(log, manifest, state) != self.twin.model:
                raise ViolationError(f"manifest {number} and the tail are not the committed state")
        except (NotFound, OffsetGone, CorruptRun) as error:
            raise ViolationError(f"manifest {number} of {self._names} cannot be recovered: {error}") from error


SEEDS = (0, 1, 3)
"""Together these seeds have every event that is counted below."""
STEPS = 1200


def _simulate(seed: int, scratch: Path) -> RoundWorld:
    world = RoundWorld(seed, scratch)
    world.run(STEPS)
    world.settle()
    return world


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> list[RoundWorld]:
    """Return one history of each seed."""
    return [_simulate(seed, tmp_path_factory.mktemp("scratch")) for seed in SEEDS]


def test_snapshots_are_always_recoverable(worlds: list[RoundWorld]) -> None:
    """The newest two snapshots and the tail are the committed state, whatever stalls, dies or is overtaken."""
    assert sum(world.completed for world in worlds) > 3 * len(SEEDS)
    assert sum(world.lost for world in worlds) > 0
    assert sum(world.killed for world in worlds) > 0
    assert sum(world.reads - world.replans for world in worlds) > 0
    assert sum(world.recoveries for world in worlds) > 0
    assert sum(world.moves for world in worlds) > 0
    assert sum(world.capped for world in worlds) > 0
    assert sum(world.beside for world in worlds) > 0


def test_garbage_is_collected_in_the_end(worlds: list[RoundWorld]) -> None:
    """After deaths and lost races, a few undisturbed rounds leave only the runs that retained manifests name."""
    for world in worlds:
        log = world.twin.open()
        kept = [log.manifests.read(number) for number in log.manifests.numbers()]
        assert len(kept) == 2
        assert world.twin.run_paths() == {run.path for manifest in kept for run in manifest.runs}
        assert log.kafka.offsets(log.ledger_topic, [0])[0].start == kept[0].position


@pytest.mark.soak
def test_snapshots_are_always_recoverable_for_long(tmp_path: Path) -> None:
    """Snapshots are recoverable over many more histories."""
    for seed in range(1000, 1400):
        _simulate(seed, tmp_path)


def _no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest_only(kept: Sequence[Manifest], leases: Iterable[Lease]) -> Floor:
        return truncation_floor(kept[-1:], ())

    monkeypatch.setattr(cleanup, "truncation_floor", newest_only)


def _no_kept_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_only(
        listing: Iterable[str], own: Manifest, kept: Iterable[Manifest], over: Iterable[Lease]
    ) -> tuple[str, ...]:
        return condemned(listing, own, (), over)

    monkeypatch.setattr(cleanup, "condemned", own_only)


def _no_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_files: Sequence[SubscriptionFile], _identity: LogIdentity) -> list[Subscription]:
        return []

    monkeypatch.setattr(claims, "holding", nothing)


@pytest.mark.parametrize(("remove", "first"), [(_no_floor, 0), (_no_kept_files, 0), (_no_subscriptions, 1)])
def test_a_missing_guard_is_noticed(
    remove: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without any one guard the simulation finds a history that breaks an invariant, from the `first` seed on."""
    remove(monkeypatch)
    for seed in range(first, first + 20):
        try:
            _simulate(seed, tmp_path)
        except (ViolationError, StatelogError, AssertionError):
            return
    pytest.fail("no history noticed the missing guard")
