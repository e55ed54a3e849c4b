"""The boundaries of a sequence agree with a table of change sets, one row each."""

from collections.abc import Callable
from enum import Enum

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from statelog.errors import Misuse, PersistFailed, SequenceAhead, SequenceTruncated
from statelog.producer.pipeline import INITIAL, Sequence

EVENTS = ("append", "roll", "send", "hold", "land", "land", "fail", "confirm", "truncate")


class Stage(Enum):
    """The stage of a change set."""

    ACTIVE = "active"
    """It takes appends; parts of it may be in flight already."""
    UNSENT = "unsent"
    IN_FLIGHT = "in flight"
    DURABLE = "durable"
    COMMITTED = "committed"
    FAILED = "failed"
    """A chunk of it, or of an earlier one, is not surely in the log. It never counts."""


SETTLED = (Stage.DURABLE, Stage.COMMITTED)


class Table:
    """The naive twin: one row per change set, with nothing derived."""

    def __init__(self) -> None:
        self.stages = {INITIAL: Stage.ACTIVE}
        self.held: set[int] = set()
        self.truncated = INITIAL
        self.has_failed = False

    @property
    def next(self) -> int:
        """The active change set's number."""
        return max(self.stages)

    def of(self, *stages: Stage) -> list[int]:
        """Return the numbers in these stages."""
        return [sqn for sqn, stage in self.stages.items() if stage in stages]

    def fail(self, first: int) -> None:
        """Fail this change set and every later one."""
        self.has_failed = True
        for sqn in self.stages:
            if sqn >= first:
                self.stages[sqn] = Stage.FAILED

    def may_truncate(self, sqn: int) -> bool:
        """Return whether every change set below it is in a checkpoint."""
        return sqn <= self.next and all(below in self.held for below in range(INITIAL, sqn))


def _roll(sequence: Sequence, table: Table, _: int) -> Sequence:
    table.stages[table.next] = Stage.UNSENT if not table.has_failed else Stage.FAILED
    table.stages[table.next + 1] = Stage.ACTIVE if not table.has_failed else Stage.FAILED
    return sequence.rolled_over()


def _send(sequence: Sequence, table: Table, _: int) -> Sequence:
    for sqn in table.of(Stage.UNSENT):
        table.stages[sqn] = Stage.IN_FLIGHT
    return sequence.all_sent()


def _hold(sequence: Sequence, table: Table, _: int) -> Sequence:
    sequence = _send(sequence, table, 0)
    table.held |= set(table.stages) - {table.next}
    return sequence.all_held()


def _land(sequence: Sequence, table: Table, _: int) -> Sequence:
    waiting = table.of(Stage.IN_FLIGHT)
    if not waiting:
        return sequence
    table.stages[min(waiting)] = Stage.DURABLE
    return sequence.durable_below(min(waiting) + 1)


def _fail(sequence: Sequence, table: Table, pick: int) -> Sequence:
    open_ones = [sqn for sqn, stage in table.stages.items() if stage not in SETTLED]
    first = open_ones[pick % len(open_ones)]
    table.fail(first)
    return sequence.fails(first)


def _confirm(sequence: Sequence, table: Table, pick: int) -> Sequence:
    ready = [sqn for sqn in table.of(Stage.DURABLE) if sqn in table.held]
    if not ready:
        return sequence
    end = ready[pick % len(ready)] + 1
    for sqn in ready:
        if sqn < end:
            table.stages[sqn] = Stage.COMMITTED
    return sequence.confirmed_below(end)


def _truncate(sequence: Sequence, table: Table, pick: int) -> Sequence:
    sqn = pick % (table.next + 3)
    if not table.may_truncate(sqn):
        with pytest.raises(SequenceAhead if sqn > table.next else Misuse):
            sequence.truncated_below(sqn)
        return sequence
    table.truncated = max(table.truncated, sqn)
    return sequence.truncated_below(sqn)


def _append(sequence: Sequence, _: Table, __: int) -> Sequence:
    return sequence


STEPS: dict[str, Callable[[Sequence, Table, int], Sequence]] = {
    "append": _append,
    "roll": _roll,
    "send": _send,
    "hold": _hold,
    "land": _land,
    "fail": _fail,
    "confirm": _confirm,
    "truncate": _truncate,
}


def _expected_refusal(table: Table, start: int) -> type[Exception] | None:
    if table.has_failed and start <= max(table.of(Stage.FAILED)):
        return PersistFailed
    if start < table.truncated:
        return SequenceTruncated
    return SequenceAhead if start > table.next else None


def _stage(sequence: Sequence, sqn: int) -> Stage:
    """Return the stage of this change set by the boundaries."""
    if sqn < sequence.confirmed:
        return Stage.COMMITTED
    if sqn < sequence.durable:
        return Stage.DURABLE
    if sequence.failed is not None and sqn >= sequence.failed:
        return Stage.FAILED
    if sqn == sequence.next:
        return Stage.ACTIVE
    return Stage.IN_FLIGHT if sqn < sequence.sent else Stage.UNSENT


def _check(sequence: Sequence, table: Table) -> None:
    assert {sqn: _stage(sequence, sqn) for sqn in range(INITIAL, sequence.next + 1)} == table.stages
    for start in range(INITIAL - 1, table.next + 3):
        expected = _expected_refusal(table, start)
        if expected is None:
            sequence.check_start(start)
        else:
            with pytest.raises(expected):
                sequence.check_start(start)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 50)), max_size=40))
def test_boundaries_agree_with_a_table(events: list[tuple[str, int]]) -> None:
    """After any history every change set is in the stage of its own row, and starts are refused alike."""
    sequence, table = Sequence(), Table()
    for name, pick in events:
        sequence = STEPS[name](sequence, table, pick)
        _check(sequence, table)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 50)), max_size=40))
def test_no_boundary_moves_back(events: list[tuple[str, int]]) -> None:
    """No boundary moves back: a sent, held, durable, historical or truncated change set stays so."""
    sequence, table = Sequence(), Table()
    for name, pick in events:
        after = STEPS[name](sequence, table, pick)
        for field in ("next", "sent", "durable", "held", "confirmed", "truncated"):
            assert getattr(after, field) >= getattr(sequence, field)
        assert after.confirmed <= min(after.held, after.durable) <= max(after.held, after.durable) <= after.sent
        sequence = after


def test_a_number_that_nobody_has_is_refused() -> None:
    """Numbers below the first and above the next one belong to no change set."""
    with pytest.raises(SequenceTruncated):
        Sequence().check_start(INITIAL - 1)
    with pytest.raises(SequenceAhead):
        Sequence().check_start(INITIAL + 1)
