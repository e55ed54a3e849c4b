"""`Worker`: a member of a group of workers: the messages of its partitions, each with the table of its partition.

    assignment    tables and the member of the group               assignment.py
    schedule      when each table opens                            schedule.py
    context       the input, where it resumes, hooks               context.py
    standbys      standbys of other processes' partitions          standbys/standby.py

The protocol, with "if we die after step n": docs/protocol-table.md.

Invariant: only the worker's own thread uses it and its open tables, but for methods that say "on any thread".
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from threading import get_ident
from types import MappingProxyType
from typing import Generic

from confluent_kafka import Message

from statelog.closing import undone_by_errors
from statelog.log.options import K, V
from statelog.producer.guard import NOBODY, Guard, Guarded, Life
from statelog.tables.group.assignment import Assignment
from statelog.tables.group.context import WorkerContext
from statelog.tables.group.schedule import AssignedPartition, PartitionStatistics
from statelog.tables.scheduler import check_interval
from statelog.tables.standbys.standby import Standby
from statelog.tables.table import Table

_POLL_S = 0.1
"""How long one call waits for a message, and so the greatest delay of `stop`, or of a commit that is due."""
_CHECK_S, _STEP_S = 0.002, 0.02
"""While there are messages, how often answers to pending commits are taken, and how often the group's decisions are."""


class Worker(Guarded, Iterator[tuple[Message, Table[K, V]]], Generic[K, V]):
    """A process of a group that shares the partitions of a topic, each with a table that follows its partition.

        for message, table in worker:
            table[message.key()] = message.value()
            worker.commit_every(1.0)

    Made by `statelog.worker`. The messages are confluent-kafka's. The loop waits for them, and ends after `stop`. A
    message is processed once the loop asks for the next one, or calls `commit_every` or `commit`: call these after the
    last change that the message makes. Change only the table that came with the message, and commit it only through the
    worker.

    Tables come and go with the partitions. While the loop waits for a message, tables of revoked partitions are
    committed and closed, and others open. Leaving the `with` block closes the worker, as `close` says. After an error
    it commits nothing more.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._guard = Guard("worker", context.name, log=context.name, again="Make a new one", apart="Make one in each")
        self._clock = context.environment.clock
        self._is_stopped = False
        self._hand: tuple[AssignedPartition, int, int] | None = None
        """The message that the loop has: its partition, its offset, and the changes that its table had before."""
        self._is_processed = False
        """Whether the loop has called `commit_every` for this message."""
        self._interval_s = math.inf
        self._committed_s = self._busy_until_s = self._active_s = self._clock()
        """The times of the last commit, of the next step other than messages at hand, and of the last such step."""
        self._is_waiting = False
        """Whether a commit was pending at the last check."""
        self._unsent, self._unsent_max = 0, context.unsent_max
        with undone_by_errors(self._guard.end):
            self._assignment = Assignment(context)
            self._at_hand = self._assignment.member.at_hand
        context.environment.made(self, context.name, "")

    # ---- messages

    def __iter__(self) -> Iterator[tuple[Message, Table[K, V]]]:
        """Yield the messages from now on. Raises the errors of `next`."""
        guard, clock, at_hand, held = self._guard, self._clock, self._at_hand, self._assignment.held
        while (found := self._next()) is not None:
            yield found
            # As `_next`, but without a call, while there is nothing to do but to process the messages at hand.
            while clock() < self._busy_until_s and self._unsent < self._unsent_max and not self._is_stopped:
                user, wanted = get_ident(), None
                if user != guard.user:
                    break
                try:
                    guard.user = NOBODY
                    if (hand := self._hand) is not None:
                        hand[0].next_offset = hand[1] + 1
                        self._unsent += 1
                        self._hand = None
                    taken = at_hand()
                    if taken is not None:
                        message, partition, offset = taken
                        assigned = held.get(partition)
                        if assigned is not None and offset >= assigned.next_offset:
                            self._hand = assigned, offset, assigned.table.changes
                            self._is_processed = False
                            wanted = message, assigned.table
                    guard.user = user
                except BaseException:
                    guard.fail()
                    raise
                if taken is None:
                    break
                if wanted is not None:
                    yield wanted

    def __next__(self) -> tuple[Message, Table[K, V]]:
        """Wait for the next message. Raise StopIteration after `stop`.

        Raises NotFound, Damaged. Raises IdentityChanged if the input topic was re-created, OffsetGone and BeyondEnd if
        it lost unprocessed messages, and ConfigError if it has grown. Raises Fenced if a writer outside of the group
        keeps taking its tables. Raises PersistFailed, OutcomeUnknown and Unavailable if a few retries do not help.
        """
        found = self._next()
        if found is None:
            raise StopIteration
        return found

    @Guarded.turn
    def _next(self) -> tuple[Message, Table[K, V]] | None:
        with self._guard:
            self._mark_processed()
            found = None
            while found is None and not self._is_stopped:
                found = self._step()
            return found

    def _step(self) -> tuple[Message, Table[K, V]] | None:
        """Do everything that is due between two messages, and wait a while for the next one to process here."""
        is_busy = self._assignment.serve()
        self._assignment.tick()
        is_busy |= self._assignment.run_due()
        taken = self._assignment.member.poll(0.0 if is_busy else self._patience_s())
        self._pace()
        if is_busy:
            self._busy_until_s = -math.inf  # There may be more to open, or more rows that are due.
        if taken is None:
            return None
        message, partition, offset = taken
        assigned = self._assignment.held.get(partition)
        if assigned is None or offset < assigned.next_offset:
            return None
        table = assigned.table
        self._hand = assigned, offset, table.changes
        self._is_processed = False
        return message, table

    def stop(self) -> None:
        """End the loop where it asks for the next message. On any thread, and in signal handlers."""
        self._is_stopped = True

    @property
    def tables(self) -> Mapping[int, Table[K, V]]:
        """The open tables by partition, to read."""
        self._guard.check_life()
        self._guard.check_thread()
        return MappingProxyType({one: assigned.table for one, assigned in sorted(self._assignment.held.items())})

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions whose tables are open now. On any thread."""
        return tuple(sorted(self._assignment.held))

    @property
    def standbys(self) -> Mapping[int, Standby[K, V]]:
        """The open standbys by partition. On any thread, and any thread may read them."""
        return self._context.standbys.open

    def statistics(self) -> list[PartitionStatistics]:
        """Return the statistics of all assigned partitions, in their order. On any thread."""
        return self._assignment.statistics()

    @property
    def silent_s(self) -> float:
        """Seconds since the loop last waited for a message, asked for one, or committed. On any thread."""
        return max(0.0, self._clock() - self._active_s)

    # ---- commits

    def commit_every(self, interval_s: float) -> None:
        """Mark the message as processed, and commit all tables, each with its place, if it is time to.

        That is `interval_s` seconds after the last time, or after very many messages: one for each KiB of
        `TableSettings.uncommitted_bytes_max`. From then on the worker also commits while it waits for messages. The
        call waits only if the log falls behind.

        If a table's commit fails, the table opens again a little later at its progress, here or in another process.
        Raises ConfigError, Damaged, Fenced, NotFound, and Misuse if `interval_s` is no number. Raises PersistFailed,
        OutcomeUnknown and Unavailable if a few retries do not help.
        """
        if interval_s == self._interval_s and self._clock() < self._busy_until_s and get_ident() == self._guard.user:
            self._is_processed = True  # The rest is done where the loop asks for the next message.
        else:
            self._commit_if_due(interval_s)

    @Guarded.turn
    def _commit_if_due(self, interval_s: float) -> None:
        check_interval(interval_s)
        with self._guard:
            self._mark_processed()
            self._interval_s = interval_s
            self._pace()

    @Guarded.turn
    def commit(self) -> dict[int, int]:
        """Mark the message as processed, commit all tables, each with its place, and wait.

        Return for each of this worker's partitions the offset up to which it is committed. A partition whose commit
        failed is missing, and processed again. Raises ConfigError, Damaged, Fenced, NotFound. Raises PersistFailed,
        OutcomeUnknown and Unavailable if a few retries do not help.
        """
        self._mark_processed()
        with self._guard:
            self._send()
            self._assignment.wait()
            return {one: assigned.committed_offset for one, assigned in sorted(self._assignment.held.items())}

    def _mark_processed(self) -> None:
        """Count the message that the loop has as processed."""
        hand = self._hand
        if hand is not None:
            hand[0].next_offset = hand[1] + 1
            self._unsent += 1
            self._hand = None

    def _pace(self) -> None:
        """Commit if it is due, and take the answers to pending commits."""
        now_s = self._active_s = self._clock()
        if now_s - self._committed_s >= self._interval_s or self._unsent >= self._unsent_max:
            self._send()
        self._is_waiting = self._assignment.step()
        self._busy_until_s = now_s + (_CHECK_S if self._is_waiting else _STEP_S)
        self._busy_until_s = min(self._busy_until_s, self._committed_s + self._interval_s)

    def _send(self) -> None:
        self._assignment.send()
        self._unsent = 0
        self._committed_s = self._clock()

    def _patience_s(self) -> float:
        """Return how long to wait for a message before something else is due."""
        if self._is_waiting:
            return _CHECK_S
        limit_s = _STEP_S if self._assignment.is_opening else _POLL_S
        due_s = self._committed_s + self._interval_s - self._clock() if self._unsent else limit_s
        return min(max(due_s, 0.0), limit_s)

    @property
    def life(self) -> Life:
        """Whether it is open, failed or closed."""
        return self._guard.life

    @Guarded.last_turn
    def close(self) -> None:
        """Commit the processed messages, close all tables, and leave the group. Idempotent.

        The message that the loop has is not processed, and comes again. If it has changed its table, messages of its
        partition since the last commit do, too. Raises ConfigError, Damaged, NotFound, after closing everything.
        """
        commits = self.life is Life.OPEN
        if not self._guard.end():
            return
        if self._is_processed:
            self._mark_processed()
        hand, self._hand = self._hand, None
        half_done = hand[0].partition if hand and hand[0].table.changes != hand[2] else None
        with ExitStack() as ending:
            ending.callback(self._context.release)
            self._assignment.close(commits=commits, but=half_done)

    def __repr__(self) -> str:
        return f"Worker({self._context.name!r}, topic={self._context.topic.name!r}, {self.life.value})"
