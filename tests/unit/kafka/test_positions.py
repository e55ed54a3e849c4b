"""`HighWater` and `ask_offsets`: an end never moves back within a process, unless the log surely did."""

import threading
from collections.abc import Callable

import pytest

from statelog.errors import BrokerUnavailable, Misuse
from statelog.kafka.port import OffsetRange
from statelog.kafka.positions import HighWater, Listed, ask_offsets

HALF = Listed(-1001, -1001)


def ask(
    seen: HighWater,
    answers: list[Listed],
    *,
    tries: int = 9,
    topic_id: Callable[[], str | None] = lambda: "id",
    at_least: int = 0,
) -> tuple[OffsetRange, int]:
    """Return the accepted range of one partition, and the number of questions. The last answer repeats."""
    asked = 0

    def question() -> dict[int, Listed]:
        nonlocal asked
        asked += 1
        return {0: answers[min(asked, len(answers)) - 1]}

    found = ask_offsets("t", seen, ask=question, topic_id=topic_id, again=lambda: asked < tries, at_least={0: at_least})
    return found[0], asked


def test_an_offset_below_zero_is_asked_again() -> None:
    """An answer with an offset below zero is incomplete, and the question is repeated."""
    assert ask(HighWater(), [HALF, Listed(0, -1001), Listed(-1001, 5), Listed(2, 5, 1)]) == (OffsetRange(2, 5), 4)


def test_no_answer_in_all_the_time_is_unavailable() -> None:
    """No answer in all the time is unavailable, and never an empty log."""
    with pytest.raises(BrokerUnavailable):
        ask(HighWater(), [HALF])


@pytest.mark.parametrize("enough", [True, False])
def test_a_last_question_that_fails_hides_no_answer_that_was_repeated_for_long(enough: bool) -> None:
    """A failing last question does not hide an answer that was repeated for long.

    An answer just before an outage may be a deposed leader's.
    """
    answers = iter([Listed(0, 5, 1), Listed(0, 5, 1)])

    def question() -> dict[int, Listed]:
        try:
            return {0: next(answers)}
        except StopIteration:
            raise BrokerUnavailable("no answer in what was left of the time", hint="") from None

    def believed() -> OffsetRange:
        return ask_offsets(
            "t", HighWater(), ask=question, topic_id=lambda: "id", again=lambda: True, enough=lambda: enough,
            at_least={0: 6},
        )[0]  # fmt: skip

    if enough:
        assert believed() == OffsetRange(0, 5)
    else:
        with pytest.raises(BrokerUnavailable):
            believed()


def test_an_end_below_a_start_is_asked_again() -> None:
    """An end below a start is asked for again: two brokers answered, and one of them is behind."""
    assert ask(HighWater(), [Listed(7, 3, 1), Listed(7, 9, 2)]) == (OffsetRange(7, 9), 2)


@pytest.mark.parametrize("how", ["listed", "acknowledged", "read"])
def test_an_old_end_is_asked_again(how: str) -> None:
    """An end below the observed one, under an epoch that is not newer, is a deposed leader's and asked for again."""
    seen = HighWater()
    if how == "listed":
        assert ask(seen, [Listed(0, 8, 3)]) == (OffsetRange(0, 8), 1)
    else:
        ask(seen, [Listed(0, 1, 3)])
        seen.reached("t", 0, 8, 3 if how == "read" else -1)
    assert ask(seen, [Listed(0, 5, 3), Listed(0, 5, 2), Listed(0, 8, 4)]) == (OffsetRange(0, 8), 3)
    assert seen.end("t", 0) == 8


def test_an_end_below_what_others_committed_is_asked_again() -> None:
    """An end below others' commits is asked for again in a new process. No epoch confirms it, only time."""
    assert ask(HighWater(), [Listed(0, 5, 3)] * 4 + [Listed(0, 8, 4)], at_least=8) == (OffsetRange(0, 8), 5)
    assert ask(HighWater(), [Listed(0, 5, 3)], at_least=8) == (OffsetRange(0, 5), 9)


def test_a_newer_leader_that_says_it_twice_is_believed() -> None:
    """An unclean election is a loss after two equal answers of a newer leader, not after one."""
    seen = HighWater()
    ask(seen, [Listed(0, 8, 3)])
    assert ask(seen, [Listed(0, 5, 4), Listed(0, 6, 4), Listed(0, 6, 4)]) == (OffsetRange(0, 6), 3)
    assert seen.end("t", 0) == 6
    assert ask(seen, [Listed(0, 6, 4)]) == (OffsetRange(0, 6), 1)


def test_what_nobody_contradicts_is_believed_in_the_end() -> None:
    """A smaller end that nothing contradicts in all the time is accepted, also for later questions."""
    seen = HighWater()
    ask(seen, [Listed(0, 8, 3)])
    assert ask(seen, [Listed(0, 5, 3)], tries=4) == (OffsetRange(0, 5), 4)
    assert ask(seen, [Listed(0, 5, 3)]) == (OffsetRange(0, 5), 1)


def test_another_topic_of_the_same_name_starts_anew() -> None:
    """A topic that was deleted and re-created does not inherit the observed end."""
    seen = HighWater()
    seen.identify("t", "one")
    ask(seen, [Listed(0, 8, 3)])
    assert ask(seen, [Listed(0, 0, 0)], topic_id=lambda: "two") == (OffsetRange(0, 0), 1)


def test_nobody_who_can_say_which_topic_it_is_changes_nothing() -> None:
    """A topic whose id is unavailable counts as the same topic."""
    seen = HighWater()
    seen.identify("t", "one")
    ask(seen, [Listed(0, 8, 3)])
    assert ask(seen, [Listed(0, 5, 3), Listed(0, 8, 3)], topic_id=lambda: None) == (OffsetRange(0, 8), 2)


def test_a_deleted_topic_is_forgotten() -> None:
    """Deleting a topic clears its observed end."""
    seen = HighWater()
    ask(seen, [Listed(0, 8, 3)])
    seen.forget("t")
    assert ask(seen, [Listed(0, 0, 0)]) == (OffsetRange(0, 0), 1)


def test_a_start_may_go_back() -> None:
    """A start may move back: a broker that crashed has forgotten its last truncation."""
    seen = HighWater()
    ask(seen, [Listed(5, 8, 3)])
    assert ask(seen, [Listed(2, 8, 3)]) == (OffsetRange(2, 8), 1)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, -1001), (-1001, -1001)])
def test_a_range_refuses_negative_offsets(start: int, end: int) -> None:
    """A range refuses negative offsets, so that a missing answer cannot pass for a position."""
    with pytest.raises(Misuse):
        OffsetRange(start, end)


class _LockBesideAWriter:
    """A lock. As soon as it is free again, another thread records an acknowledgement."""

    def __init__(self, acknowledge: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._acknowledge: list[Callable[[], None]] = [acknowledge]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._acknowledge:
            self._acknowledge.pop()()


def test_what_is_acknowledged_right_behind_an_answer_stays_seen() -> None:
    """An acknowledgement right after an answer is retained: the answer does not lower the end."""
    seen = HighWater()
    seen.reached("t", 0, 8)
    vars(seen)["_lock"] = _LockBesideAWriter(lambda: seen.reached("t", 0, 9))
    assert ask(seen, [Listed(0, 8, 3)]) == (OffsetRange(0, 8), 1)
    assert seen.end("t", 0) == 9


def test_what_is_acknowledged_while_others_are_asked_again_stays_seen() -> None:
    """An accepted smaller end lowers only the partition that was in doubt all the time.

    Other acknowledgements are retained.
    """
    seen = HighWater()
    for partition in (0, 1):
        seen.reached("t", partition, 8)
    answers = {0: Listed(0, 7, 3), 1: Listed(0, 8, 3)}

    def again() -> bool:
        seen.reached("t", 1, 9)
        return False

    ask_offsets("t", seen, ask=lambda: answers, topic_id=lambda: "id", again=again)
    assert [seen.end("t", partition) for partition in (0, 1)] == [7, 9]
