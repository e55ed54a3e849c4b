"""The judge of the cluster's plays notices each kind of error, and accepts what is right."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.cluster.judge import Sighting, judge
from tests.sim.cluster.stage import PARTITIONS_OF, Attempt, State, changes_of, mark_of, owner_of, partition_of_key

Entry = dict[str, Any]


def _attempt(life: str, checkpoint: int, begin: int) -> Attempt:
    return Attempt(writer="w0", life=life, checkpoint=checkpoint, begin=begin, end=begin + 5)


FIRST, SECOND, THIRD = _attempt("1.1", 1, 0), _attempt("1.1", 2, 5), _attempt("2.1", 3, 10)


LAST = Sighting(3, "2.1", 5)


def _digest(*attempts: Attempt) -> int:
    state = State()
    for attempt in attempts:
        for key, value in changes_of(attempt):
            state.change(key, value)
    return state.digest


def _tried(attempt: Attempt, offset: int | None) -> list[Entry]:
    actor = {"actor": f"w0.{attempt.life[0]}", "life": attempt.life, "checkpoint": attempt.checkpoint}
    told = [] if offset is None else [{**actor, "what": "ack", "offset": offset}]
    return [{**actor, "what": "attempt", "begin": attempt.begin, "end": attempt.end}, *told]


def _story() -> list[Entry]:
    """Return the entries of two incarnations, a reader and a follower.

    One commit is acknowledged late, to the successor.
    """
    entries: list[Entry] = [
        {"actor": "w0.1", "what": "opened", "life": "1.1", "epoch": 1, "checkpoint": 0},
        *_tried(FIRST, 2),
        {"actor": "reader0.1", "what": "read", "begun_at": 3.5, "position": 3, "digest": _digest(FIRST)},
        *_tried(SECOND, None),
        {"actor": "w0.2", "what": "opened", "life": "2.1", "epoch": 4, "checkpoint": 2, "offset": 3,
         "metadata": {"life": "1.1", "end": "10"}},
        {"actor": "w0.2", "what": "restored", "life": "2.1", "checkpoint": 2, "digest": _digest(FIRST, SECOND)},
        *_tried(THIRD, 5),
        {"actor": "follower.1", "what": "followed", "position": 6, "digest": _digest(FIRST, SECOND, THIRD),
         "doubled": []},
    ]  # fmt: skip
    return [{"at": float(at), **entry} for at, entry in enumerate(entries)]


def _judged(entries: list[Entry], last: Sighting = LAST) -> list[str]:
    nothing = dict.fromkeys(PARTITIONS_OF, Sighting(0, "", -1))
    return judge(entries, {**nothing, "w0": last}).complaints


def test_what_is_right_passes() -> None:
    """An unacknowledged commit that the next incarnation found is part of history like the others."""
    assert _judged(_story()) == []


def _second_lost(entries: list[Entry]) -> None:
    entries[5].update({"checkpoint": 1, "offset": 2})
    entries.insert(5, {"at": 4.5, **_tried(SECOND, 3)[1]})


def _stale_read(entries: list[Entry]) -> None:
    entries[3].update(position=2, digest=_digest())


def _torn_read(entries: list[Entry]) -> None:
    entries[3].update(digest=_digest(FIRST) + 1)


def _stale_restore(entries: list[Entry]) -> None:
    entries[6].update(checkpoint=1, digest=_digest(FIRST))


def _restore_of_more(entries: list[Entry]) -> None:
    entries.insert(2, {"at": 1.5, "actor": "w0.1", "what": "restored", "life": "1.1", "checkpoint": 1, "digest": 0})


def _torn_restore(entries: list[Entry]) -> None:
    entries[6].update(digest=_digest(FIRST))


def _doubled(entries: list[Entry]) -> None:
    entries[-1].update(doubled=["w0/c3/0"])


def _warned(entries: list[Entry]) -> None:
    entries.append({"at": 99.0, "actor": "reader0.1", "what": "warned", "kind": "statelog.recovery", "text": "damaged"})


def _nobodys(entries: list[Entry]) -> None:
    del entries[4]


def _another_life(entries: list[Entry]) -> None:
    entries[5]["metadata"]["life"] = "9.9"


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (_second_lost, "lost acknowledged"),
        (_stale_read, "and read less"),
        (_torn_read, "another state at position 3"),
        (_stale_restore, "restored less"),
        (_restore_of_more, "alone, and restored more"),
        (_torn_restore, "restored another state"),
        (_doubled, "saw a commit twice"),
        (_warned, "was warned"),
        (_nobodys, "nobody was told of 2"),
        (_another_life, "told Attempt"),
    ],
)
def test_what_is_wrong_is_noticed(harm: Callable[[list[Entry]], None], complaint: str) -> None:
    """Each single error makes at least one complaint, and the right one."""
    entries = _story()
    harm(entries)
    complaints = _judged(entries)
    assert any(complaint in said for said in complaints), complaints


def test_a_life_that_was_replaced_may_restore_more_than_it_found() -> None:
    """An incarnation that slept between opening and recovery may restore its successor's commits, too."""
    entries = _story()
    entries.append(
        {"at": 99.0, "actor": "w0.1", "what": "restored", "life": "1.1", "checkpoint": 3,
         "digest": _digest(FIRST, SECOND, THIRD)}
    )  # fmt: skip
    assert _judged(entries) == []


def test_a_commit_missing_in_the_end_is_noticed() -> None:
    """A last read with less than was acknowledged is a complaint."""
    assert any("lost acknowledged [3]" in said for said in _judged(_story(), Sighting(2, "1.1", 3)))


def test_a_digest_tells_states_apart_and_not_orders() -> None:
    """Equal states have equal digests, whatever their order of changes. Other values have others."""
    a, b = (b"w0/k", b"1"), (b"w1/k", b"2")
    assert State([a, b]).digest == State([b, a]).digest
    assert State([a, b]).digest != State([a, (b"w1/k", b"3")]).digest
    state = State([a, b])
    state.change(b"w0/k", None)
    assert state.digest == State([b]).digest
    assert state.rows == dict([b])


def test_names_share_nothing() -> None:
    """All that a name writes is in its own partitions, under its own keys."""
    for writer, partitions in PARTITIONS_OF.items():
        keys = {key for key, _ in changes_of(Attempt(writer=writer, life="1.1", checkpoint=7, begin=0, end=200))}
        assert mark_of(writer, 7) in keys
        assert {owner_of(key) for key in keys} == {writer}
        assert {partition_of_key(key) for key in keys} == set(partitions)
