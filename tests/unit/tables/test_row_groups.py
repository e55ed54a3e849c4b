"""Row groups read on demand are searched like a list, chosen by possibly cut bounds, and cached within a limit."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.store.run_reader import KeyBounds
from statelog.tables.state.snapshot import RowGroup, RowGroupCache, may_hold, may_reach, sortable
from tests.support.samples.runs import change_table

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bytes": (pa.binary(), st.binary(max_size=3)),
    "string": (pa.string(), st.text(alphabet="ab\0ä\U0010ffff", max_size=3)),
    "long": (pa.int64(), st.integers(-3, 3) | st.sampled_from([-(1 << 63), (1 << 63) - 1])),
}


def _row_group(rows: dict[tuple[int, Any], bytes | None], kind: pa.DataType) -> RowGroup:
    changes = [(group, int(value is None), key, value) for (group, key), value in rows.items()]
    return RowGroup(change_table(changes, kind))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_search_finds_what_is_there(kind: str, data: st.DataObject) -> None:
    """A search finds rows by key and between two keys, with deletes, in every key group, also an empty one."""
    arrow, keys = KINDS[kind]
    places = st.tuples(st.sampled_from([1, 2, 5]), keys)
    rows = data.draw(st.dictionaries(places, st.none() | st.binary(max_size=2), min_size=1, max_size=12))
    row_group = _row_group(rows, arrow)
    for group, key in data.draw(st.lists(places, max_size=3)) + list(rows) + [(3, next(iter(rows))[1])]:
        row = row_group.find(group, sortable(key))
        assert (row is not None) is ((group, key) in rows)
        if row is not None:
            found_row = row_group.row(row)
            assert (None if found_row is None else found_row.column("value")[0].as_py()) == rows[group, key]
    start, end = (data.draw(st.none() | keys) for _ in range(2))
    low, high = (None if key is None else sortable(key) for key in (start, end))
    for group in (1, 2, 3, 5):
        wanted = sorted((sortable(key), key) for g, key in rows if g == group)
        wanted = [one for one in wanted if (low is None or one[0] >= low) and (high is None or one[0] < high)]
        found = row_group.copy(row_group.between(group, low, high))
        assert found.column("key").to_pylist() == [key for _, key in wanted]


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=4), min_size=1), st.binary(max_size=5), st.integers(0, 4), st.none() | st.binary())
def test_bounds_that_were_cut_short_leave_nothing_out(
    keys: list[bytes], key: bytes, length: int, end: bytes | None
) -> None:
    """Truncated bounds exclude no present key, and missing bounds exclude nothing."""
    least, greatest = min(keys), max(keys)
    for bounds in (KeyBounds(least, greatest), KeyBounds(least[:length], greatest[:length]), None):
        for held in keys:
            assert may_hold(bounds, held)
            assert may_reach(bounds, held, None)
            assert may_reach(bounds, None, held + b"\0")
            if end is not None and held < end:
                assert may_reach(bounds, min(key, held), end)
    exact = KeyBounds(least, greatest)
    assert may_hold(exact, key) is (least <= key and (key <= greatest or key.startswith(greatest)))
    assert not may_reach(exact, None, least)
    assert may_hold(KeyBounds(-5, 7), 7)
    assert not may_hold(KeyBounds(-5, 7), 8)


def test_the_cache_keeps_its_bound() -> None:
    """The cache retains the last used row groups within its limit, and never one that is too large."""
    made = [_row_group({(1, b"k%03d" % i): bytes(100) for i in range(n)}, pa.binary()) for n in (10, 10, 10, 60)]
    cache = RowGroupCache(most_bytes=2 * made[0].size_bytes + 1)
    cache.put("a", 0, made[0])
    cache.put("a", 1, made[1])
    assert cache.get("a", 0) is made[0]
    cache.put("b", 0, made[2])
    assert (cache.get("a", 1), cache.get("a", 0), cache.get("b", 0)) == (None, made[0], made[2])
    cache.put("b", 1, made[3])
    assert cache.get("b", 1) is None
    assert (len(cache), cache.size_bytes) == (2, 2 * made[0].size_bytes)
