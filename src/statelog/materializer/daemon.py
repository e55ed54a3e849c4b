"""The materializer as a daemon: one round after another, until stopped or until an error that retrying cannot fix.

`schedule` decides when a round begins. Rounds, and the concurrent checks of the tail, run on their own threads. The
daemon's thread only waits, at most as long as a round may take.

    failure       tolerated while it is Unavailable (see `failures_tolerated`); any other failure ends the daemon
    given up      a round that exceeds its timeout counts as failed, and the schedule moves on. It ends at its next
                  step; if it was already at its put, it finishes late and counts after all
    stop          a round in flight finishes. It is given up once its grace period is over or a second request to stop
                  comes: then it ends at its next step before the put, and is no longer waited for

Invariants:
- At most one round is in flight, apart from those given up. No more of those may hang than failures are tolerated.
- The statistics are one frozen value, replaced as a whole by one thread.
- Only a round that ended well (completed, skipped, lost) resets the count of failures in a row. Damage and misuse are
  never tolerated, even when they are reported late.
"""

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from enum import Enum
from types import NoneType

from statelog.environment import current_environment, repeated
from statelog.errors import Damaged, RoundGivenUp, StatelogError, StoreRefused, Unavailable
from statelog.log import Log
from statelog.log.log import check_log
from statelog.materializer.beside_rounds import ask_first_delay_s, final_error
from statelog.materializer.cleanup import VerifiedRuns
from statelog.materializer.control import BackgroundTask, Control, begin_task
from statelog.materializer.engine import EngineMaker, LocalEngine
from statelog.materializer.events import Event, EventKind, error_facts, log_event, shortfalls, shown_error
from statelog.materializer.merging import BackgroundMerge
from statelog.materializer.outcome import CompletedRound, LostRound, RoundOutcome, SkippedRound
from statelog.materializer.round import Round
from statelog.materializer.schedule import Rates, RoundCause, cause_of_round, delay_after
from statelog.materializer.settings import MaterializerSettings, tuning_of
from statelog.materializer.statistics import MaterializerStatistics, with_failure, with_outcome, with_tail
from statelog.materializer.tail import TailWatch
from statelog.schemas.names import check_kind, settings_or

_LAST_STEP_S = 10.0  # how long a round that should end may take to reach its next step
_CHECKS_PER_ALARM = 10
_ENDED: dict[type[RoundOutcome], EventKind] = {
    CompletedRound: EventKind.ROUND_COMPLETED,
    SkippedRound: EventKind.ROUND_SKIPPED,
    LostRound: EventKind.ROUND_LOST,
}


class Work(Enum):
    """The kinds of background tasks of a daemon."""

    ROUND = "round"
    LOOK = "look"
    MERGE = "merge"


Admit = Callable[[Work], bool]


class Materializer:
    """Runs rounds on one log. `statistics`, `check_age`, `trigger` and `stop` are thread-safe, `run` is not.

    control      carries requests from elsewhere, such as signal handlers
    on_event     receives events; by default they become log lines of `statelog.materializer`
    rates        are used until better ones have been measured
    make_engine  see `run_round`

        >>> daemon = Materializer(log, MaterializerSettings(interval_s=60.0))
        >>> daemon.run_once()  # daemon.run() goes on until daemon.stop(), from another thread or a signal handler
        SkippedRound(number=0, position=0)
    """

    def __init__(
        self,
        log: Log,
        settings: MaterializerSettings | None = None,
        *,
        control: Control | None = None,
        on_event: Callable[[Event], None] = log_event,
        rates: Rates | None = None,
        make_engine: EngineMaker = LocalEngine,
    ) -> None:
        check_log(log)
        check_kind("control", control, Control, NoneType, example="a Control, or nothing")
        check_kind("rates", rates, Rates, NoneType, example="Rates, or nothing")
        self._log = log
        self.admit: Admit = lambda _: True
        """Called before each task that is due: whether it may begin now, concurrently with those of other daemons."""
        self._rounds: list[BackgroundTask[RoundOutcome]] = []
        """The begun rounds, except some that have ended."""
        self._make_engine = make_engine
        self._settings = settings = settings_or(settings, MaterializerSettings())
        self._control = control or Control()
        self._environment = environment = current_environment()
        self._clock = environment.clock
        self._on_event = on_event
        self._verified = VerifiedRuns()
        self._statistics = MaterializerStatistics(since_s=environment.clock(), rates=rates or Rates())
        self._ended: deque[BackgroundTask[RoundOutcome]] = deque()
        self._round: BackgroundTask[RoundOutcome] | None = None
        self._tail_watch = TailWatch(log, settings, ring=self._control.ring)
        self._next_alarm_s = settings.alarm_age_s
        # Another engine writes runs to the store at once, where a round would delete them before a manifest names them.
        is_local = make_engine is LocalEngine
        self._merge = BackgroundMerge(log, settings, ring=self._control.ring) if is_local else None
        self.due_s = environment.clock()
        """When the next round is due, on the daemon's clock."""
        self._ended_s: float | None = None
        self._failing_since_s = 0.0
        self.is_ended = False
        """Whether `end` was called."""
        self._awaited_s = math.inf  # When the loop runs again, at the latest.
        self._began_s = self._stepped_s = 0.0  # The newest round, and its last step.
        environment.made(self, log.name)

    # ---- from any thread

    def statistics(self) -> MaterializerStatistics:
        """Return a snapshot of the statistics."""
        known, now_s = self._statistics, self._clock()
        return replace(
            known,
            age_s=now_s - known.since_s,
            late_s=max(0.0, now_s - self._awaited_s),
            silent_s=0.0 if self._round is None else max(0.0, now_s - self._stepped_s),
        )

    def trigger(self) -> None:
        """Ask for a round now. If one is in flight, another follows it."""
        self._control.trigger()

    def stop(self) -> None:
        """Ask the daemon to end once the round in flight is over."""
        self._control.stop()

    def check_age(self) -> None:
        """Alarm if changes stay out of every snapshot for too long, and again after each further `alarm_age_s`.

        Rounds that hang, are skipped by mistake, always lose or never begin all raise the age alike. This does no I/O:
        while the log is unreachable, the age keeps growing.
        """
        age_s, alarm_age_s = self.statistics().age_s, self._settings.alarm_age_s
        if age_s < alarm_age_s:
            self._next_alarm_s = alarm_age_s
        elif age_s >= self._next_alarm_s:
            self._next_alarm_s = age_s + alarm_age_s
            self._report(EventKind.LOG_AGE_ALARM, age_s=age_s)

    # ---- one round

    def run_once(self) -> RoundOutcome:
        """Run one round now, on this thread, counted and reported like any other.

        Raises the round's errors: Damaged, Unsafe, Misuse, Unavailable and its kinds, and RoundGivenUp.
        """
        started_s = self._begin(RoundCause.TRIGGER)
        try:
            outcome = self._run_round(started_s, beside=None)
        except StatelogError as error:
            self._failed(error)
            raise
        self._ended_well(outcome, started_s)
        return outcome

    def _begin(self, cause: RoundCause) -> float:
        self._control.take_trigger()
        self._statistics = replace(self._statistics, started=self._statistics.started + 1)
        started_s = self._began_s = self._stepped_s = self._clock()
        self._report(EventKind.ROUND_STARTED, started_s, cause=cause)
        return started_s

    def _run_round(self, started_s: float, beside: BackgroundMerge | None) -> RoundOutcome:
        def is_given_up() -> bool:
            now_s = self._clock()
            if self._began_s == started_s:  # A round that was given up earlier must not count as progress.
                self._stepped_s = now_s
            return now_s >= min(started_s + self._settings.round_timeout_s, self._grace_s())

        return self._environment.run(
            Round,
            self._log,
            self._settings,
            verified=self._verified,
            make_engine=self._make_engine,
            beside=beside,
            is_given_up=is_given_up,
        ).run()

    def _grace_s(self) -> float:
        """Return until when a stop waits for the round in flight."""
        stopped_s, abandoned_s = self._control.stopped_s, self._control.abandoned_s
        over_s = math.inf if stopped_s is None else stopped_s + tuning_of(self._settings).stop_grace_s
        return over_s if abandoned_s is None else min(over_s, abandoned_s)

    # ---- round after round

    def run(self) -> None:
        """Run rounds until stopped.

        Raises the last error when more rounds in a row fail than are tolerated, and at once an error that retrying
        cannot fix: Damaged, Unsafe, Misuse.
        """
        self.begin(ask_first_delay_s(self._log, self._settings))
        try:
            with repeated(self.check_age, self._settings.alarm_age_s / _CHECKS_PER_ALARM, "statelog-watchdog"):
                while not self.is_over:
                    wait_s = self.turn()
                    if wait_s is not None:
                        self._control.wait(wait_s)
        except Damaged as error:
            found = final_error(self._log, error, self._control.wait)
            if found is error:
                raise
            raise found from error
        finally:
            self.end()

    def begin(self, delay_s: float) -> None:
        """Start: the first round is due after this delay. The caller then calls `turn` until `is_over`, and `end`."""
        self.due_s = self._clock() + delay_s
        self._report(EventKind.STARTED, first_round_s=0.0 if self._control.is_triggered else delay_s)

    @property
    def is_over(self) -> bool:
        """Whether the daemon was asked to stop, and no round is in flight."""
        return self._control.is_stopped and self._round is None

    def works_on(self, patience_s: float) -> list[Work]:
        """Return the tasks in flight, except those given up, and those without progress for longer: they may hang."""
        late_s, check_s = self._clock() - patience_s, self._tail_watch.checking_since_s
        is_rolling = self._round is not None and self._stepped_s >= late_s
        is_checking = check_s is not None and check_s >= late_s
        is_merging = self._merge is not None and self._merge.is_at_work(late_s)
        return [Work.ROUND] * is_rolling + [Work.LOOK] * is_checking + [Work.MERGE] * is_merging

    @property
    def is_quiet(self) -> bool:
        """Whether no round and no merge runs any more, not even one that was given up."""
        return all(task.future.done() for task in self._rounds) and (self._merge is None or self._merge.is_quiet)

    def turn(self) -> float | None:
        """Collect ended tasks, and begin those that are due, without waiting.

        Returns for how many seconds nothing will be due, None if a task has ended already. Raises the error that ends
        the daemon: Damaged, Unsafe, Misuse, Unavailable.
        """
        self._take_in()
        if self._round is not None and self._clock() >= self._over_s(self._round):
            self._give_up(self._round)
        elif not self._control.is_stopped:
            self._begin_what_is_due()
        now_s = self._awaited_s = self._clock()
        if self._ended or self._tail_watch.is_any_over or self.is_over:
            return None
        self._awaited_s = max(now_s, self._wake_s())
        return self._awaited_s - now_s

    def end(self) -> None:
        """Release what is held, and report the end. Idempotent but for the event."""
        self._awaited_s, self.is_ended = math.inf, True
        self._tail_watch.drop()
        if self._merge is not None:
            self._merge.close()
        self._report(EventKind.STOPPED)

    def _begin_what_is_due(self) -> None:
        if self._clock() >= self._tail_watch.due_s and self.admit(Work.LOOK):
            self._tail_watch.begin()
            self._take_in()
        if self._merge is not None and self._merge.is_due and self.admit(Work.MERGE):
            self._merge.begin()
        cause = self._cause() if self._round is None else None
        if cause is not None and self.admit(Work.ROUND):
            started_s = self._begin(cause)
            task = begin_task(self._environment, lambda: self._run_round(started_s, self._merge), self._round_over)
            self._round = task
            self._rounds = [*(one for one in self._rounds if not one.future.done()), task]

    def _cause(self) -> RoundCause | None:
        return cause_of_round(
            self._settings,
            now_s=self._clock(),
            due_s=self.due_s,
            is_triggered=self._control.is_triggered,
            outlook=self._tail_watch.outlook,
            ended_s=self._ended_s,
            lasted_s=self._statistics.last_duration_s or 0.0,
            has_failed=self._statistics.failures_in_a_row > 0,
        )

    def _over_s(self, task: BackgroundTask[RoundOutcome]) -> float:
        """Return when to stop waiting for a round; after a stop, shortly after the round was asked to end."""
        return min(task.started_s + self._settings.round_timeout_s, self._grace_s() + _LAST_STEP_S)

    def _wake_s(self) -> float:
        """Return when something is due even without a wake-up."""
        next_round_s = self.due_s if self._round is None else self._over_s(self._round)
        return next_round_s if self._control.is_stopped else min(next_round_s, self._tail_watch.due_s)

    # ---- results; the first method runs on another thread

    def _round_over(self, task: BackgroundTask[RoundOutcome]) -> None:
        self._ended.append(task)
        self._control.ring()

    def _take_in(self) -> None:
        while self._ended:
            task = self._ended.popleft()
            if task.is_given_up:
                self._take_late(task)
            else:
                self._take_round(task)
        for tail, checked_s in self._tail_watch.take_in():
            self._statistics = with_tail(self._statistics, tail, checked_s=checked_s)
            self._judge_budget()

    def _take_round(self, task: BackgroundTask[RoundOutcome]) -> None:
        """Count the round in flight, which has ended."""
        outcome: RoundOutcome | None = None
        try:
            outcome = task.future.result()
        except StatelogError as error:
            self._count_failure(error)
        else:
            self._ended_well(outcome, task.started_s)
        self._schedule_next(outcome)

    def _take_late(self, task: BackgroundTask[RoundOutcome]) -> None:
        """Count a round that was given up, if it ended well. Raise the damage that it found."""
        self._statistics = replace(self._statistics, hanging=self._statistics.hanging - 1)
        outcome: RoundOutcome | None = None
        with suppress(Unavailable, StoreRefused):  # It was counted as failed when it was given up.
            outcome = task.future.result()
        self._report(EventKind.ROUND_ENDED_LATE, outcome=outcome, counts=outcome is not None)
        if outcome is not None:
            self._statistics = replace(self._statistics, late=self._statistics.late + 1)
            self._ended_well(outcome, task.started_s)
            self._tail_watch.start_over()

    def _judge_budget(self) -> None:
        found, budget_s = self._statistics.restore, self._settings.restore_budget_s
        if found is not None and self._tail_watch.judge(found, budget_s):
            self._report(EventKind.RESTORE_BUDGET_OUT_OF_REACH, snapshot_s=found.snapshot_s, budget_s=budget_s)

    # ---- how rounds end

    def _give_up(self, task: BackgroundTask[RoundOutcome]) -> None:
        """Give up the round in flight: it counts as failed, and the schedule moves on without it."""
        task.is_given_up = True
        self._statistics = replace(self._statistics, hanging=self._statistics.hanging + 1)
        self._count_failure(
            RoundGivenUp("a round exceeded round_timeout_s", round_timeout_s=self._settings.round_timeout_s)
        )
        self._schedule_next(None)

    def _count_failure(self, error: StatelogError) -> None:
        """Count the failure of the round in flight. Raise the error unless it is tolerated."""
        self._failed(error)
        if not self._tolerates(error):
            raise error

    def _schedule_next(self, outcome: RoundOutcome | None) -> None:
        """Schedule the next round after the delay, and the next check of the tail now."""
        self._round = None
        self._ended_s = self._clock()
        self.due_s = self._ended_s + delay_after(outcome, self._settings)
        self._tail_watch.start_over()

    def _tolerates(self, error: StatelogError) -> bool:
        tolerated = self._settings.failures_tolerated
        lasted_s = self._clock() - self._failing_since_s
        is_short = tolerated > 0 and lasted_s < tuning_of(self._settings).failures_tolerated_s
        few = self._statistics.failures_in_a_row <= tolerated or is_short
        if isinstance(error, RoundGivenUp) and self._control.is_stopped:
            return True
        # Rights can be missing for a moment, too: credentials expire and are renewed.
        return isinstance(error, Unavailable | StoreRefused) and few and self._statistics.hanging <= tolerated

    def _failed(self, error: StatelogError) -> None:
        if self._statistics.failures_in_a_row == 0:
            self._failing_since_s = self._clock()
        self._statistics = with_failure(self._statistics, shown_error(error))
        self._report(
            EventKind.ROUND_FAILED,
            cause_of=error,
            **error_facts(error),
            failures_in_a_row=self._statistics.failures_in_a_row,
            tolerated=self._tolerates(error),
        )

    def _ended_well(self, outcome: RoundOutcome, started_s: float) -> None:
        at_s = self._clock()
        self._statistics = with_outcome(self._statistics, outcome, duration_s=at_s - started_s)
        if isinstance(outcome, CompletedRound):
            self._log.history.forget(outcome.position)  # A fleet's logs are many.
        self._report(_ENDED[type(outcome)], at_s, outcome=outcome, **asdict(outcome))
        for event in shortfalls(self._log.name, outcome, at_s):
            self._on_event(event)

    def _report(
        self,
        kind: EventKind,
        at_s: float | None = None,
        *,
        outcome: RoundOutcome | None = None,
        cause_of: StatelogError | None = None,
        **facts: object,
    ) -> None:
        at_s = self._clock() if at_s is None else at_s
        self._on_event(Event(kind=kind, log=self._log.name, at_s=at_s, facts=facts, outcome=outcome, error=cause_of))
