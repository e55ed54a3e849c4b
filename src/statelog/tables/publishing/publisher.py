"""`Publisher`: publishes the outputs of a table's commits, off the path of its commits.

    commit is history ─► wake ─► read the outputs from the log ─► a transaction, with the place ─► move the hold

The protocol, with "if we die after step n": docs/protocol-publish.md. The thread, the producer and its connections
exist while there is something to publish, and for a minute after that.

Invariants:
- One run at a time sends; `wake` only says that there may be more.
- An error that lasts longer than the patience ends it: `check` raises it in the owner's thread. Nothing is skipped.
- Only the owner, by the ledger, starts a producer: a table that was fenced does not fence its successor.
- In an environment that starts no threads, a run is over before `wake` returns.
"""

import logging
import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, NamedTuple, Protocol

from statelog.closing import OwnProcess
from statelog.environment import GRACE_S, Environment, current_environment, start_thread
from statelog.errors import ClosedError, Damaged, Fenced, PublishFailed, StatelogError, Unavailable
from statelog.log import Log
from statelog.producer.epoch import Grant
from statelog.tables.publishing.hold import OutputHold
from statelog.tables.publishing.sender import OutputSender, OutputsOf
from statelog.tables.setup import TableSettings

_LOG = logging.getLogger("statelog.tables")

CLOSE_S = 5.0
"""How long a close publishes what is committed."""
_MOVE_S = 10.0
"""How often the hold is moved on."""
_IDLE_MOVES = 6
"""After so many of these times without a wake the producer is closed, and the thread ends."""
_PACE_S, _SHARE, _PACE_MAX_S = 0.02, 4, 0.1
"""The least time from one transaction to the next, and at most: so many times what the last one took. Each costs
brokers and processors more than a commit does.
"""
_PAUSE_S, _PAUSE_MAX_S = 0.1, 2.0
_CAUSES = ("topic", "partition", "kafka_error")
"""The facts of the last error that the error of the patience names, too."""


class OutputOwner(Protocol):
    """The writer whose outputs are published."""

    @property
    def name(self) -> str:
        """The writer's name."""
        ...

    @property
    def grant(self) -> Grant:
        """The grant that it commits under now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStatistics:
    """What a publisher has done, and what it has left.

    published_position    everything up to this ledger position is published
    published_messages    messages that this owner has published
    unpublished_commits   commits of this owner whose messages are not published
    unpublished_messages  the messages of these commits
    oldest_s              how long ago the oldest of them was committed; 0.0 if there is none
    """

    published_position: int
    published_messages: int = 0
    unpublished_commits: int = 0
    unpublished_messages: int = 0
    oldest_s: float = 0.0


class _Awaited(NamedTuple):
    """A commit that the owner has told of: its position, its messages, and when."""

    position: int
    messages: int
    at_s: float


class Publisher:
    """The publisher of one writer's outputs. Its methods are for the owner's thread."""

    def __init__(
        self,
        log: Log,
        writer: OutputOwner,
        settings: TableSettings,
        environment: Environment | None = None,
        *,
        reader: OutputsOf,
        start_position: int | None = None,
    ) -> None:
        """Look up where to begin. Nothing is sent before the first `wake`.

        `start_position`: where outputs begin if neither subscription nor group tells; by default at the position that
        this process has read. Raises Corrupt, InvalidName, Unavailable.
        """
        self._log = log
        self._writer = writer
        self._patience_s = settings.outputs_patience_s
        self._environment = environment or current_environment()
        self._process = OwnProcess("the publisher")
        self._hold = OutputHold(log, writer.name, self._environment)
        here = log.history.place.position if start_position is None else start_position
        self._sender = OutputSender(
            log,
            writer.name,
            reader,
            is_transactional=settings.outputs == "exactly-once",
            position=self._hold.begins_at(here),
            otherwise=here,
            check_owner=self._check_owner,
            environment=self._environment,
        )
        self._lock = Lock()
        self._woken, self._closing, self._ended = Event(), Event(), Event()
        self._is_running = self._is_used = self._is_closed = self._is_settled = self._lingers = False
        self._is_patient = True
        self._close_until_s: float | None = None
        self._error: BaseException | None = None
        self._failing: tuple[int, float] | None = None
        """The position where it has failed last, and since when."""
        self._moved_s = self._environment.clock()
        self._sent_s, self._took_s = -math.inf, 0.0
        """When the last transactions began, and how long they took."""
        self._awaited: deque[_Awaited] = deque()

    # ---- for the owner

    def claim(self) -> str:
        """Hold the log, before the first commit with outputs. Return the id of the reading. Later calls do nothing.

        Raises OffsetGone, ReaderInUse, StoreRefused, Corrupt, Unavailable.
        """
        return self._hold.claim()

    def wake(self, messages: int = 0) -> None:
        """Publish what is committed. `messages`: how many the last commit has, for the statistics."""
        self._process.check()
        self._awaited.append(_Awaited(self._log.history.place.position, messages, self._environment.clock()))
        self._is_used = self._lingers = True
        self._woken.set()
        self._begin()

    def check(self) -> None:
        """Raise the error that ended it. Now and then this moves the hold on, while nothing is sent."""
        if self._error is not None:
            raise self._error
        if self._hold.is_claimed and self._environment.clock() - self._moved_s >= _MOVE_S * _IDLE_MOVES:
            self._begin()

    def statistics(self) -> OutputStatistics:
        """Return what is published, and what is left."""
        left = [one for one in list(self._awaited) if one.messages and not self._sender.reaches(one.position)]
        return OutputStatistics(
            published_position=self._sender.position,
            published_messages=self._sender.messages,
            unpublished_commits=len(left),
            unpublished_messages=sum(one.messages for one in left),
            oldest_s=max(0.0, self._environment.clock() - left[0].at_s) if left else 0.0,
        )

    def close(self, patience_s: float = CLOSE_S, *, is_settled: bool = False) -> None:
        """Publish what is committed, for so long at most, and end. The next owner publishes the rest. Never raises.

        `is_settled`: the outcome of every commit is known. Then the subscription ends if nothing is left; otherwise it
        holds what an unknown commit may have sent.
        """
        if self._process.is_foreign or self._is_closed:
            return
        self._is_closed, self._is_settled, self._is_patient = True, is_settled, patience_s > 0
        self._close_until_s = self._environment.clock() + patience_s
        self._closing.set()
        self._woken.set()
        if self._error is None and (self._is_used or self._hold.is_claimed):
            self._begin()
            if not self._ended.wait(patience_s + GRACE_S):
                _LOG.warning("the outputs %s are still being published after the close", self._sender.name)

    # ---- a run

    def _begin(self) -> None:
        with self._lock:
            if self._is_running or self._error is not None:
                return
            self._is_running = True
            self._ended.clear()
        self._environment.start(self._run)

    def _run(self) -> None:
        """Publish until there is nothing more to wait for. Raises nothing."""
        try:
            is_over = False
            while not is_over:
                self._woken.clear()
                self._publish()
                is_closing = self._close_until_s is not None
                if is_closing:
                    self._finish()
                elif self._is_woken_again():
                    continue
                with self._lock:
                    is_over = is_closing or not self._woken.is_set()
                    if is_over:
                        self._end()
        except BaseException as error:  # noqa: BLE001 - raised in the owner's thread
            self._fail(error)

    def _end(self) -> None:
        self._is_running = False
        self._ended.set()

    def _is_woken_again(self) -> bool:
        """Wait for the next wake, where there is a thread for it. Else close the producer. Return whether it came."""
        lingers, self._lingers = self._lingers and self._has_thread, False
        for _ in range(_IDLE_MOVES if lingers else 0):
            if self._woken.wait(_MOVE_S):
                return True
            self._publish()  # Moves the hold on.
        if lingers:
            self._sender.close()
        return False

    def _publish(self) -> None:
        """Publish all that is committed. Raises the error that ends it."""
        pause_s = _PAUSE_S
        while not self._is_late():
            try:
                if self._has_sent_all():
                    return
            except StatelogError as error:
                self._judge(error)
                self._environment.wait(Event(), pause_s)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _has_sent_all(self) -> bool:
        """Publish up to where the ledger was read, and move the hold on if it is time. Return whether that is all."""
        history, clock = self._log.history, self._environment.clock
        self._hold.take_over()
        if not self._sender.reaches(history.place.position):
            self._rest()
        now_s = clock()
        view = history.read() if self._hold.is_claimed and now_s - self._moved_s >= _MOVE_S else None
        to = (view or history).place.position
        if not self._sender.reaches(to):
            self._sender.send_to(to, self._hold.base, self._is_late)
            self._sent_s, self._took_s = now_s, clock() - now_s
        self._failing = None
        while self._awaited and self._sender.reaches(self._awaited[0].position):
            self._awaited.popleft()
        if view is not None and self._sender.reaches(to):
            self._hold.move(view)
            self._moved_s = now_s
        return self._sender.reaches(history.place.position)

    def _rest(self) -> None:
        """Let some time pass since the last transaction, where there is a thread for it: a loop that commits without a
        pause has most of it for itself.
        """
        pace_s = min(max(_PACE_S, _SHARE * self._took_s), _PACE_MAX_S)
        left_s = self._sent_s + pace_s - self._environment.clock()
        if left_s > 0 and self._has_thread:
            self._closing.wait(left_s)

    @property
    def _has_thread(self) -> bool:
        """Whether runs have a thread of their own, which may wait."""
        return self._environment.start is start_thread

    def _is_late(self) -> bool:
        return self._close_until_s is not None and self._environment.clock() >= self._close_until_s

    def _finish(self) -> None:
        """Close the producer, and end the hold if nothing is left that it is for."""
        self._sender.close()
        if not self._sender.reaches(self._log.history.place.position):
            text = "outputs behind position %d are not published yet; the next owner of %s publishes them"
            level = logging.WARNING if self._is_patient else logging.INFO  # A table that failed has raised its error.
            _LOG.log(level, text, self._sender.position, self._sender.name)
        elif self._is_settled:
            self._hold.release()

    # ---- errors

    def _judge(self, error: StatelogError) -> None:
        """Return if another try may help. Raise the error, or PublishFailed once the patience is over."""
        if isinstance(error, Damaged | ClosedError):
            raise error
        if isinstance(error, Fenced):
            with suppress(Unavailable):
                self._check_owner()
        now_s, position = self._environment.clock(), self._sender.position
        if self._failing is None or self._failing[0] < position:
            self._failing = position, now_s
            _LOG.warning("outputs of %s cannot be published, and are tried again: %s", self._sender.name, error)
        if now_s - self._failing[1] >= self._patience_s:
            facts: dict[str, Any] = {name: error.facts[name] for name in _CAUSES if name in error.facts}
            raise PublishFailed(
                f"messages behind position {position} could not be published for {self._patience_s:g} s:"
                f" {error.message}",
                log=self._log.name,
                writer=self._writer.name,
                position=position,
                **facts,
            ) from error

    def _check_owner(self) -> None:
        """Raise Fenced unless the writer owns its partitions, by the ledger of now. Raises Damaged, Unavailable."""
        self._log.history.read()
        epoch = self._writer.grant.epoch
        if self._log.history.ask(lambda fold: fold.live_epoch(epoch)) is None:
            what = "another writer took over, and publishes the outputs from now on"
            raise Fenced(what, log=self._log.name, writer=self._writer.name)

    def _fail(self, error: BaseException) -> None:
        try:
            self._sender.close()
        finally:
            with self._lock:
                if not (isinstance(error, ClosedError) and self._is_closed):
                    self._error = error
                self._end()
