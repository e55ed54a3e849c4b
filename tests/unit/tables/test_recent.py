"""The last commits that a backend on disk retains in memory."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from statelog.tables.state.store import UNKNOWN, RecentCommits, held_bytes

EACH = 200
"""Bytes that a change of no data counts for."""
COMMITS = st.lists(
    st.dictionaries(st.integers(0, 12), st.none() | st.binary(max_size=3), min_size=1, max_size=12), max_size=30
)


def _size(changes: dict[int, bytes | None]) -> int:
    return sum(len(value or b"") for value in changes.values())


@given(COMMITS, st.integers(0, 20 * EACH), st.sets(st.integers(0, 30), max_size=2))
def test_what_is_known_is_what_was_committed(
    commits: list[dict[int, bytes | None]], bytes_max: int, loads: set[int]
) -> None:
    """The retained changes are those of the last commits, whatever was dropped, and never exceed the room."""
    recent, state = RecentCommits(bytes_max), dict[int, bytes | None]()
    for number, changes in enumerate(commits):
        if number in loads:
            recent.forget()
            assert all(recent.find(key) is UNKNOWN for key in range(13))
        state.update(changes)
        recent.take(changes, _size(changes))
        known = {key: value for key in range(13) if (value := recent.find(key)) is not UNKNOWN}
        assert known == {key: state[key] for key in known}
        assert len(known) * EACH <= bytes_max


def test_the_last_commits_are_known() -> None:
    """At least half of the room is used, however small the commits are."""
    recent = RecentCommits(100 * EACH)
    for key in range(1_000):
        recent.take({key: b""}, 0)
        assert all(recent.find(one) == b"" for one in range(max(0, key - 49), key + 1))
    assert recent.find(800) is UNKNOWN


def test_a_commit_that_is_larger_than_all_is_known_in_part() -> None:
    """A commit larger than the room is retained in part: its last changes, without older values of the others."""
    recent = RecentCommits(10 * EACH)
    recent.take({3: b"old", 99: b"old"}, 6)
    recent.take(dict.fromkeys(range(100), b""), 0)
    assert [key for key in range(100) if recent.find(key) is not UNKNOWN] == list(range(90, 100))


def test_typed_values_count_for_what_they_take() -> None:
    """Typed values count as objects, about as Python does, and not as their bytes in a file."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        texts = [{f"field{i}": f"text {n} of {i}" for i in range(8)} for n in range(999)]
        values = [{**fields, "tags": [fields["field0"] * 2]} for fields in texts]
        del texts
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 < held_bytes(values) / taken < 1.5
    assert held_bytes([]) == 0


def test_nothing_is_kept_if_so_wished() -> None:
    """With `recent_bytes` 0, nothing is retained."""
    recent = RecentCommits(0)
    recent.take({1: b""}, 0)
    assert recent.find(1) is UNKNOWN
