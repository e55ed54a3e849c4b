"""The streaming part: the job runs, is killed in the middle of a batch, and restarts from its checkpoint.

Meanwhile the demo watches the log from outside, and the materializer daemon makes snapshots and truncates. A second
query follows the log from the first snapshot on.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from demo.driver import Killed, Orphans, SparkDriver, end_orphans, kill_in_mid_batch, wake_orphans
from demo.failure import DemoFailed
from demo.followed import Followed, read_rows
from demo.follower import Follower
from demo.ledger_watch import LedgerWatch, SeenCommit
from demo.materialize import MaterializerDaemon
from demo.place import Place
from demo.processes import wait_until
from demo.screen import Screen
from statelog.log import Log

__all__ = ["Life", "Streamed", "run_stream"]

_TICK_S = 0.05
_SNAPSHOT_EVERY_S = 1.0
_TAIL_BATCHES = 4
_TIMEOUT_S = 600.0
_CATCH_UP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One run of the job: its commits, and the seconds from its start to the first of them."""

    commits: Sequence[SeenCommit]
    start_s: float

    @property
    def span_s(self) -> float:
        """The seconds from the first commit to the last."""
        return self.commits[-1].at_s - self.commits[0].at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """The events while the input went through."""

    lives: tuple[Life, Life]
    killed: Killed
    orphans: Orphans
    followed: Followed
    snapshots: int
    truncated_bytes: int

    @property
    def commits(self) -> list[SeenCommit]:
        """The valid commits of both runs of the job."""
        return [commit for life in self.lives for commit in life.commits]


def run_stream(place: Place, log: Log, batches: int, screen: Screen) -> Streamed:
    """Send all batches through. Raises DemoFailed if anything goes wrong."""
    with ExitStack() as stack:
        watch = LedgerWatch(log)
        stack.callback(watch.close)
        daemon = MaterializerDaemon(place)
        stack.callback(daemon.end)
        follower = Follower(place)
        stack.callback(follower.end)
        run = _Run(place, log, batches, screen, watch, daemon, follower, stack)
        killed, first = run.first_life()
        orphans, second = run.second_life(killed)
        run.stop_daemon()
        _check_exactly_once(watch, batches, killed)
        follower.finish()
        return Streamed(
            lives=(first, second),
            killed=killed,
            orphans=orphans,
            followed=_followed(place, follower, watch.commits),
            snapshots=run.snapshots,
            truncated_bytes=watch.truncated_bytes(),
        )


class _Run:
    """The two runs of the job, and the observations meanwhile."""

    def __init__(
        self,
        place: Place,
        log: Log,
        batches: int,
        screen: Screen,
        watch: LedgerWatch,
        daemon: MaterializerDaemon,
        follower: Follower,
        stack: ExitStack,
    ) -> None:
        self._place = place
        self._log = log
        self._batches = batches
        self._screen = screen
        self._watch = watch
        self._daemon = daemon
        self._follower = follower
        self._stack = stack
        self._deadline_s = time.monotonic() + _TIMEOUT_S
        self._listed_s = 0.0
        self._daemon_runs = True
        self.snapshots = 0

    def first_life(self) -> tuple[Killed, Life]:
        """Run until half of the batches are committed, then kill the driver in the middle of the next one.

        The second query starts to read before the kill, and has all commits before the job is started again.
        """
        self._screen.event("starting the Spark job")
        started_s = time.monotonic()
        driver = self._start(1)
        while len(self._watch.commits) < self._batches // 2:
            if driver.has_ended():
                raise DemoFailed("the Spark job ended before half of the batches were committed")
            self._tick()
        if not self._follower.position:
            self._screen.event("the job waits (SIGSTOP) until the second query reads, too")
            with driver.held():
                self._await_follower()
        killed = kill_in_mid_batch(driver, self._watch)
        self._stack.callback(end_orphans, killed.orphan_pids)
        self._screen.killed(killed)
        self._catch_up()
        return killed, self._life(self._watch.commits[: killed.commits], started_s)

    def second_life(self, killed: Killed) -> tuple[Orphans, Life]:
        """Run from the checkpoint to the end; wake the orphans after the first new commit."""
        self._screen.restarting()
        started_s = time.monotonic()
        driver = self._start(2)
        while len(self._watch.commits) == killed.commits and not driver.has_ended():
            self._tick()
        orphans = wake_orphans(killed, self._watch, self._ends)
        self._screen.woken(orphans)
        while not driver.has_ended():
            self._tick()
            if len(self._watch.commits) >= self._batches - _TAIL_BATCHES:
                self.stop_daemon()
        self.refresh()
        return orphans, self._life(self._watch.commits[killed.commits :], started_s)

    def stop_daemon(self) -> None:
        """Stop the daemon a few batches before the end, to leave a tail behind the snapshot for the recovery."""
        if self._daemon_runs:
            self._daemon.stop()
            self._daemon_runs = False
            self._listed_s = 0.0
            self.refresh()
            self._screen.daemon_stopped(self.snapshots)

    def refresh(self) -> None:
        """Read the news, and show them."""
        self._watch.refresh()
        self._screen.batches(len(self._watch.commits), self._batches)
        now_s = time.monotonic()
        if now_s - self._listed_s < _SNAPSHOT_EVERY_S:
            return
        self._listed_s = now_s
        stored = self._log.manifests.newest()
        if stored is not None and stored.number > self.snapshots:
            self.snapshots = stored.number
            self._screen.snapshot(stored, self._log.data_offsets())
            if not self._follower.has_begun:
                self._follower.begin()
                self._screen.event(
                    "a second query begins: the state of the newest snapshot, then every change behind it"
                )

    def _await_follower(self) -> None:
        while not self._follower.position:
            self._tick()

    def _catch_up(self) -> None:
        """Wait until the second query has all commits of the killed job."""
        position = self._watch.commits[-1].offset + 1

        def caught_up() -> bool:
            self._follower.refresh()
            return self._follower.position >= position

        took_s = wait_until(caught_up, _CATCH_UP_S, "the second query does not read what the killed job committed")
        self._screen.caught_up(len(self._watch.commits), took_s)

    def _tick(self) -> None:
        if self._daemon_runs:
            self._daemon.check()
        self._look_at_follower()
        self.refresh()
        if time.monotonic() > self._deadline_s:
            raise DemoFailed(f"the Spark job did not get through its input within {_TIMEOUT_S:.0f} s")
        time.sleep(_TICK_S)

    def _look_at_follower(self) -> None:
        before = self._follower.position
        self._follower.refresh()
        if self._follower.position and not before:
            self._screen.follows(self._follower.begin_position())

    def _start(self, life: int) -> SparkDriver:
        driver = SparkDriver(self._place, life)
        self._stack.callback(driver.end)
        return driver

    def _life(self, commits: Sequence[SeenCommit], started_s: float) -> Life:
        if not commits:
            raise DemoFailed("the Spark job ended without a commit")
        return Life(commits=commits, start_s=commits[0].at_s - started_s)

    def _ends(self) -> dict[int, int]:
        return {partition: offsets.end for partition, offsets in self._log.data_offsets().items()}


def _check_exactly_once(watch: LedgerWatch, batches: int, killed: Killed) -> None:
    if len(watch.commits) != batches:
        raise DemoFailed(f"{batches} batches gave {len(watch.commits)} valid commits")
    if len(watch.epochs) != 2:
        raise DemoFailed(f"two lives of the job opened {len(watch.epochs)} epochs")
    if any(commit.epoch == killed.epoch for commit in watch.commits[killed.commits :]):
        raise DemoFailed("a commit of the killed life counted after its death")


def _followed(place: Place, follower: Follower, commits: Sequence[SeenCommit]) -> Followed:
    began_s = follower.reached[0].at_s
    lags_s = [
        max(0.0, next(one.at_s for one in follower.reached if one.position > commit.offset) - commit.at_s)
        for commit in commits
        if commit.at_s > began_s and commit.offset < follower.position
    ]
    return Followed(begin_position=follower.begin_position(), rows=read_rows(place.followed), lags_s=tuple(lags_s))
