"""`Fleet`: the daemons of many logs in one process, fairly scheduled, isolated, and with few tasks at a time.

One thread drives all of them. It collects ended tasks and begins those that are due, first for the log whose round has
waited longest. Logs are opened, closed, searched for, checked and rolled up on threads of their own.

    at work      the rounds, tail checks and opens in flight, which are limited. A task without progress for long does
                 not count: it may hang, and others must not wait for it
    quarantined  a log whose rounds end in an error, or that cannot be opened, is tried again later
    missing      a deleted log is dropped. A log that was named and not found is searched for again; so is an
                 unfinished copy
    new          with `find`, logs that appear are added within `find_s`

Invariants:
- Logs are isolated: an error of one log does not affect another.
- A log whose rounds or merges hang is not opened a second time while they do. So there are only as many threads as are
  admitted, plus those that hang: no more for each log than its daemon tolerates.
- Memory is that of the rounds at work, each with the budget of its log, and of each log's ledger history.
"""

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from statelog.closing import undone_by_errors
from statelog.environment import Environment, current_environment, repeated
from statelog.errors import NotFound, StatelogError
from statelog.log import Log
from statelog.materializer.beside_rounds import ask_first_delay_s, final_error
from statelog.materializer.control import BackgroundTask, Control, begin_task
from statelog.materializer.copy import is_closed_copy
from statelog.materializer.daemon import Admit, Materializer, Work
from statelog.materializer.engine import EngineMaker
from statelog.materializer.events import Event, EventKind, error_facts, log_event, shown_error
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.statistics import MaterializerStatistics
from statelog.schemas.names import settings_or

_LOG = logging.getLogger("statelog.materializer")
_PATIENCE_S = 30.0
_TICK_S, _WAKE_S = 0.25, 30.0
_WATCH_S = 5.0
_ABSENT = "it does not exist"
_CLOSED = "it is a copy that is not finished"
_Opened = tuple[Log, float] | None
"""A log, and how long its first round waits; None for an unfinished copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The limits of a fleet, and how often it retries.

    rounds   rounds at once, of different logs; each takes the memory of one
    looks    tail checks and opens at once
    retry_s  after this time a quarantined log is opened again, or after its interval if that is shorter
    find_s   the interval at which logs are searched for
    """

    rounds: int = 2
    looks: int = 4
    retry_s: float = 60.0
    find_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """The state of one log: the statistics of its daemon, or the `problem` for which it has none.

    `opening_s`: for how long the log has been being opened, 0 if it is not.
    """

    log: str
    settings: MaterializerSettings
    statistics: MaterializerStatistics | None = None
    problem: str = ""
    opening_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Kit:
    """The dependencies of one log: how it is opened, its settings, and the engine that writes its runs."""

    open: Callable[[], Log]
    settings: MaterializerSettings
    make_engine: EngineMaker


@dataclass(frozen=True, slots=True)
class _Shared:
    """The dependencies that all logs of a fleet share. `admit` is called before a task begins."""

    settings: FleetSettings
    admit: Admit
    on_event: Callable[[Event], None]
    environment: Environment


MakeKit = Callable[[str], Kit]
"""Called with the name of the log. Raises ConfigError."""


class Fleet:
    """Drives the daemons of `names` and of the logs that `find` returns; `control` carries requests for all of them.

    Thread-safe, except for `run`.
    """

    def __init__(
        self,
        make_kit: MakeKit,
        names: Iterable[str] = (),
        *,
        find: Callable[[], Collection[str]] | None = None,
        settings: FleetSettings | None = None,
        control: Control | None = None,
        on_event: Callable[[Event], None] = log_event,
    ) -> None:
        self._make_kit = make_kit
        self._find = find
        self._settings = settings_or(settings, FleetSettings())
        self._control = control or Control()
        self._environment = environment = current_environment()
        self._clock = environment.clock
        self._shared = _Shared(self._settings, self._admit, on_event, environment)
        self._free: dict[Work, int] = {}
        self._members = {name: self._member(name, is_named=True) for name in dict.fromkeys(names)}
        self._finding: BackgroundTask[Collection[str]] | None = None
        self._find_due_s = environment.clock() if find else math.inf
        self._awaited_s = math.inf
        self.problem = ""
        """Why logs cannot be searched for, or one of them cannot be added; empty if all is well."""
        environment.made(self, "")

    # ---- from any thread

    @property
    def late_s(self) -> float:
        """By how many seconds the driving thread is late; 0 if all is well."""
        return max(0.0, self._clock() - self._awaited_s)

    def states(self) -> list[MemberState]:
        """Return the state of each log, ordered by name."""
        return [one.state() for _, one in sorted(self._members.items())]

    # ---- round after round

    def run(self) -> None:
        """Drive all daemons until stopped and their rounds are over."""
        try:
            with repeated(self._watch, _WATCH_S, "statelog-watchdogs"):
                while not (self._control.is_stopped and all(one.is_over for one in self._members.values())):
                    wait_s = self._turn()
                    self._awaited_s = self._clock() + wait_s
                    self._control.wait(wait_s)
        finally:
            self._awaited_s = math.inf
            for one in self._members.values():
                one.leave()

    def _turn(self) -> float:
        """Run one iteration of each. Return for how many seconds nothing is due."""
        self._look_for_logs()
        # A request that comes before the first logs were found is for those.
        is_triggered = self._control.is_triggered and (self._finding is None or bool(self._members))
        if is_triggered:  # A request that comes from here on is left to the next iteration.
            self._control.take_trigger()
        self._count()
        wait_s = self._find_due_s - self._clock()
        for one in sorted(self._members.values(), key=lambda one: one.due_s):
            one.control.follow(self._control)
            if is_triggered:
                one.control.trigger()
            wait_s = min(wait_s, one.turn())
        if any(one.is_gone for one in self._members.values()):
            self._members = {name: one for name, one in self._members.items() if not one.is_gone}
        return min(_WAKE_S, max(wait_s, _TICK_S))  # A task that ends before that wakes this thread.

    def _count(self) -> None:
        """Count how many tasks may begin in addition to those at work."""
        at_work = [work for one in self._members.values() for work in one.at_work()]
        self._free = {
            Work.ROUND: self._settings.rounds - at_work.count(Work.ROUND),
            Work.LOOK: self._settings.looks - at_work.count(Work.LOOK),
            Work.MERGE: self._settings.rounds - at_work.count(Work.MERGE),
        }

    def _admit(self, work: Work) -> bool:
        self._free[work] -= 1
        return self._free[work] >= 0

    def _look_for_logs(self) -> None:
        find, found = self._find, self._finding
        if found is not None and found.future.done():
            self._finding = None
            try:
                self._take_up(found.future.result())
            except StatelogError as error:
                self.problem = f"logs cannot be searched for: {shown_error(error)}"
        if find is not None and self._finding is None and self._clock() >= self._find_due_s:
            self._find_due_s = self._clock() + self._settings.find_s
            self._finding = begin_task(self._environment, find, lambda _: self._control.ring())

    def _take_up(self, names: Collection[str]) -> None:
        problem = ""
        for name in sorted(set(names).difference(self._members)):
            try:
                self._members = {**self._members, name: self._member(name, is_named=False)}
            except StatelogError as error:
                problem = f"the log {name} cannot be added: {shown_error(error)}"
        self.problem = problem

    def _member(self, name: str, *, is_named: bool) -> "_Member":
        return _Member(name, self._make_kit(name), self._shared, Control(beside=self._control), is_named=is_named)

    def _watch(self) -> None:
        """Raise the age alarms that are due. Runs on a thread of its own, independent of the driving one."""
        for one in self._members.values():
            one.check_age()


class _Member:
    """One log of a fleet, and its daemon while it has one. `state` and `check_age` are for any thread."""

    def __init__(self, name: str, kit: Kit, shared: _Shared, control: Control, *, is_named: bool) -> None:
        self.control = control
        self._is_absent = False
        self._name, self._kit, self._shared, self._is_named = name, kit, shared, is_named
        self._clock = shared.environment.clock
        self._opening: BackgroundTask[_Opened] | None = None
        self._ending: BackgroundTask[StatelogError | None] | None = None
        self._log: Log | None = None
        self._daemon: Materializer | None = None
        self._former: Materializer | None = None
        self._open_due_s = self._clock()
        self._problem = "it has not been opened yet" if is_named else ""

    # ---- from any thread

    def state(self) -> MemberState:
        """Return the state now."""
        daemon, opening = self._daemon, self._opening
        return MemberState(
            log=self._name,
            settings=self._kit.settings,
            statistics=None if daemon is None else daemon.statistics(),
            problem=self._problem,
            opening_s=0.0 if opening is None else self._clock() - opening.started_s,
        )

    def check_age(self) -> None:
        """Alarm if that is due."""
        daemon = self._daemon
        if daemon is not None:
            daemon.check_age()

    # ---- from the fleet's thread

    @property
    def due_s(self) -> float:
        """When the next task is due, or since when."""
        return self._open_due_s if self._daemon is None else self._daemon.due_s

    @property
    def is_over(self) -> bool:
        """Whether no round has to be waited for."""
        return self._daemon is None

    @property
    def is_gone(self) -> bool:
        """Whether it may be dropped: it does not exist, was not named by the caller, and nothing of it hangs."""
        return self._is_absent and not self._is_named and self._is_quiet

    @property
    def _is_quiet(self) -> bool:
        return self._former is None or self._former.is_quiet

    def at_work(self) -> list[Work]:
        """Return the tasks in flight that make progress."""
        if self._daemon is not None:
            return self._daemon.works_on(_PATIENCE_S)
        is_opening = self._opening is not None and self._clock() - self._opening.started_s < _PATIENCE_S
        return [Work.LOOK] * is_opening

    def turn(self) -> float:
        """Collect ended tasks, and begin those that are due. Return for how many seconds nothing will be due."""
        if self._opening is not None and self._opening.future.done():
            self._take_opened(self._opening)
        if self._ending is not None and self._ending.future.done():
            self._take_ended(self._ending)
        if self._daemon is not None:
            return self._drive(self._daemon)
        is_busy = self._opening is not None or self._ending is not None
        if is_busy or self.is_gone or self.control.is_stopped:
            return math.inf
        if not self._is_quiet:
            return math.inf  # Its rounds or its background merge hang; they wake the fleet when they end.
        left_s = self._open_due_s - self._clock()
        if left_s <= 0 and self._shared.admit(Work.LOOK):
            self._opening = begin_task(self._shared.environment, self._open, self._ring)
        return max(0.0, left_s)

    def _drive(self, daemon: Materializer) -> float:
        try:
            wait_s = daemon.turn()
        except Exception as error:  # noqa: BLE001 - a defect that one log brings out must not affect others
            self._end_daemon(daemon, as_ours(error, self._name))
            return math.inf
        if daemon.is_over:
            self._end_daemon(daemon, None)
        return wait_s or 0.0

    def _ring(self, _: object) -> None:
        self.control.ring()

    def leave(self) -> None:
        """End the daemon, and close a log that is still being opened once it is. `turn` is not called again."""
        if self._daemon is not None:
            self._end_daemon(self._daemon, None)
        if self._opening is not None:
            self._opening.future.add_done_callback(_close_opened)

    # ---- opening; the first method runs on another thread

    def _open(self) -> _Opened:
        log = self._kit.open()
        with undone_by_errors(log.close):
            is_closed = False
            with suppress(StatelogError):  # The round will report the problem.
                is_closed = is_closed_copy(log, log.manifests.newest())
            if not is_closed:
                return log, ask_first_delay_s(log, self._kit.settings)
        log.close()
        return None

    def _take_opened(self, opening: BackgroundTask[_Opened]) -> None:
        self._opening = None
        try:
            opened = opening.future.result()
        except Exception as error:  # noqa: BLE001 - as above
            self._quarantine(as_ours(error, self._name))
            return
        if opened is None:
            self._mark_missing(_CLOSED)
            return
        self._log, delay_s = opened
        self._problem, self._is_absent = "", False
        daemon = self._shared.environment.run(
            Materializer,
            self._log,
            self._kit.settings,
            control=self.control,
            on_event=self._shared.on_event,
            make_engine=self._kit.make_engine,
        )
        daemon.admit = self._shared.admit
        daemon.begin(delay_s)
        self._daemon = daemon

    # ---- ending; the second method runs on another thread

    def _end_daemon(self, daemon: Materializer, error: StatelogError | None) -> None:
        log, self._log = self._log, None
        self._daemon, self._former = None, daemon
        self._problem = "" if error is None else shown_error(error)
        daemon.end()
        environment = self._shared.environment
        wait = partial(environment.wait, threading.Event())  # The wake-up event is for the fleet's thread.
        self._ending = begin_task(environment, lambda: _closed(log, error, wait), self._ring)

    def _take_ended(self, ending: "BackgroundTask[StatelogError | None]") -> None:
        self._ending = None
        error = ending.future.result()
        if error is not None:
            self._quarantine(error)

    def _quarantine(self, error: StatelogError) -> None:
        """Note that it has no daemon for now: the log does not exist, or a person has to fix it."""
        if isinstance(error, NotFound):
            self._mark_missing(_ABSENT)
            return
        retry_s = min(self._shared.settings.retry_s, self._kit.settings.interval_s)
        self._open_due_s, self._problem = self._clock() + retry_s, shown_error(error)
        self._report(EventKind.LOG_SET_ASIDE, error, **error_facts(error), retry_s=retry_s)

    def _mark_missing(self, problem: str) -> None:
        if not self._is_absent and (self._is_named or self._former is not None):
            self._report(EventKind.LOG_GONE)
        self._problem = problem
        self._open_due_s, self._is_absent = self._clock() + self._shared.settings.find_s, True

    def _report(self, kind: EventKind, cause: StatelogError | None = None, **facts: object) -> None:
        self._shared.on_event(Event(kind=kind, log=self._name, at_s=self._clock(), facts=facts, error=cause))


def _close_opened(over: Future[_Opened]) -> None:
    if over.exception() is None and (opened := over.result()) is not None:
        opened[0].close()


def _closed(log: Log | None, error: StatelogError | None, wait: Callable[[float], object]) -> StatelogError | None:
    """Close the log. Return the error that its rounds ended with, or NotFound if the log is being deleted."""
    if log is None:
        return error
    try:
        return None if error is None else final_error(log, error, wait)
    finally:
        try:
            log.close()
        except Exception as defect:  # noqa: BLE001 - as above
            as_ours(defect, log.name)


def as_ours(error: Exception, log: str) -> StatelogError:
    """Return the error, or a defect wrapped in a StatelogError, whose traceback is logged."""
    if isinstance(error, StatelogError):
        return error
    _LOG.error("%s: a defect", log, exc_info=error)
    return StatelogError(f"a defect: {type(error).__name__}: {error}", log=log)
