"""The machine of a simulated Spark: sessions, their Python workers, their caches, and one clock for all of them.

Without a JVM and on the twins. A worker is a process to the code under test: it has caches of its own. One acts at a
time, but it may pause inside of any call while others go on: at a crash point, a read of the clock or a query to Kafka.
Then it wakes, or is dead. The ledger may lose its end; a client that had read it remembers. This module owns neither
the jobs nor the verdict.
"""

import atexit
import math
import random
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from statelog.environment import Environment, inline
from statelog.errors import Damaged
from statelog.history import COMPARE_S
from statelog.log import Log
from statelog.log.loss import furthest_witness
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.records import Open, decode
from statelog.spark import clients, sink
from statelog.spark.clients import ProcessCache
from statelog.testing import Crash
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import (
    HALF,
    LOST,
    TRUE,
    UNAVAILABLE,
    Answer,
    AnswerKind,
    Call,
    Fate,
    SendAttempt,
    broken,
    old,
)
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.rigs.log import TwinRig

__all__ = ["SMALL", "Machine", "Session", "Worker"]

SMALL = WriterSettings(
    in_flight_bytes_max=512, _tuning=WriterTuning(roll_rows=3, list_bytes=64, roll_bytes=128, chunk_bytes=64)
)
_CACHES: tuple[tuple[ModuleType, str], ...] = (
    (clients, "_logs"),
    (clients, "_producers"),
    (sink, "_committers"),
)
_FATES = [
    *(Fate.DELAY, Fate.LOSE, Fate.SKIP, Fate.APPEND_UNANSWERED, Fate.ACK_WITHOUT_OFFSET),
    *(Fate.FATAL, Fate.FATAL_APPENDED),
]
_ANSWERS: dict[str, tuple[Answer, ...]] = {
    "offsets": (UNAVAILABLE, LOST, HALF, old(1), old(4)),
    "read": (UNAVAILABLE, LOST, broken(1)),
    "send": (UNAVAILABLE,),
}
_START_S = 1_000_000.0
_LEDGER = "visits.ledger"


class _Cache(ProcessCache[Any, Any]):
    """A cache that shows its contents."""

    def kept(self) -> list[Any]:
        """Return its contents."""
        return [value for value, _ in self._entries.values()]


@dataclass(eq=False)
class Worker:
    """A Python process: its caches, by module and name. It takes one call at a time."""

    session: "Session"
    caches: dict[tuple[ModuleType, str], _Cache]
    is_busy: bool = False
    is_dead: bool = False
    plans: bool = False
    """Whether it is planning, which only reads."""
    run: str | None = None
    """The run whose batch it is committing."""
    knew: list[Log] = field(default_factory=list[Log])
    """The open logs that had read the ledger's lost records."""

    @property
    def logs(self) -> list[Log]:
        """The logs that it has open."""
        return self.caches[clients, "_logs"].kept()


@dataclass(eq=False)
class Session:
    """A driver's JVM, its local workers, and the workers of its executors."""

    number: int
    beside: list[Worker] = field(default_factory=list[Worker])
    executors: list[Worker] = field(default_factory=list[Worker])
    attempts: int = 0
    is_dead: bool = False

    def kill(self) -> None:
        """End the driver with its local workers; a call on an executor may go on for a while."""
        self.is_dead = True
        for worker in self.beside:
            worker.is_dead = True


@dataclass(eq=False)
class _Task:
    """The task context that Spark gives."""

    query_id: str
    run_id: str
    attempt: int

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802  # Spark's name
        """Return a property of the job."""
        return {sink.QUERY_PROPERTY: self.query_id, sink.RUN_PROPERTY: self.run_id}.get(name) or None

    def taskAttemptId(self) -> int:  # noqa: N802  # Spark's name
        """Return an id that is unique in the session."""
        return self.attempt


class Machine:
    """All processes, and the cluster with its accidents. `elsewhere` is one step of any other actor."""

    def __init__(self, rng: random.Random, *, share: float) -> None:
        self.rng = rng
        self.elsewhere: Callable[[], object] = lambda: None
        self.is_quiet = True
        """Whether no fault happens, and nobody pauses."""
        self.has_deposed = False
        """Whether a broker may answer that does not know yet that it is deposed.

        A planner may then miss the batch before, which another process committed. The commit raises for that, and it is
        no false alarm.
        """
        self.lost_from: int | None = None
        self._lost_s = math.inf
        """The ledger's end once it had lost its tail."""
        self.openers: dict[bytes, str | None] = {}
        """The run that sent an Open, by nonce."""
        self._share = share
        self._now_s = _START_S
        self._sessions: list[Session] = []
        self._acting: Worker | None = None
        self._task: _Task | None = None
        self._depth = 0
        self.cluster = MemoryCluster(faults=self, questions=self._answer, clock=self.now)
        disk = MemoryDisk(self.now)
        self.rig = TwinRig("visits", self._kafka, lambda: MemoryStore(disk, "visits"), cluster=self.cluster, disk=disk)
        with self.rig.create(partitions=4, key_groups=8) as log:
            self.descriptor: Descriptor = log.descriptor
        self.environment = Environment(
            clock=self._looked_at, wall_clock=self._looked_at, crash=self._point, start=inline, wait=self._waited
        )

    # ---- time, and its faults

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._now_s

    def pass_time(self, seconds: float) -> None:
        """Advance everybody's clock."""
        self._now_s += seconds

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the fate of a record."""
        if attempt.topic == _LEDGER:
            record, worker = decode(attempt.value), self._acting
            assert worker is None or not worker.plans, "a plan only reads"
            if isinstance(record, Open):
                self.openers[record.nonce] = None if worker is None else worker.run
        share = self._share if attempt.topic == "visits" else 4 * self._share  # Much depends on few records.
        return self.rng.choice(_FATES) if self._strikes(share) else Fate.DELIVER

    @contextmanager
    def quiet(self) -> Generator[None]:
        """Let no fault happen within the block."""
        before, self.is_quiet = self.is_quiet, True
        try:
            yield
        finally:
            self.is_quiet = before

    @property
    def is_reliable(self) -> bool:
        """Whether brokers obey requests."""
        return not self._share

    def lose(self, count: int) -> None:
        """Lose the ledger's last records, as by an unclean election."""
        self.lost_from = end = max(1, self.cluster.log(_LEDGER, 0).end - count)
        self._lost_s = self._now_s
        for worker in [worker for session in self._sessions for worker in session.beside]:
            worker.knew = [log for log in worker.logs if log.position > end]
        self.cluster.lose_tail(_LEDGER, 0, end)

    @property
    def is_seen_again(self) -> bool:
        """Whether no check from before the loss is young enough to rely on."""
        return self._now_s - self._lost_s >= COMPARE_S

    def shows_loss(self) -> bool:
        """Return whether uncommitted chunks, or the ledger's records, show an opener now that the ledger lost some."""

        def look() -> bool:
            with self.quiet(), self.rig.open() as log, closing(log.replay()) as ledger:
                try:
                    ledger.fold_to(log.ledger.end())
                except Damaged:
                    return True
                return furthest_witness(log, ledger.fold.freeze()) > ledger.position

        return self.lost_from is not None and self.apart(look)

    @property
    def end(self) -> int:
        """The ledger's end."""
        return self.cluster.log(_LEDGER, 0).end

    def opens(self) -> dict[int, Open]:
        """Return all Opens that the ledger ever had, by their offsets, without the lost ones."""
        decoded = ((one.offset, decode(one.value)) for one in self.cluster.log(_LEDGER, 0).records)
        return {offset: record for offset, record in decoded if isinstance(record, Open)}

    def stand_still(self, chance: float) -> None:
        """Perhaps let others go on meanwhile, or let this process die."""
        worker = self._acting
        if self.is_quiet or worker is None:
            return
        if self._depth < 2 and self.rng.random() < chance:
            self._depth += 1
            try:
                for _ in range(self.rng.randint(1, 15)):
                    self.elsewhere()
            finally:
                self._depth -= 1
        if worker.is_dead or self.rng.random() < chance * 0.05:
            raise Crash

    def _strikes(self, share: float) -> bool:
        return not self.is_quiet and self.rng.random() < share

    def _answer(self, call: Call) -> Answer:
        self.stand_still(0.01)
        possible = _ANSWERS.get(call.method, (UNAVAILABLE,))
        answer = self.rng.choice(possible) if self._strikes(0.3 * self._share) else TRUE
        return TRUE if answer.kind is AnswerKind.OLD and not self.has_deposed else answer

    def _looked_at(self) -> float:
        self._now_s += 0.01
        self.stand_still(0.01)
        return self._now_s

    def _point(self, _: str) -> None:
        self.stand_still(0.25)

    def _waited(self, _: object, seconds: float) -> None:
        self._now_s += seconds

    def _idle(self, seconds: float) -> None:
        """Wait as a producer for an answer: it comes late, or never."""
        self._now_s += seconds * 100
        if self.rng.random() < 0.1:
            self.cluster.release(1)
        if self.rng.random() < 0.05:
            self.cluster.expire()
        self.stand_still(0.02)

    def _kafka(self) -> MemoryKafka:
        return MemoryKafka(cluster=self.cluster, idle=self._idle)

    # ---- processes

    def session(self) -> Session:
        """Return a new driver."""
        self._sessions.append(Session(len(self._sessions) + 1))
        return self._sessions[-1]

    def worker(self, among: list[Worker], session: Session) -> Worker:
        """Return a free one of these, or a new one."""
        among[:] = [one for one in among if not one.is_dead]
        free = [one for one in among if not one.is_busy]
        if free and (len(free) > 1 or self.rng.random() < 0.7):
            return self.rng.choice(free)
        caches = {place: _Cache(clock=self.now) for place in _CACHES}
        for cache in caches.values():
            atexit.unregister(cache.clear)  # Else the caches of all histories would stay.
        among.append(Worker(session, caches))
        return among[-1]

    @contextmanager
    def acting(self, worker: Worker, task: _Task | None = None) -> Generator[None]:
        """Let this process act within the block; a Crash is its death."""
        assert not worker.is_busy
        before = self._acting, self._task
        worker.is_busy = True
        self._become(worker, task)
        try:
            yield
        except Crash:
            worker.is_dead = True
            raise
        finally:
            worker.is_busy = False
            self._become(*before)

    def beside(
        self,
        session: Session,
        call: Callable[[], Any],
        *,
        run: str | None = None,
        plans: bool = False,
        looks: bool = True,
    ) -> Any:
        """Call it in a local worker of the driver, to commit a batch of a `run`, or to plan one.

        If it `looks` at the ledger, it fails in a worker that knew records lost since, once the last check is too old.
        """
        with self.acting(worker := self.worker(session.beside, session)):
            worker.run, worker.plans = run, plans
            known = [log for log in worker.knew if log in worker.logs]
            result = self.environment.run(call)
            is_told = not [log for log in known if log in worker.logs]
            assert is_told or not (looks and self.is_seen_again), "it went on behind a loss that it knew"
            return result

    def on_executor(self, session: Session, query_id: str, run_id: str, call: Callable[[], Any]) -> Any:
        """Call it as an attempt of a task."""
        session.attempts += 1
        task = _Task(query_id, run_id, session.attempts)
        with self.acting(self.worker(session.executors, session), task):
            return self.environment.run(call)

    def apart(self, call: Callable[[], Any]) -> Any:
        """Call it in a process outside of Spark."""
        before = self._acting, self._task
        self._become(None, None)
        try:
            return self.environment.run(call)
        finally:
            self._become(*before)

    def _become(self, worker: Worker | None, task: _Task | None) -> None:
        self._acting, self._task = worker, task
        for (module, name), cache in worker.caches.items() if worker is not None else ():
            setattr(module, name, cache)

    @contextmanager
    def installed(self) -> Generator[None]:
        """Run Spark's side of statelog on this machine within the block."""
        machine = self

        class Context:
            """A stand-in for Spark's TaskContext."""

            @staticmethod
            def get() -> _Task | None:
                """Return the context of the acting task."""
                return machine._task

        class Client:
            """A stand-in for the client of real brokers."""

            def __init__(self, _: object) -> None:
                pass

            producer = staticmethod(lambda: machine._kafka().producer())

        def open_log(_: object) -> Log:
            return self.rig.open()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("statelog.history.source._ASK_AGAIN_S", 0.0)
            patch.setattr(clients, "open_log", open_log)
            patch.setattr(clients, "ConfluentKafka", Client)
            patch.setattr(sink, "TaskContext", Context)
            patch.setattr(sink, "TASK_SETTINGS", SMALL)
            for module, name in _CACHES:
                patch.setattr(module, name, None)
            self.is_quiet = False
            yield
