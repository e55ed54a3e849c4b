"""`Worker`: a member of a group of workers: the messages of its partitions, each with the table of its partition.

    assignment    tables and the member of the group               assignment.py
    schedule      when to open which                               schedule.py
    context       the input, where to read on, hooks               context.py
    standbys      standbys of other processes' partitions          standbys/standby.py

The protocol, with "if we die after step n": docs/protocol-table.md.

Invariant: only the worker's own thread touches it and its tables, once they are open; `stop` is anybody's.
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
"""How long one call waits for a message: as late as `stop`, or a commit that is due, may be."""
_LOOK_S, _TURN_S = 0.002, 0.02
"""How often answers to pending commits are looked for, and what the group says, while there are messages."""


class Worker(Guarded, Iterator[tuple[Message, Table[K, V]]], Generic[K, V]):
    """A process of a group that shares the partitions of a topic, each with a table that follows its partition.

        for message, table in worker:
            table[message.key()] = message.value()
            worker.commit_every(1.0)

    Made by `statelog.worker`. The messages are confluent-kafka's. The loop waits for them, and ends after `stop`. A
    message is processed once the loop asks for the next one, or calls `commit_every` or `commit`: call these behind the
    last change that the message makes. Change no table but the one that came with the message, and commit it through
    the worker only.

    Tables come and go with the partitions: while the loop asks for a message, those that the group takes are committed
    and closed, and others are opened. Leaving the `with` block closes it, as `close` says; left with an error, it
    commits nothing more.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._guard = Guard("worker", context.name, log=context.name, again="Make a new one", apart="Make one in each")
        self._clock = context.environment.clock
        self._is_stopped = False
        self._hand: tuple[AssignedPartition, int, int] | None = None
        """The message that the loop has: whose it is, its offset, and the changes that its table had before."""
        self._is_processed = False
        """Whether the loop has said so of this message."""
        self._interval_s = math.inf
        self._committed_s = self._turn_s = self._asked_s = self._clock()
        """When was committed last; until when there are only messages at hand; and when more than these was seen to."""
        self._is_waiting = False
        """Whether a commit was pending when that was last checked."""
        self._unsent, self._unsent_max = 0, context.unsent_max
        with undone_by_errors(self._guard.end):
            self._assignment = Assignment(context)
            self._at_hand = self._assignment.member.at_hand
        context.environment.made(self, context.name, "")

    # ---- messages

    def __iter__(self) -> Iterator[tuple[Message, Table[K, V]]]:
        """The messages from now on. Raises ConfigError, Damaged, Fenced and the others of `next`."""
        guard, clock, at_hand, held = self._guard, self._clock, self._at_hand, self._assignment.held
        while (found := self._next()) is not None:
            yield found
            # As `_next`, while there is nothing to do but to process the messages at hand: without a call.
            while clock() < self._turn_s and self._unsent < self._unsent_max and not self._is_stopped:
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
        """Wait for the next message; ends after `stop`.

        Raises IdentityChanged for an input topic that was made anew, OffsetGone and BeyondEnd for one that lost what
        was not processed; ConfigError for one that has grown; Fenced if somebody outside of the group takes its tables
        away again and again; PersistFailed, OutcomeUnknown and Unavailable if trying again a few times does not help;
        NotFound, Damaged.
        """
        found = self._next()
        if found is None:
            raise StopIteration
        return found

    @Guarded.turn
    def _next(self) -> tuple[Message, Table[K, V]] | None:
        with self._guard:
            self._settle()
            found = None
            while found is None and not self._is_stopped:
                found = self._turn()
            return found

    def _turn(self) -> tuple[Message, Table[K, V]] | None:
        """Do all that is to be done between two messages, and wait a while for one that is to be processed here."""
        is_opening = self._assignment.serve()
        self._assignment.tick()
        taken = self._assignment.member.poll(0.0 if is_opening else self._patience_s())
        self._pace()
        if is_opening:
            self._turn_s = -math.inf  # There may be more to open.
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
        """End the loop where it asks for the next message. For any thread, and for the handlers of signals."""
        self._is_stopped = True

    @property
    def tables(self) -> Mapping[int, Table[K, V]]:
        """The tables that are open now, by partition: to look at."""
        self._guard.check_life()
        self._guard.check_thread()
        return MappingProxyType({one: assigned.table for one, assigned in sorted(self._assignment.held.items())})

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those whose tables are open now: any thread may ask."""
        return tuple(sorted(self._assignment.held))

    @property
    def standbys(self) -> Mapping[int, Standby[K, V]]:
        """The standbys that are open now, by partition: any thread may read them."""
        return self._context.standbys.open

    def statistics(self) -> list[PartitionStatistics]:
        """Of every partition that the group gave, in their order: any thread may ask."""
        return self._assignment.statistics()

    @property
    def silent_s(self) -> float:
        """Seconds since the loop last waited for a message, asked for one, or committed: any thread may ask."""
        return max(0.0, self._clock() - self._asked_s)

    # ---- commits

    def commit_every(self, interval_s: float) -> None:
        """The message is processed; commit all tables, each with its place, if so many seconds have passed since the
        last time, or very many messages (`uncommitted_changes_max` of `TableSettings`). Waits only if the log falls
        behind.

        From then on the worker also does so while it waits for messages. A table whose commit fails is opened again a
        little later, from its progress, here or in another process. Raises Misuse for no number of seconds;
        ConfigError, Damaged, Fenced, NotFound; PersistFailed, OutcomeUnknown and Unavailable if trying again a few
        times does not help.
        """
        if interval_s == self._interval_s and self._clock() < self._turn_s and get_ident() == self._guard.user:
            self._is_processed = True  # And all else is done where the loop asks for the next message.
        else:
            self._commit_if_due(interval_s)

    @Guarded.turn
    def _commit_if_due(self, interval_s: float) -> None:
        check_interval(interval_s)
        with self._guard:
            self._settle()
            self._interval_s = interval_s
            self._pace()

    @Guarded.turn
    def commit(self) -> dict[int, int]:
        """The message is processed; commit all tables, each with its place, and wait.

        Returns for each partition that is this worker's the offset up to which it is committed; one whose commit failed
        is missing, and processed again. Raises ConfigError, Damaged, Fenced, NotFound; PersistFailed, OutcomeUnknown
        and Unavailable if trying again a few times does not help.
        """
        self._settle()
        with self._guard:
            self._send()
            self._assignment.wait()
            return {one: assigned.committed_offset for one, assigned in sorted(self._assignment.held.items())}

    def _settle(self) -> None:
        """The message that the loop has is processed."""
        hand = self._hand
        if hand is not None:
            hand[0].next_offset = hand[1] + 1
            self._unsent += 1
            self._hand = None

    def _pace(self) -> None:
        """Commit if it is due, and hear of what is under way."""
        now_s = self._asked_s = self._clock()
        if now_s - self._committed_s >= self._interval_s or self._unsent >= self._unsent_max:
            self._send()
        self._is_waiting = self._assignment.step()
        self._turn_s = now_s + (_LOOK_S if self._is_waiting else _TURN_S)
        self._turn_s = min(self._turn_s, self._committed_s + self._interval_s)

    def _send(self) -> None:
        self._assignment.send()
        self._unsent = 0
        self._committed_s = self._clock()

    def _patience_s(self) -> float:
        """How long to wait for a message before there is something else to do."""
        if self._is_waiting:
            return _LOOK_S
        limit_s = _TURN_S if self._assignment.is_opening else _POLL_S
        due_s = self._committed_s + self._interval_s - self._clock() if self._unsent else limit_s
        return min(max(due_s, 0.0), limit_s)

    @property
    def life(self) -> Life:
        """Whether it is open, failed or closed."""
        return self._guard.life

    @Guarded.last_turn
    def close(self) -> None:
        """Commit what is processed, close all tables, leave the group. Idempotent.

        The message that the loop has is not processed, and comes again; if it has changed its table, so does all of its
        partition since the last commit. Raises ConfigError, Damaged, NotFound; all is closed all the same.
        """
        commits = self.life is Life.OPEN
        if not self._guard.end():
            return
        if self._is_processed:
            self._settle()
        hand, self._hand = self._hand, None
        half_done = hand[0].partition if hand and hand[0].table.changes != hand[2] else None
        with ExitStack() as ending:
            ending.callback(self._context.release)
            self._assignment.close(commits=commits, but=half_done)

    def __repr__(self) -> str:
        return f"Worker({self._context.name!r}, topic={self._context.topic.name!r}, {self.life.value})"
