"""`CommitFeed`: the commits behind a state, in ledger order, each as its newest changes by (key group, key).

The one replay path again, one commit at a time, or all that there are by now as one: a commit is a small tail on top of
no snapshot, so it is read, verified, folded and sorted as the tail of a state is.

Invariants:
- A lease holds the log from the first commit that was not passed yet; it is renewed as commits are read.
- A broker that is away for less than `stall_timeout_s` ends no follower, nor does a store that is away while the lease
  still stands. A commit that was folded is returned, and read, all the same.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pyarrow as pa

from statelog.environment import Environment
from statelog.errors import BrokerUnavailable, IncompatibleSchema, OffsetGone
from statelog.reading.hold import Hold, Needs
from statelog.reading.plan import Plan, partitions_of
from statelog.reading.replay import Converter, RetryWindow
from statelog.reading.sorted_tail import SortedTail
from statelog.recovery.plan_reader import PlanReader
from statelog.recovery.settings import RecoverySettings, terms_of
from statelog.schemas.changes.replay_plan import ReplayPlan, plan_replay
from statelog.schemas.values.schema import ValueSchema
from statelog.storage.ledger_client import ValidCommit
from statelog.storage.log.log import Log


class CommitFeed:
    """Follows a log from a plan's position on. Belongs to one thread. Close it to remove its lease.

    Every method raises OffsetGone if the log was truncated past it, and as the ledger and the replay do.
    """

    def __init__(
        self,
        log: Log,
        plan: Plan,
        key_groups: frozenset[int] | None,
        settings: RecoverySettings,
        environment: Environment | None = None,
    ) -> None:
        self._log = log
        # Local copies serve a restart: they have no say over commits that were not there when it began.
        self._settings = replace(settings, local_copies=None)
        self._environment = environment or Environment()
        self._clock = self._environment.clock
        self._partitions = partitions_of(key_groups, log.descriptor)
        self._base = replace(plan, manifest=None, runs=(), key_groups=key_groups, partitions=self._partitions)
        self._converter = Converter(log, settings.value_schema_id)
        self._retries = RetryWindow(settings.stall_timeout_s, self._clock)
        self.ledger = log.ledger.client(plan, clock=self._clock)
        """The ledger, up to where commits were asked for, and came out."""
        self.is_answered = True
        """Whether Kafka gave an answer when commits were asked for last."""
        try:
            self._hold = Hold(log.store, terms_of(settings), environment=self._environment).claim(
                Needs.behind(plan.state, self._partitions)
            )
        except BaseException:
            self.ledger.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The schema of the changes that come out now. It moves on with the first change in a newer value schema."""
        return self._converter.schema

    @property
    def passed_position(self) -> int:
        """The ledger position below which every commit was passed."""
        return self._hold.needs.position

    @property
    def value_schema(self) -> ValueSchema:
        """The value schema of the changes that come out now."""
        return self._converter.target

    def commits(self, end_position: int | None = None) -> list[ValidCommit]:
        """The commits since this was asked last, oldest first; none as well if Kafka does not answer for now.

        `end_position` is where to stop, one that is known to be there: then the ledger's end is not asked for.
        """
        self.renew()
        self._retries.ask()
        try:
            with _saying_what_to_do():
                found = self.ledger.read_end() if end_position is None else self.ledger.read_to(end_position)
        except BrokerUnavailable:
            self.is_answered = False
            if self._retries.is_over:
                raise
            return []
        self._retries.heard()
        self._log.saw(self.ledger.place)
        self.is_answered = True
        if not found:
            self._hold.move(self.ledger.position, self._hold.needs.next_offsets)
        return found

    def changes(self, commits: Sequence[ValidCommit], check: Callable[[], None]) -> Generator[pa.Table]:
        """The newest change of each wanted key in these commits, deletes too, sorted. `check` is often called."""
        replay = plan_replay((one.body for one in commits), self._partitions, self.ledger.fold.accepted)
        if not replay.listed:
            return
        with _saying_what_to_do():
            reader, tail = self._read(replay, check)
            with closing(tail):
                yield from reader.merge(tail, drop_deletes=False)

    def _read(self, replay: ReplayPlan, check: Callable[[], None]) -> tuple[PlanReader, SortedTail]:
        """Read commits whole; once more if they turn out to hold values of a newer schema than was known."""

        plan = replace(self._base, replay=replay)
        while True:
            converter = self._converter
            reader = PlanReader(
                self._log, plan, self._settings, lambda _: check(), hold=self._hold, converter=converter
            )
            with ExitStack() as failing:
                tail = failing.enter_context(reader.open_tail())
                try:
                    reader.fill(tail)
                except IncompatibleSchema:
                    if not self._has_newer(converter):
                        raise
                if not self._has_newer(converter):
                    failing.pop_all()
                    return reader, tail
            self._converter = Converter(self._log, converter.newest_id)

    def _has_newer(self, converter: Converter) -> bool:
        return self._settings.value_schema_id is None and converter.newest_id > converter.target.id

    def passed(self, commits: Sequence[ValidCommit]) -> None:
        """These commits were handed over: the log is not needed up to here any more."""
        needed = dict(self._hold.needs.next_offsets)
        for entry in (entry for commit in commits for entry in commit.entries(needed)):
            needed[entry.partition] = max(entry.end_offset, needed[entry.partition])
        if commits:
            self._hold.move(commits[-1].position, needed)

    def renew(self) -> None:
        """Write the lease again if it is time to."""
        self._hold.renew()

    def close(self) -> None:
        """Remove the lease and release the ledger's reader. Idempotent."""
        try:
            self._hold.close()
        finally:
            self.ledger.close()


@contextmanager
def _saying_what_to_do() -> Generator[None]:
    """Say what helps when a log was truncated past its follower."""
    try:
        yield
    except OffsetGone as error:
        hint = "The reader was away or stuck for too long: recover the newest state into an empty target, and follow on"
        raise error.restated(hint=hint) from error
