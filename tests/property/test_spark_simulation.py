"""Random runs of Spark's write side, over an in-memory broker that loses, delays, refuses and half-answers.

Queries and plain writes, two of them to one partition, copy sources into one log, through the sink that Spark calls.
Their tasks fail, are doubled, lose their message or go on when nobody waits for them. Drivers die at any step and come
back, or stand still while others go on. In every case the log equals a plain fold of the batches in its ledger, every
batch once and in order. Each acknowledged batch is in it. A job without a competing writer meets no error but an
unavailable broker's. By the kind of a history a query also runs twice, or on copies of its checkpoint, old ones too.
Plain writers come between; or the ledger loses its end, and a client that read it goes on no more. Every failure prints
the seed that replays it.
"""

import random
import tempfile
import warnings
from contextlib import suppress
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from statelog.errors import (
    CheckpointMismatch,
    CommitRefused,
    Damaged,
    Fenced,
    LogInUse,
    OutcomeUnknown,
    PersistFailed,
    StatelogError,
    Unavailable,
)
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.schemas.ledger.fold import ValidCommit
from statelog.spark.ownership import RECENT_S
from tests.sim.plays.spark_jobs import Attempt, Job, Range, Run, Source, State
from tests.sim.plays.spark_machine import SMALL, Machine, Session
from tests.support.rigs.log import settings_for
from tests.support.samples.folds import apply_all, put_all

AWAY = (OutcomeUnknown, PersistFailed, Unavailable)
OVER = (CheckpointMismatch, CommitRefused, Fenced, LogInUse)
"""The errors of a driver with a competing writer."""
RIVAL = "somebody"
KINDS = ("honest", "honest", "honest", "deposed", "zombies", "zombies", "rivals", "rivals", "forks", "losses")
"""Honest: every running job is alone. Deposed: old leaders answer, too."""


class Judge:
    """A reader of the ledger, which derives the required state of the log."""

    def __init__(self, machine: Machine, jobs: list[Job]) -> None:
        self.machine, self.jobs = machine, jobs
        self.rivals: list[list[tuple[bytes, bytes | None]]] = []
        self.commits = 0
        self._state: State = {}
        self.seen: dict[str, list[int]] = {job.name: [] for job in jobs}
        self.newest: dict[str, Range] = {}
        """The rows of each job's last commit."""
        self._epochs: dict[str, int] = {}
        """The epoch of each run's last commit."""
        self._is_foreign: set[str] = set()
        self._log = machine.apart(machine.rig.open)
        self._ledger = machine.apart(self._log.replay)

    def look(self) -> None:
        """Check that everything is as it has to be now."""
        with self.machine.quiet():
            self.machine.apart(self._look)

    def _look(self) -> None:
        for valid in self._ledger.commits(self._log.ledger.end()):
            self._take(valid)
        for job in self.jobs:
            lost = job.told - {*self.seen[job.name]} - job.empty
            assert not lost, f"{job.name}: acknowledged, and not in history: {lost}"
        assert self.machine.rig.state() == self._state

    def _take(self, valid: ValidCommit) -> None:
        self.commits += 1
        body, name = valid.commit.read_body(), valid.writer
        if "rival" in body.metadata:
            apply_all(self._state, self.rivals[int(body.metadata["rival"])])
            self._is_foreign.add(name)
            return
        if "runId" in body.metadata:
            self._check_epoch(str(body.metadata["runId"]), valid.commit.epoch)
        forks = [job for job in self.jobs if job.name == name]
        job = forks[0]
        written = {job.written[one.nonce, entry.sqn] for one in body.handles for entry in one.entries}
        batches = {batch for _, batch in written}
        if job.kind != "plain":
            assert body.metadata["queryId"] == job.query_id
            batches |= {int(body.metadata["batchId"])}
        elif job.numbers_writes:
            batches |= {valid.commit.checkpoint.id - 1}
        elif not batches:
            return
        (batch,) = batches
        before = self.seen[name][-1:]
        again = name in self._is_foreign or (job.kind == "plain" and not job.numbers_writes)
        first = before[0] + (not again) if before else 0
        assert batch >= first, f"{name}: {batch} behind {before}"
        if len(forks) == 1 and self.machine.lost_from is None:
            skipped = {*range(first, batch)} - job.empty - {*before}
            assert not skipped, f"{name}: {batch} without {skipped}"
        self._is_foreign.discard(name)
        self.seen[name].append(batch)
        assert written or any(fork.is_empty(batch) for fork in forks), f"{name}: {batch} lacks its rows"
        assert len(written) <= 1, f"{name}: {batch} has rows of two checkpoints"
        self.newest[name] = Range(0, 0)
        for fork, _ in written:
            self.newest[name] = fork.ranges[batch]
            fork.source.apply(fork.ranges[batch], self._state)

    def _check_epoch(self, run: str, epoch: int) -> None:
        """Check that a run's epoch is its only one, or follows one of its own: it took none back from others."""
        before, machine = self._epochs.get(run, epoch), self.machine
        opens, self._epochs[run] = machine.opens(), epoch
        while machine.lost_from is None and epoch > before:
            assert machine.openers[opens[epoch].nonce] == run, f"run {run} took its epoch back"
            epoch = opens[epoch].prior

    def holds(self, run: Run) -> bool:
        """Return whether the job's last commit is the run's batch, with its rows."""
        own, newest = run.job.ranges[run.batch], self.newest.get(run.job.name, Range(0, 0))
        is_last = self.seen[run.job.name][-1:] == [run.batch]
        return is_last and (own == newest or own.rows == newest.rows == 0)


class History:
    """One history: its actors, a step at a time."""

    def __init__(self, rng: random.Random, machine: Machine, scratch: Path, kind: str) -> None:
        self.rng, self.machine, self.scratch, self.kind = rng, machine, scratch, kind
        machine.has_deposed = self.kind not in ("honest", "losses")
        self.has_rounds = self.kind != "losses" and rng.random() < 0.3
        self.jobs = [
            self._job("a", (0, 1), rng.choice(("stream", "upsert"))),
            self._job("b", (2,), rng.choice(("stream", "upsert"))),
            self._job("c", (3,), "plain"),
            self._job("d", (3,), "plain"),
        ]
        with machine.quiet():
            self.judge = Judge(machine, self.jobs)
        self.runs: dict[Job, list[Run]] = {job: [] for job in self.jobs}
        self.attempts: list[Attempt] = []
        self.sessions: list[Session] = [machine.session()]
        self.errors: list[str] = []
        self._begun, self._numbers = 0, count()

    def _job(self, name: str, partitions: tuple[int, ...], kind: str) -> Job:
        rows = self.rng.choice(("unique", "checked", "sequence"))
        return Job(name, Source(name, partitions), kind, rows, numbers_writes=self.rng.random() < 0.7)

    # ---- the steps

    def step(self) -> None:
        """Do one of all steps that are possible now."""
        rng, draw = self.rng, self.rng.random()
        going = [run for runs in self.runs.values() for run in runs if run.may_go]
        if draw < 0.55 and going:
            self.go_on(rng.choice(going))
        elif draw < 0.8 and self.attempts:
            attempt = self.attempts.pop(rng.randrange(len(self.attempts)))
            if not attempt.run.session.is_dead or rng.random() < 0.5:
                attempt.go()
        elif draw < 0.9:
            self.start(rng.choice(self.jobs))
        elif draw < 0.96:
            self.machine.cluster.release(rng.randrange(3))
        elif draw < 0.97:
            self.machine.cluster.expire()
            self.machine.pass_time(rng.choice((1, 700, 4_000)))
        elif draw < 0.98:
            rng.choice(self.sessions).kill()
        else:
            self._strike(draw < 0.99)

    def _strike(self, is_early: bool) -> None:
        """Do the special action of the history's kind; or run a round."""
        if self.kind == "losses" and self.machine.lost_from is None:
            self.lose()
        elif self.kind == "forks" and is_early:
            self.fork()
        elif self.kind == "rivals" and is_early:
            self.rival()
        elif self.has_rounds:
            self.roll_up()

    def go_on(self, run: Run) -> None:
        """Do the run's next step.

        It learns of the commit of a copied checkpoint's batch only while that commit is the last.
        """
        begun, told = self._begun + 1, len(run.job.told)
        self._begun = begun
        run.step()
        if self.kind == "forks" and len(run.job.told) > told and begun == self._begun:
            self.judge.look()
            assert run.job.kind == "plain" or self.judge.holds(run), "acknowledged an old batch, or another's rows"

    def fork(self) -> None:
        """Copy the checkpoint of a query, now or as it was."""
        job = self.rng.choice([job for job in self.jobs if job.kind != "plain"])
        batches = max(0, len(job.ranges) - self.rng.choice((0, 0, 1, 1, 2, 3)))
        self.jobs.append(job.fork(batches, is_noted=self.rng.random() < 0.5))
        self.runs[self.jobs[-1]] = []

    def lose(self) -> None:
        """Let the ledger lose its end. Earlier acknowledgements to drivers no longer bind."""
        self.machine.lose(self.rng.randint(1, 4))
        for job in self.jobs:
            job.told.clear()

    def start(self, job: Job) -> None:
        """Start the job again, if it does not run, or in spite of that."""
        runs, rng = self.runs[job], self.rng
        lives = [run for run in runs if not (run.is_over or run.session.is_dead)]
        if lives and (self.kind != "zombies" or len(lives) > 2 or rng.random() < 0.8):
            return
        is_bound = self.kind in ("honest", "deposed", "forks") or rng.random() < 0.4
        session = runs[-1].session if runs and is_bound else rng.choice(self.sessions)
        if self.kind == "forks" and not runs:
            session = self.machine.session()  # Spark never has a query twice in one session.
            self.sessions.append(session)
        is_twice = job.kind != "plain" and session in [run.session for run in lives]  # Nor the same one.
        if session.is_dead or rng.random() < 0.3 or is_twice:
            session = self.machine.session()
            self.sessions.append(session)
        more = self.answer_to(runs[-1]) if runs else {}
        if self.kind == "rivals" and rng.random() < 0.2:
            more |= {"partitions": "0:4"}  # Another share of the log, which others own.
        run = Run(self.machine, job, session, self._run_id(), more)
        run.launch = self.attempts.append
        runs.append(run)

    def _run_id(self) -> str:
        return str(UUID(int=next(self._numbers)))

    def answer_to(self, run: Run) -> dict[str, str]:
        """Return the options that a person adds after the error that a run ended with."""
        error = run.error
        if error is None:
            return {}
        self.errors.append(type(error).__name__)
        assert isinstance(error, self._allowed(run)), f"a false alarm: {error!r}"
        if self.kind in ("honest", "deposed"):
            return {}  # The other write will end.
        if isinstance(error, LogInUse):
            return {"takeOver": "true"}
        if isinstance(error, CheckpointMismatch) and error.facts.get("last_query_id"):
            return {"takeOverFrom": str(error.facts["last_query_id"]), "takeOver": "true"}
        return {}

    def _allowed(self, run: Run) -> tuple[type[StatelogError], ...]:
        """Return the errors that this run may end with."""
        if self.kind not in ("honest", "deposed"):
            return (*AWAY, *OVER, *((Damaged,) if self.machine.lost_from is not None else ()))
        allowed: tuple[type[StatelogError], ...] = AWAY
        if self.kind == "deposed":
            allowed += (CheckpointMismatch,)  # The last commit was hidden while this one was planned.
        if run.job.kind == "plain":
            others = [one for job, runs in self.runs.items() if job is not run.job for one in runs if one.planned_s]
            if self.kind == "deposed" or any(
                one.planned_s <= run.last_s and run.planned_s <= one.last_s for one in others
            ):
                allowed += (CommitRefused, Fenced)  # Another writer wrote to the partition at the same time.
        return allowed

    def rival(self) -> None:
        """Run a plain writer, perhaps under the name of a query, which takes partitions and perhaps commits."""
        rng, number = self.rng, len(self.judge.rivals)
        of = Source(RIVAL, tuple(rng.sample(range(4), rng.randint(1, 3))))
        changes = [of.change(rng.randrange(1_000)) for _ in range(rng.randint(0, 5))]
        self.judge.rivals.append(changes)
        name = rng.choice((RIVAL, "a", "b"))

        def write() -> None:
            with self.machine.rig.open() as log, Writer(log, name, partitions=of.partitions, settings=SMALL) as writer:
                put_all(writer, changes)
                if rng.random() < 0.7:
                    writer.commit({"rival": str(number)})
                else:
                    writer.truncate_and_close(writer.next_sequence_number())

        try:
            self.machine.apart(write)
        except (*AWAY, *OVER):
            pass

    def roll_up(self) -> None:
        """Run a round, which truncates."""
        self.judge.look()

        def go() -> None:
            with self.machine.rig.open() as log:
                run_round(log, settings_for(self.scratch))

        with self.machine.quiet():
            self.machine.apart(go)

    # ---- the end

    def end(self) -> None:
        """Let late records arrive; then check that every job can go on, without any dead one in its way."""
        if self.kind == "losses":
            self._end_behind_a_loss()
            return
        self.judge.look()
        self.machine.cluster.release()
        self.judge.look()
        for run in [run for runs in self.runs.values() for run in runs]:
            run.session.kill()
        self.machine.is_quiet = True
        self.machine.pass_time(RECENT_S)
        for job in self.jobs:
            more, last = {"takeOver": "true"} if self.kind == "rivals" else {}, self.runs[job][-1:]
            for _ in range(3 if self.kind in ("rivals", "forks") else 1):
                more |= self.answer_to(last[0]) if last else {}
                last = [Run(self.machine, job, self.machine.session(), self._run_id(), more)]
                batch = last[0].batch
                while not last[0].is_over and last[0].batch <= batch:
                    last[0].step()
                if last[0].error is None:
                    break
            error = last[0].error
            is_told = isinstance(error, CheckpointMismatch) and not self.judge.holds(last[0])
            is_old = is_told and last[0].batch <= max(self.judge.seen[job.name], default=0)
            assert error is None or (self.kind == "forks" and is_old), error
            self.judge.look()

    def _end_behind_a_loss(self) -> None:
        """Check that no batch acknowledged since the loss is lost; a full reader is right, or raises."""
        self.machine.cluster.release()
        with self.machine.quiet():
            judge = Judge(self.machine, self.jobs)
        with suppress(Damaged):
            judge.look()


def run(seed: int) -> tuple[int, History]:
    """Run one history; return how many commits the ledger has."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        machine = Machine(rng, share=rng.choice((0.0, 0.01, 0.04, 0.08)))
        with machine.installed(), pytest.MonkeyPatch.context() as monkeypatch:
            history = History(rng, machine, Path(directory), KINDS[seed % len(KINDS)])
            machine.elsewhere = history.step
            if history.kind == "losses":
                monkeypatch.setattr(Log, "patience_s", 0.0)
            try:
                for _ in range(rng.randint(40, 160)):
                    history.step()
                history.end()
            except BaseException as error:
                error.add_note(f"seed {seed}, {history.kind}")
                raise
        return history.judge.commits, history


def test_histories_end_in_the_fold_of_what_was_committed() -> None:
    """Over many seeds nothing is lost, doubled or torn, and no honest job meets a competing writer's error.

    `make soak` takes three hundred times as many.
    """
    assert sum(run(seed)[0] for seed in range(17)) > 100


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_more_histories() -> None:
    """Nothing is lost over far more seeds."""
    for seed in range(1_000, 7_000):
        run(seed)
