"""`Assignment`: the tables of the partitions that the group gave this process: opened, committed, closed.

    assigned    noted; tables open on other threads, several at once, each at its progress: schedule.py
    revoked     committed, all at once, and closed, before the group may give them to another; opening ones, too
    lost        closed without a commit: another process may have them already
    failed      closed, and opened again a little later: schedule.py

Invariants:
- In a callback of the group no table begins to open, and no client of the group is used.
- Each table opens on a thread of its own. The worker's thread adopts the open ones in the order in which they began,
  and uses them there, hooks included. A table that nobody waits for any more is closed.
- A partition is read only while its table is open, from the place that the table's progress names.
- Uncommitted changes are dropped with their table, and its next owner reads their input again.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from functools import partial

from statelog.closing import undone_by_errors
from statelog.errors import BrokerUnavailable, Unavailable
from statelog.history import together
from statelog.tables.group.context import Hook, WorkerContext
from statelog.tables.group.schedule import AssignedPartition, OpenSchedule, PartitionStatistics, Vacancy, passes

_LOG = logging.getLogger("statelog.tables")
_AT_ONCE = 4
"""The most tables that open at the same time: they mostly wait for answers, but each may recover a state."""
_PUBLISH_S = 1.0
_DUE_AT_ONCE = 1000
"""The most rows of a table that `on_due` is called for between two polls."""
_LAST_COMMITS = 2
"""The second one commits the changes of `on_commit` after the last commit of a partition."""


class Assignment:
    """The assigned partitions of one worker. It listens to its own member of the group; `close` leaves the group."""

    def __init__(self, context: WorkerContext) -> None:
        self.held: dict[int, AssignedPartition] = {}
        self._context, self._topic = context, context.topic.name
        self._clock = context.environment.clock
        self._standbys = context.standbys
        self._hooks = context.hooks
        self._schedule = OpenSchedule()
        self._begun: dict[int, Future[AssignedPartition]] = {}
        self._stopped: set[int] = set()
        self._publish_s = -math.inf
        self._published: dict[int, int] = {}
        self.member = context.join(self, lambda text: _LOG.info("input %s: %s", self._topic, text))
        self._standbys.decided()  # The first decision is to have nothing: not every group says so.

    # ---- what the group decides

    def assigned(self, partitions: Sequence[int]) -> None:
        """Schedule the opening of these partitions."""
        if partitions:
            _LOG.info("partitions %s of %s are this worker's", list(partitions), self._topic)
        self._standbys.decided()
        self._schedule.assigned(partitions)

    def revoked(self, partitions: Sequence[int]) -> None:
        """Commit their processed messages, and close their tables."""
        _LOG.info("partitions %s of %s are revoked", list(partitions), self._topic)
        self._taken(partitions, commits=True)

    def lost(self, partitions: Sequence[int]) -> None:
        """Close their tables without a commit: another process may own them."""
        _LOG.warning("partitions %s of %s were lost to the group", list(partitions), self._topic)
        self._taken(partitions, commits=False)

    def _taken(self, partitions: Sequence[int], *, commits: bool) -> None:
        self._standbys.decided()
        self._schedule.taken(partitions)
        self._context.environment.crash("revoked")
        with ExitStack() as ending:
            ending.callback(self._drop_begun, partitions)
            self._close_tables(partitions, commits=commits)
        self._context.environment.crash("given-up")

    def refused(self, partition: int, reason: str) -> None:
        """Drop a table whose place in the input does not exist: opening it again shows what was lost."""
        _LOG.warning("the broker refused the place in partition %d of %s: %s", partition, self._topic, reason)
        assigned = self.held.get(partition)
        if assigned is not None:
            error = BrokerUnavailable(f"the broker refused the place in the input: {reason}", partition=partition)
            self._failed(assigned, error)

    def ended(self, partition: int, end_offset: int) -> None:
        """Count everything below this end as processed: after the last message there are only transaction markers and
        aborted records, whose truncation would look like a loss.
        """
        assigned = self.held.get(partition)
        if assigned is not None:
            assigned.next_offset = max(assigned.next_offset, end_offset)

    # ---- between two polls

    def serve(self) -> bool:
        """Begin to open the table that is due, and adopt the next open one. Return whether there may be more.

        Raises ConfigError, Damaged, NotFound. Raises Fenced, PersistFailed, OutcomeUnknown, Unavailable if they repeat.
        """
        if self._stopped:
            self.member.stop(sorted(self._stopped))
            self._stopped.clear()
        vacancy = self._schedule.due(self._clock(), self._begun) if len(self._begun) < _AT_ONCE else None
        if vacancy is not None:
            self._begin(vacancy)
        elif not self.is_opening:  # An opening might promote a standby meanwhile.
            self._standbys.maintain(lambda one: one in self.held or one in self._schedule.partitions)
        return self._take() or vacancy is not None

    def tick(self) -> None:
        """Call `on_tick` for the tables whose tick is due."""
        if self._hooks.on_tick is None:
            return
        now_s = self._clock()
        for assigned in list(self.held.values()):
            if now_s >= assigned.tick_s:
                assigned.tick_s = now_s + self._hooks.tick_s
                _call(self._hooks.on_tick, assigned)

    def run_due(self) -> bool:
        """Call `on_due` for rows that are due, in portions. Return whether there may be more."""
        on_due, is_more = self._hooks.on_due, False
        if on_due is not None:
            for assigned in list(self.held.values()):
                is_more |= assigned.table.run_due(on_due, _DUE_AT_ONCE) == _DUE_AT_ONCE
        return is_more

    @property
    def is_opening(self) -> bool:
        """Whether a table is being opened."""
        return bool(self._begun)

    def _begin(self, vacancy: Vacancy) -> None:
        partition = vacancy.partition
        if vacancy.checks_group:
            is_current = self.member.is_current(partition, vacancy.offset)
            self._schedule.checked(partition, self._clock(), is_current=is_current)
            if not is_current:
                return
        if vacancy.in_own_directory:
            text = "another process, perhaps a stopped one, has the directory of partition %d: a new one is used"
            _LOG.warning(text, partition)
        self._begun[partition] = self._context.environment.begin(
            partial(self._opened, partition, vacancy.in_own_directory)
        )

    def _take(self) -> bool:
        """Adopt the table that began to open first, if its opening is over. Return whether it is."""
        partition = next(iter(self._begun), None)
        if partition is None or not self._begun[partition].done():
            return False
        assigned: AssignedPartition | None = None
        try:
            assigned = self._begun[partition].result()
            assigned.adopt()
            self.member.read_from({partition: assigned.next_offset})
            self.held[partition] = assigned
            del self._begun[partition]
        except BaseException as error:
            if assigned is not None:
                self._drop([assigned])
            if not isinstance(error, Exception):
                raise
            self._begun.pop(partition, None)
            self._schedule.failed(partition, error, self._clock())
            _LOG.warning("the table of partition %d did not open, and is tried again: %s", partition, error)
            return True
        self._schedule.opened(partition)
        assigned.committed_s = self._clock()
        assigned.tick_s = assigned.committed_s + self._hooks.tick_s
        _call(self._hooks.on_open, assigned)
        assigned.is_announced = True
        return True

    def _drop_begun(self, partitions: Iterable[int]) -> None:
        """Wait for the openings among these partitions, and close their tables."""
        with ExitStack() as closing:
            dropped = {one: self._begun[one] for one in partitions if one in self._begun}
            for one, future in dropped.items():
                closing.callback(future.add_done_callback, _abandon)  # Later, if this wait is interrupted.
                closing.callback(self._begun.pop, one, None)
            wait(dropped.values())

    def _opened(self, partition: int, in_own_directory: bool) -> AssignedPartition:
        """Open the table of a partition, on another thread than the worker's, and find where its input resumes."""
        context = self._context
        source = context.input()
        source.check_covered(context.key_groups)
        table = self._standbys.promote(partition)
        if table is None:
            table = context.open_table(partition, in_own_directory)
        with undone_by_errors(table.__exit__, RuntimeError, None, None):
            progress = None if table.last_commit is None else table.last_commit.metadata
            seen = {} if progress is None else {partition: source.own_offset(progress, partition)}
            available = context.kafka.offsets(self._topic, [partition], at_least=seen)[partition]
            offset = source.start_offset(progress, partition, available, context.topic)
            sweeps = self._hooks.on_due is None
            assigned = AssignedPartition(partition, table, source, offset, sweeps=sweeps)
            if progress is None or progress["offset"] != offset:
                if progress is not None:
                    _LOG.warning(
                        "input was lost, as accept_loss allows: partition %d of %s resumes at %d, and was at %s",
                        partition, self._topic, offset, progress["offset"],
                    )  # fmt: skip
                assigned.send(always=True)
                assigned.wait()  # So that no later owner chooses another place.
                assigned.has_committed()
            context.environment.crash("table-placed")
            assigned.adopt = table.hand_over()
        return assigned

    # ---- commits

    def send(self) -> None:
        """Commit the news of each table. Waits only if too many commits are pending."""
        held = list(self.held.values())
        if self._is_same_input(held):
            with together():
                for assigned in held:
                    self._try(assigned, assigned.send)

    def _is_same_input(self, held: Sequence[AssignedPartition]) -> bool:
        """Return whether their news was read from the topic that they name; False if the cluster does not answer.

        Raises IdentityChanged, NotFound, and ConfigError if the topic has grown.
        """
        if not any(assigned.has_news for assigned in held):
            return True
        try:
            now = self._context.input()
        except Unavailable as error:
            _LOG.warning("nothing is committed while the input %s is unavailable: %s", self._topic, error)
            return False
        for assigned in held:
            assigned.input.check_is(now)
        return True

    def step(self) -> bool:
        """Take the answers to pending commits that have arrived. Return whether any is still pending."""
        waiting = [assigned for assigned in self.held.values() if assigned.is_waiting]
        if waiting:
            with together():
                for assigned in waiting:
                    self._try(assigned, assigned.step)
        self._announce([assigned for assigned in waiting if assigned.partition in self.held])
        self._publish(list(self.held.values()))
        return any(assigned.is_waiting for assigned in waiting)

    def wait(self) -> None:
        """Wait for all pending commits."""
        for assigned in list(self.held.values()):
            self._try(assigned, assigned.wait)
        held = list(self.held.values())
        self._announce(held)
        self._publish(held)

    def _try(self, assigned: AssignedPartition, work: Callable[[], None]) -> None:
        """Do some work of a table. If it fails, drop the table, to open it again later."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the schedule raises some of them
            self._failed(assigned, error)
            _LOG.warning("the table of partition %d ended, and is opened again: %s", assigned.partition, error)

    def _failed(self, assigned: AssignedPartition, error: Exception) -> None:
        offset = assigned.committed_offset
        self._drop([assigned])
        self._stopped.add(assigned.partition)
        self._schedule.failed(assigned.partition, error, self._clock(), offset)

    def _announce(self, held: Sequence[AssignedPartition]) -> None:
        """Call `on_commit` for the partitions with a new commit that is history."""
        now_s = self._clock()
        for assigned in held:
            if assigned.has_committed():
                assigned.committed_s = now_s
                self._schedule.committed(assigned.partition)
                _call(self._hooks.on_commit, assigned)

    def _publish(self, held: Sequence[AssignedPartition], *, ends: bool = False) -> None:
        """Note the input's ends, and publish the places, once a second. `ends`: now, as these partitions are closed."""
        now_s = self._clock()
        if ends or now_s >= self._publish_s:
            self._publish_s = now_s + _PUBLISH_S
            if not ends:
                for assigned in held:
                    self._try(assigned, assigned.table.check_outputs)
                held = [assigned for assigned in held if assigned.partition in self.held]
            for assigned in held:
                assigned.input_end = self.member.known_end(assigned.partition)
            places = {one.partition: one.committed_offset for one in held}
            if places.items() - self._published.items():
                self.member.publish(places)
                self._published.update(places)

    def statistics(self) -> list[PartitionStatistics]:
        """Return the statistics of all assigned partitions. On any thread."""
        now_s, held = self._clock(), dict(self.held)
        vacant = [PartitionStatistics(one) for one in self._schedule.partitions - held.keys()]
        return sorted([*vacant, *(one.statistics(now_s) for one in held.values())])

    # ---- closing

    def close(self, *, commits: bool, but: int | None = None) -> None:
        """Commit processed messages (if `commits`, and not of partition `but`), close tables, and leave the group."""
        with ExitStack() as ending:
            ending.callback(self._standbys.close)
            ending.callback(self.member.close)
            ending.callback(self._drop_begun, list(self._begun))
            half_done = [one for one in self.held if one == but]
            ending.callback(self._close_tables, half_done, commits=commits, sends=False)
            self._close_tables([one for one in self.held if one != but], commits=commits)

    def _drop(self, held: Sequence[AssignedPartition]) -> None:
        with ExitStack() as dropping:
            for assigned in held:
                dropping.callback(self._end, assigned, assigned.abandon)

    def _end(self, assigned: AssignedPartition, close: Callable[[], object]) -> None:
        """Call `on_close` and close a table. Until both are done it is held, so that an interrupted end is resumed."""

        def release() -> None:
            close()
            if not assigned.is_announced:
                self.held.pop(assigned.partition, None)

        with ExitStack() as ending:
            ending.callback(release)
            if assigned.is_announced:
                assigned.is_announced = False
                _call(self._hooks.on_close, assigned)

    def _close_tables(self, partitions: Iterable[int], *, commits: bool, sends: bool = True) -> None:
        """Close these tables, with their last commits pending together.

        Errors that need an operator are raised once all are closed. A fenced or unresolved commit loses nothing: the
        next owner reads the input again.
        """
        held = [self.held[one] for one in partitions if one in self.held]
        if not commits:
            self._drop(held)
            return
        with ExitStack() as closing:
            for assigned in held:
                closing.callback(self._end, assigned, partial(_quietly, assigned, assigned.table.close))
            sends = sends and self._is_same_input(held)
            left = held
            for number in range(_LAST_COMMITS):
                sent = [assigned for assigned in left if not sends or _quietly(assigned, assigned.send)]
                left = [assigned for assigned in sent if _quietly(assigned, assigned.wait)]
                self._announce(left)
                self._publish(left, ends=number + 1 == _LAST_COMMITS)


def _abandon(future: "Future[AssignedPartition]") -> None:
    if future.exception() is None:
        future.result().abandon()


def _call(hook: Hook | None, assigned: AssignedPartition) -> None:
    if hook is not None:
        hook(assigned.partition, assigned.table)


def _quietly(assigned: AssignedPartition, work: Callable[[], object]) -> bool:
    """Return whether some work succeeded. Raises errors that need an operator: ConfigError, Damaged, NotFound."""
    try:
        work()
    except Exception as error:
        if not passes(error):
            raise
        _LOG.warning("partition %d was closed without its last commit: %s", assigned.partition, error)
        return False
    return True
