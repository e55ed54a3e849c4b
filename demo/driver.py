"""The Spark driver as a process that the demo starts, kills in the middle of a batch, and starts again.

"The driver" is two processes: Python and its JVM. The JVM's children are worker daemons, whose children are the
workers. The kill spares the workers, so they become orphans.

To hit the middle of a batch, driver and workers are stopped (SIGSTOP) when the log has chunks that no commit lists yet.
Then the ledger is read again, and the driver is killed (SIGKILL) only if the batch is still open. The orphans stay
stopped until the restarted job has committed, and are then woken: as late as a writer can be.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from demo.failure import DemoFailed
from demo.ledger_watch import Chunks, LedgerWatch
from demo.place import Place, child_environment
from demo.processes import alive, children_of, process_table, resume, start, stop, wait_until
from statelog.kafka.port import OffsetRange
from statelog.testing.process import tail

__all__ = ["Killed", "Orphans", "SparkDriver", "end_orphans", "kill_in_mid_batch", "wake_orphans"]

_END_TIMEOUT_S = 30.0
_HUNT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """The kill: the processes that died and survived, and the chunks in the log without a commit at that moment."""

    driver_pids: tuple[int, ...]
    orphan_pids: tuple[int, ...]
    epoch: int
    commits: int
    at_s: float
    left: Chunks
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """The work of the orphans, which were woken after `asleep_s` seconds: chunks (`wrote`) and `void_commits`."""

    pids: tuple[int, ...]
    asleep_s: float
    commits_meanwhile: int
    lived_s: float
    wrote: Chunks
    void_commits: int


class SparkDriver:
    """One run of the job."""

    def __init__(self, place: Place, life: int) -> None:
        self._log = place.directory / f"spark-driver-{life}.log"
        command = [sys.executable, "-m", "demo.job", place.to_json()]
        self._process = start(command, self._log, child_environment(), stdin=subprocess.DEVNULL)

    def has_ended(self) -> bool:
        """Tell whether the job has ended. Raises DemoFailed if it failed."""
        code = self._process.poll()
        if code is not None and code != 0:
            raise DemoFailed(f"the Spark job ended with {code}: {tail(self._log, 8)}\nSee {self._log}")
        return code == 0

    def pids(self) -> tuple[int, ...]:
        """Return the driver's processes: Python and its JVM."""
        return (self._process.pid, *children_of([self._process.pid], process_table()))

    def worker_pids(self) -> tuple[int, ...]:
        """Return the current Python workers: children of the JVM's children, in sessions of their own."""
        table = process_table()
        return tuple(pid for pid in children_of(children_of(self.pids()[1:], table), table) if _leads_session(pid))

    @contextmanager
    def held(self) -> Generator[None]:
        """Stop the driver and its workers for the time of the block."""
        pids = (*self.pids(), *self.worker_pids())
        stop(pids)
        yield
        resume(pids)

    def kill(self) -> None:
        """Kill Python and JVM, and wait until both have ended."""
        pids = self.pids()
        for pid in pids[1:]:
            _kill(pid)
        self._process.kill()
        self._process.wait()
        wait_until(lambda: not alive(pids), _END_TIMEOUT_S, "the killed driver does not die")

    def end(self) -> None:
        """End the driver and its workers in any state, for the cleanup after a failure."""
        if self._process.poll() is None:
            workers = self.worker_pids()
            self.kill()
            end_orphans(workers)


def kill_in_mid_batch(driver: SparkDriver, watch: LedgerWatch) -> Killed:
    """Kill the driver alone while a batch is in the log without its commit."""
    attempts = 0
    deadline_s = time.monotonic() + _HUNT_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if driver.has_ended():
            raise DemoFailed("the Spark job ended before it could be killed in the middle of a batch")
        watch.refresh()
        if not watch.in_flight():
            continue
        attempts += 1
        drivers, workers = driver.pids(), driver.worker_pids()
        stop((*drivers, *workers))
        watch.refresh()
        if watch.in_flight() and workers:
            driver.kill()
            return _killed(drivers, workers, watch, attempts)
        resume((*drivers, *workers))
    raise DemoFailed("no batch was ever seen in the log before its commit")


def _killed(drivers: tuple[int, ...], workers: tuple[int, ...], watch: LedgerWatch, attempts: int) -> Killed:
    epoch = watch.commits[-1].epoch
    return Killed(
        driver_pids=drivers,
        orphan_pids=alive(workers),
        epoch=epoch,
        commits=len(watch.commits),
        at_s=time.monotonic(),
        left=watch.chunks_of(epoch, watch.in_flight()),
        attempts=attempts,
    )


def wake_orphans(killed: Killed, watch: LedgerWatch, data_ends: Callable[[], Mapping[int, int]]) -> Orphans:
    """Let the orphans run on, and watch them until they have ended."""
    pids = alive(killed.orphan_pids)
    ends = data_ends()
    asleep_s = time.monotonic() - killed.at_s
    commits_meanwhile = len(watch.commits) - killed.commits
    resume(pids)
    lived_s = wait_until(lambda: not alive(pids), _END_TIMEOUT_S, "an orphaned worker does not end")
    late = {p: OffsetRange(ends[p], end) for p, end in data_ends().items() if end > ends[p]}
    watch.refresh()
    return Orphans(
        pids=pids,
        asleep_s=asleep_s,
        commits_meanwhile=commits_meanwhile,
        lived_s=lived_s,
        wrote=watch.chunks_of(killed.epoch, late),
        void_commits=sum(epoch == killed.epoch for epoch, _ in watch.voids),
    )


def end_orphans(pids: tuple[int, ...]) -> None:
    """Kill remaining workers, for the cleanup after a failure."""
    for pid in alive(pids):
        _kill(pid)


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
