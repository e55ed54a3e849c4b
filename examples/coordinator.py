"""Counting words with many processes and one commit: exact, whichever process is killed at any time.

    statelog dev start                     # a Kafka on 127.0.0.1:9092
    python -m examples.coordinator         # in the checkout; takes the address of another Kafka

One *coordinator* reads a text, a few lines at a time. It opens the log, hands every batch of lines to all workers, and
commits what they return together with the number of the next line. Each *worker*, in a process of its own, counts the
words of some of the key groups: it restores their counts from the log, and writes those that a batch changes under the
coordinator's epoch. Workers need no locks, no ledger and no knowledge of each other.

Every process of this program kills itself with SIGKILL at one in fifty of its steps, and the result is exact:

- A worker dies: its pipe breaks. The coordinator starts another, which restores the same key groups as of the last
  commit and gets the same batch in a slot of its own. No commit lists what the dead worker wrote, so it is never seen.
- The coordinator dies: its parent starts it again. It opens the log, which fences the epoch of the former coordinator,
  and continues at the line that the last commit names. Old workers may still write, but no commit lists their chunks.
"""

import os
import random
import re
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from statelog.log import Log, LogOptions, Where
from statelog.producer import Coordinator, TaskGrant, TaskWriter
from statelog.recovery import recover
from statelog.schemas import Handle, KeyType, key_group_of, share

__all__ = ["Job", "coordinate", "count_words", "run_to_the_end"]

SPAWN = get_context("spawn")
KILLED = -signal.SIGKILL
LAPTOP = ("replication", "min-insync")  # One broker, on a laptop: waived by name, never silently.
LICENSE = Path(__file__).parent.parent / "LICENSE"
LINES_PER_COMMIT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The text to count, and the place. `step` is called with the name of every step, which may end the process."""

    log: str
    where: Where
    text: Path
    workers: int
    step: Callable[[str], None]

    def open(self) -> Log:
        """Open the log for one process."""
        return Log.open(self.log, self.where)


class Batch(NamedTuple):
    """Lines to count, the right to write the changes, and a slot that no other attempt of any worker has."""

    task: TaskGrant
    slot: int
    lines: Sequence[str]


def words(lines: Iterable[str]) -> Iterator[str]:
    """Yield the words of a text, in lower case."""
    return (word.lower() for line in lines for word in re.findall(r"\w+", line))


# ---- a worker


def work(job: Job, key_groups: range, pipe: Connection) -> None:
    """Restore the counts of these key groups, then write the changes of every batch, until the coordinator ends."""
    with suppress(EOFError, ConnectionError), job.open() as log, closing(log.kafka.producer()) as producer:
        counts: dict[str, bytes] = recover(log, key_groups=key_groups).to_dict()
        while True:
            batch: Batch = pipe.recv()
            job.step("worker: asked")
            writer = TaskWriter(producer, batch.task, slot=batch.slot)
            for word, times in Counter(words(batch.lines)).items():
                if key_group_of(word, KeyType.STRING, log.descriptor.key_groups) in key_groups:
                    counts[word] = b"%d" % (int(counts.get(word, 0)) + times)
                    writer.put(word, counts[word])
            job.step("worker: counted")
            handle = writer.finish()
            job.step("worker: persisted")
            pipe.send(handle)


class Worker:
    """The coordinator's side of a worker: a process, which is replaced when it is killed, and the pipe to it."""

    def __init__(self, job: Job, key_groups: range) -> None:
        self._job = job
        self._key_groups = key_groups
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=work, args=(self._job, self._key_groups, theirs), daemon=True)
        self._process.start()
        theirs.close()  # The worker has the only copy of its end, so the pipe breaks when it dies.

    def ask(self, batch: Batch) -> None:
        """Send a batch. `answer` tells whether the worker is dead."""
        with suppress(ConnectionError):
            self._pipe.send(batch)

    def answer(self) -> Handle | None:
        """Return the handle of its changes; None if it was killed: its replacement needs the batch again."""
        try:
            handle: Handle = self._pipe.recv()
        except (EOFError, OSError):  # Killed before its answer, or in the middle of it.
            self.close()
            if self._process.exitcode != KILLED:
                raise SystemExit("a worker failed; its output is above") from None
            self._start()
            return None
        return handle

    def close(self) -> None:
        """Let the worker end."""
        self._pipe.close()
        self._process.join()


# ---- the coordinator


def coordinate(job: Job) -> None:
    """Count the remaining lines, with one commit for every few lines."""
    lines = job.text.read_text(encoding="utf-8").splitlines()
    with (
        job.open() as log,
        Coordinator(log, "word-count") as coordinator,
        ExitStack() as stack,
    ):
        job.step("coordinator: opened")
        last = coordinator.last_commit
        line = int(last.metadata["line"]) if last else 0
        slots = count()
        shares = [share(log.descriptor.key_groups, worker=i, workers=job.workers) for i in range(job.workers)]
        workers = [stack.enter_context(closing(Worker(job, key_groups))) for key_groups in shares]
        while line < len(lines):
            end = min(line + LINES_PER_COMMIT, len(lines))
            task = coordinator.task()
            handles = ask_all(workers, task, slots, lines[line:end])
            job.step("coordinator: answered")
            coordinator.commit(handles, {"line": end})
            line = end


def ask_all(workers: Sequence[Worker], task: TaskGrant, slots: Iterator[int], lines: Sequence[str]) -> list[Handle]:
    """Count a batch by all workers at once; ask the replacement of a killed worker again."""

    def ask(worker: Worker) -> None:
        worker.ask(Batch(task, next(slots), lines))

    handles: list[Handle] = []
    for worker in workers:
        ask(worker)
    for worker in workers:
        while (handle := worker.answer()) is None:
            ask(worker)
        handles.append(handle)
    return handles


# ---- the program


def run_to_the_end(job: Job) -> int:
    """Start the coordinator, again whenever it is killed, until all lines are counted. Returns the number of starts."""
    lives, exitcode = 0, KILLED
    while exitcode == KILLED:
        process = SPAWN.Process(target=coordinate, args=(job,))
        process.start()
        process.join()
        lives, exitcode = lives + 1, process.exitcode or 0
    if exitcode:
        raise SystemExit("the coordinator failed; its output is above")
    return lives


def count_words(job: Job) -> dict[str, int]:
    """Return the counts in the log."""
    with job.open() as log:
        return {word: int(times) for word, times in recover(log).to_dict().items()}


def russian_roulette(step: str) -> None:
    """Kill this process at one step in fifty."""
    if random.random() < 0.02:
        print(f"killed at {step}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Count with many kills, then count by a plain loop, and compare."""
    kafka = {"bootstrap.servers": sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"}
    name = f"word-count-{uuid.uuid4().hex[:8]}"
    with TemporaryDirectory() as root:
        where = Where(kafka, root, allow_unsafe=LAPTOP, replication_factor=1)
        Log.create(name, where, LogOptions(key_type="string")).close()
        job = Job(log=name, where=where, text=LICENSE, workers=3, step=russian_roulette)
        lives = run_to_the_end(job)
        counted = count_words(job)
        Log.delete(name, where)
    exact = counted == Counter(words(LICENSE.read_text(encoding="utf-8").splitlines()))
    print(f"{sum(counted.values())} words, {lives} lives of the coordinator: {'exact' if exact else 'WRONG'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
