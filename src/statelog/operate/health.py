"""Whether a daemon lives, and whether it does what it is for, and why not. Pure, over the statistics of its rounds.

    live    its loop turns when it said that it would, and no round is silent for longer than a step may take. What is
            not live does not get better by itself: whoever watches it starts it anew, which is safe at any time
    ready   its rounds succeed, and what is committed gets into snapshots

Invariant: a daemon that fails is live. Starting it anew would not help, and would hide what is wrong.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from statelog.formatting import show_duration
from statelog.materializer import MaterializerSettings
from statelog.materializer.fleet import MemberState
from statelog.materializer.statistics import MaterializerStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHealth:
    """Of one log: what speaks against being live, and against being ready; empty if nothing does."""

    log: str
    not_live: str = ""
    not_ready: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Of a process: `not_live` of what drives all of its logs, and each of them."""

    logs: Sequence[LogHealth] = ()
    not_live: str = ""

    def why_not_live(self) -> list[str]:
        """Empty if it is live. One log that hangs beside others that do not is no reason to stop those."""
        hanging = [f"{one.log}: {one.not_live}" for one in self.logs if one.not_live]
        are_all = bool(hanging) and len(hanging) == len(self.logs)
        return [self.not_live] * bool(self.not_live) + hanging * are_all

    def why_not_ready(self) -> list[str]:
        """Empty if it is ready, which no log that hangs is."""
        found = [self.not_live] if self.not_live else []
        for one in self.logs:
            found += [f"{one.log}: {reason}" for reason in (one.not_live, *one.not_ready) if reason]
        return found


def health_of(log: str, now: MaterializerStatistics, settings: MaterializerSettings) -> LogHealth:
    """Of a log, by what its rounds know now."""
    return LogHealth(log=log, not_live=_hangs(now, settings.hang_s), not_ready=tuple(_fails(now, settings)))


def health_of_all(states: Iterable[MemberState], *, late_s: float, hang_s: float, problem: str = "") -> Health:
    """Of a process that drives many logs: how each of them is, for how long its own loop is late, and its problem."""
    late = f"the loop hangs: it should have turned {show_duration(late_s)} ago"
    beside = [LogHealth(log="all logs", not_ready=(problem,))] if problem else []
    return Health(logs=[*beside, *map(health_of_member, states)], not_live=late if late_s >= hang_s else "")


def health_of_member(state: MemberState) -> LogHealth:
    """Of a log, with a daemon or without."""
    if state.statistics is not None:
        return health_of(state.log, state.statistics, state.settings)
    if state.opening_s >= state.settings.hang_s:
        return LogHealth(log=state.log, not_live=f"it has been opening for {show_duration(state.opening_s)}")
    return LogHealth(log=state.log, not_ready=(state.problem,) if state.problem else ())


def _hangs(now: MaterializerStatistics, hang_s: float) -> str:
    if now.late_s >= hang_s:
        return f"the loop hangs: it should have turned {show_duration(now.late_s)} ago"
    if now.silent_s >= hang_s:
        return f"the round hangs: it reached its last step {show_duration(now.silent_s)} ago"
    return ""


def _fails(now: MaterializerStatistics, settings: MaterializerSettings) -> Iterator[str]:
    if now.failures_in_a_row:
        yield f"{now.failures_in_a_row} rounds in a row failed, the last one by: {now.error}"
    if now.hanging:
        yield f"{now.hanging} rounds were given up, and hang"
    if now.age_s >= settings.alarm_age_s:
        yield f"no snapshot holds what was committed {show_duration(now.age_s)} ago"
