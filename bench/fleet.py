"""Many logs in one daemon: the time until each has had its round, and the resources of that process.

Each of a hundred logs gets a commit, all at once. The baseline is the work of one daemon for each log, without the
daemons: each log is opened with a client of its own and rolled up, one after the other.
"""

import tempfile
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from bench.figures import Figure, timed
from bench.logs import bench_where
from bench.setting import Setting
from statelog.log import Log, LogOptions, Where
from statelog.log.where import one_client
from statelog.materializer import Control, Event, EventKind, MaterializerSettings, run_round
from statelog.materializer.engine import LocalEngine
from statelog.materializer.fleet import Fleet, Kit
from statelog.producer import Writer

__all__ = ["fleet"]

LOGS = 100
_CHANGES = 1000


def fleet(setting: Setting) -> list[Figure]:
    """Measure rounds per second over all logs, and threads and memory of the process that drives them."""
    where = bench_where(setting.bootstrap, setting.root)
    with tempfile.TemporaryDirectory() as scratch, one_client(where) as shared, _logs(shared) as names:
        settings = MaterializerSettings(scratch=Path(scratch))  # Rounds run on request.
        _commit(shared, names)
        alone_s = timed(lambda: _one_by_one(names, where, settings))
        seconds, (threads, memory_mb) = _drive(shared, names, settings, setting.rounds)
    rates = [len(names) / one for one in seconds]
    label = f"{len(names)} logs in one daemon"
    return [
        Figure(
            name=f"{label}, a round each",
            unit="rounds/s",
            value=sorted(rates)[len(rates) // 2],
            lowest=min(rates),
            highest=max(rates),
            baseline_name="one by one",
            baseline=len(names) / alone_s,
        ),
        Figure(name=f"{label}, its threads", unit="threads", value=threads, lowest=threads, highest=threads),
        Figure(name=f"{label}, its memory", unit="MB", value=memory_mb, lowest=memory_mb, highest=memory_mb),
    ]


@contextmanager
def _logs(where: Where) -> Generator[list[str]]:
    names = [f"bench-{uuid4().hex[:8]}-{number}" for number in range(LOGS)]

    def make(name: str) -> None:
        Log.create(name, where, LogOptions(partitions=2, key_groups=16)).close()

    def delete(name: str) -> None:
        Log.delete(name, where)

    with ThreadPoolExecutor(4) as several:
        list(several.map(make, names))
        yield names
        list(several.map(delete, names))


def _commit(where: Where, names: list[str]) -> None:
    """Commit some changes to each log."""

    def write(name: str) -> None:
        with Log.open(name, where) as log, Writer(log, "bench") as writer:
            for number in range(_CHANGES):
                writer.put(b"%d" % number, b"%f" % time.time())
            writer.commit()

    with ThreadPoolExecutor(4) as several:
        list(several.map(write, names))


def _one_by_one(names: list[str], where: Where, settings: MaterializerSettings) -> None:
    for name in names:
        with Log.open(name, where) as log:
            run_round(log, settings)


def _drive(
    where: Where, names: list[str], settings: MaterializerSettings, times: int
) -> tuple[list[float], tuple[float, float]]:
    """Return the seconds until each log has had a round, for each repetition, and the threads and memory at the end."""
    waiting, is_empty, control = set[str](), threading.Event(), Control()

    def note(event: Event) -> None:
        if event.kind is EventKind.ROUND_COMPLETED:
            waiting.discard(event.log)
            if not waiting:
                is_empty.set()

    driven = Fleet(
        lambda name: Kit(lambda: Log.open(name, where), settings, LocalEngine), names, control=control, on_event=note
    )
    thread = threading.Thread(target=driven.run)
    seconds: list[float] = []
    for number in range(times + 1):  # The first repetition also opens all logs, and is not counted.
        _commit(where, names)
        waiting.update(names)
        is_empty.clear()
        control.trigger()
        if number == 0:
            thread.start()
        took_s = timed(lambda: is_empty.wait(600))
        seconds += [took_s] * (number > 0)
    at_work = _process()
    control.stop()
    thread.join()
    return seconds, at_work


def _process() -> tuple[float, float]:
    """Return the number of threads of this process, including those of libraries, and its memory in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    return float(found["Threads"]), float(found["VmRSS"]) / 1e3
