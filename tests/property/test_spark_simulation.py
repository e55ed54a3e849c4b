"""Random lives of Spark's write side, over an in-memory broker that loses, delays, refuses and half-answers.

Queries and plain writes copy sources into one log, through the sink that Spark calls. Their tasks fail, are doubled,
lose their message or go on when nobody waits for them; drivers die at any step and come back, or stand still while
others go on. Whatever happens, the log holds what a plain fold of the batches in its ledger gives, every batch once and
in order, and each that a driver was told of; and who has no rival meets no error but those of a broker that is away.
Every failure prints the seed that replays it.
"""

import random
import tempfile
import warnings
from pathlib import Path

import pytest

from statelog.errors import (
    CheckpointMismatch,
    CommitRefused,
    Fenced,
    LogInUse,
    OutcomeUnknown,
    PersistFailed,
    StatelogError,
    Unavailable,
)
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.schemas.ledger.fold import ValidCommit
from tests.sim.plays.spark_jobs import Attempt, Job, Run, Source, State
from tests.sim.plays.spark_machine import SMALL, Machine, Session
from tests.support.rigs.log import settings_for
from tests.support.samples.folds import apply_all, put_all

AWAY = (OutcomeUnknown, PersistFailed, Unavailable)
OVER = (CheckpointMismatch, CommitRefused, Fenced, LogInUse)
"""What a driver may be told that has a rival."""
RIVAL = "somebody"


class Judge:
    """Reads what the ledger says, and knows what the log has to hold by that."""

    def __init__(self, machine: Machine, jobs: list[Job]) -> None:
        self.machine, self.jobs = machine, {job.name: job for job in jobs}
        self.rivals: list[list[tuple[bytes, bytes | None]]] = []
        self.commits = 0
        self._state: State = {}
        self._seen: dict[str, list[int]] = {job.name: [] for job in jobs}
        self._is_foreign: set[str] = set()
        self._ledger = machine.apart(machine.rig.open().ledger.client)

    def look(self) -> None:
        """Everything is as it has to be now."""
        with self.machine.quiet():
            self.machine.apart(self._look)

    def _look(self) -> None:
        for valid in self._ledger.read_end():
            self._take(valid)
        for job in self.jobs.values():
            lost = job.told - {*self._seen[job.name]} - job.empty
            assert not lost, f"{job.name} was told of {lost}"
        assert self.machine.rig.state() == self._state

    def _take(self, valid: ValidCommit) -> None:
        self.commits += 1
        body, name = valid.commit.read_body(), valid.writer
        if "rival" in body.metadata:
            apply_all(self._state, self.rivals[int(body.metadata["rival"])])
            self._is_foreign.add(name)
            return
        job = self.jobs[name]
        batches = {job.written[one.nonce, entry.sqn] for one in body.handles for entry in one.entries}
        if job.kind != "plain":
            assert body.metadata["queryId"] == job.query_id
            batches |= {int(body.metadata["batchId"])}
        elif job.numbers_writes:
            batches |= {valid.commit.checkpoint.id - 1}
        elif not batches:
            return
        (batch,) = batches
        before = self._seen[name][-1:]
        again = name in self._is_foreign or (job.kind == "plain" and not job.numbers_writes)
        first = before[0] + (not again) if before else 0
        skipped = {*range(first, batch)} - job.empty - {*before}
        assert batch >= first, f"{name}: {batch} behind {before}"
        assert not skipped, f"{name}: {batch} without {skipped}"
        self._is_foreign.discard(name)
        self._seen[name].append(batch)
        job.source.apply(job.ranges[batch], self._state)


class History:
    """One history: what goes on, a step at a time."""

    def __init__(self, rng: random.Random, machine: Machine, scratch: Path) -> None:
        self.rng, self.machine, self.scratch = rng, machine, scratch
        self.kind = rng.choice(("honest", "honest", "zombies", "rivals"))
        machine.has_deposed = self.kind != "honest"
        self.has_rounds = rng.random() < 0.3
        self.jobs = [
            self._job("a", (0, 1), rng.choice(("stream", "upsert"))),
            self._job("b", (2,), rng.choice(("stream", "upsert"))),
            self._job("c", (3,), "plain"),
        ]
        with machine.quiet():
            self.judge = Judge(machine, self.jobs)
        self.runs: dict[Job, list[Run]] = {job: [] for job in self.jobs}
        self.attempts: list[Attempt] = []
        self.sessions: list[Session] = [machine.session()]
        self.errors: list[str] = []

    def _job(self, name: str, partitions: tuple[int, ...], kind: str) -> Job:
        location = self.scratch / f"checkpoint-{name}"
        rows = self.rng.choice(("unique", "checked", "sequence"))
        job = Job(name, Source(name, partitions), kind, rows, f"s3://bucket/{name}", self.rng.random() < 0.7)
        if self.rng.random() < 0.5:
            location.mkdir()
            (location / "metadata").write_text(f'{{"id": "{job.query_id}"}}')
            job.location = str(location)
        return job

    # ---- what goes on

    def step(self) -> None:
        """One thing of all that could happen now."""
        rng, draw = self.rng, self.rng.random()
        going = [run for runs in self.runs.values() for run in runs if run.may_go]
        if draw < 0.55 and going:
            rng.choice(going).step()
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
        elif draw < 0.99 and self.kind == "rivals":
            self.rival()
        elif self.has_rounds:
            self.roll_up()

    def start(self, job: Job) -> None:
        """Somebody starts the job again, if it does not run, or in spite of that."""
        runs, rng = self.runs[job], self.rng
        lives = [run for run in runs if not (run.is_over or run.session.is_dead)]
        if lives and (self.kind != "zombies" or len(lives) > 2 or rng.random() < 0.8):
            return
        # Who comes back to a session that another one took the query from is told of that, once.
        session = runs[-1].session if runs and self.kind == "honest" else rng.choice(self.sessions)
        if session.is_dead or rng.random() < 0.3:
            session = self.machine.session()
            self.sessions.append(session)
        more = self.answer_to(runs[-1].error) if runs else {}
        if self.kind == "rivals" and rng.random() < 0.2:
            more |= {"partitions": "0:4"}  # Another share of the log, which others have.
        run = Run(self.machine, job, session, f"run-{len(runs)}", more)
        run.launch = self.attempts.append
        runs.append(run)

    def answer_to(self, error: StatelogError | None) -> dict[str, str]:
        """The options that a person adds after an error."""
        if error is None:
            return {}
        allowed = AWAY if self.kind == "honest" else (*AWAY, *OVER)
        self.errors.append(type(error).__name__)
        assert isinstance(error, allowed), f"a false alarm: {error!r}"
        if isinstance(error, LogInUse):
            return {"takeOver": "true"}
        if isinstance(error, CheckpointMismatch) and error.facts.get("last_query_id"):
            return {"takeOverFrom": str(error.facts["last_query_id"]), "takeOver": "true"}
        return {}

    def rival(self) -> None:
        """A plain writer, perhaps under the name of a query, which takes partitions and perhaps commits."""
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
        """A round, which truncates."""
        self.judge.look()

        def go() -> None:
            with self.machine.rig.open() as log:
                run_round(log, settings_for(self.scratch))

        with self.machine.quiet():
            self.machine.apart(go)

    # ---- the end

    def end(self) -> None:
        """Whatever is late arrives. Then every job can go on, and nobody bars it who is not there any more."""
        self.judge.look()
        self.machine.cluster.release()
        self.judge.look()
        for run in [run for runs in self.runs.values() for run in runs]:
            run.session.kill()
        self.machine.is_quiet = True
        for job in self.jobs:
            more, last = {"takeOver": "true"} if self.kind == "rivals" else {}, self.runs[job][-1:]
            error = last[0].error if last else None
            for _ in range(3 if self.kind == "rivals" else 1):
                more |= self.answer_to(error)
                run = Run(self.machine, job, self.machine.session(), "run-end", more)
                batch = run.batch
                while not run.is_over and run.batch <= batch:
                    run.step()
                error = run.error
                if error is None:
                    break
            assert error is None, error
        self.judge.look()


def run(seed: int) -> tuple[int, History]:
    """One history; returns how many commits the ledger has."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        machine = Machine(rng, share=rng.choice((0.0, 0.01, 0.04)))
        with machine.installed(directory):
            history = History(rng, machine, Path(directory))
            machine.elsewhere = history.step
            try:
                for _ in range(rng.randint(40, 160)):
                    history.step()
                history.end()
            except BaseException as error:
                error.add_note(f"seed {seed}, {history.kind}")
                raise
        return history.judge.commits, history


def test_histories_end_in_the_fold_of_what_was_committed() -> None:
    """Over many seeds nothing is lost, doubled or torn, and no honest job is told of a rival.

    `make soak` takes two hundred times as many.
    """
    assert sum(run(seed)[0] for seed in range(30)) > 100


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_more_histories() -> None:
    """The same over far more seeds."""
    for seed in range(1_000, 7_000):
        run(seed)
