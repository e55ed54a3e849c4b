"""The index of dues of a recovered state, beside a plain dict: it is sorted late, and taken over as dues come."""

import random
from collections.abc import Mapping

import pytest

from statelog.tables.state import dues
from statelog.tables.state.dues import DueIndex

LAST = 60


@pytest.fixture(autouse=True)
def sorted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort small states, too."""
    monkeypatch.setattr(dues, "_LEAST_SORTED", 3)


def _check(index: DueIndex, plain: Mapping[int, int], now_ms: int, most: int, *, odd: bool) -> None:
    assert len(index) == len(plain)
    assert index.earliest_ms == min(plain.values(), default=None)
    assert index.overdue_count(now_ms) == sum(due_ms <= now_ms for due_ms in plain.values())
    wanted = {key: due_ms for key, due_ms in plain.items() if due_ms <= now_ms and not (odd and key % 2)}
    found = index.overdue(now_ms, most, lambda key: not (odd and key % 2))
    assert [due_ms for _, due_ms in found] == sorted(wanted.values())[:most]
    assert len({key for key, _ in found}) == len(found)
    assert all(wanted[key] == due_ms for key, due_ms in found)
    assert index.earliest_ms == min(plain.values(), default=None)
    assert index.overdue_count(now_ms) == sum(due_ms <= now_ms for due_ms in plain.values())


@pytest.mark.parametrize("seed", range(60))
def test_a_recovered_state_beside_a_dict(seed: int) -> None:
    """Whatever changes before and after dues come, the index says what a plain dict says."""
    chance = random.Random(seed)
    rows = chance.choice([0, 2, 5, 40])
    plain = {key: chance.randrange(LAST) for key in range(rows)}
    index, now_ms = DueIndex(dict(plain)), 0
    for _ in range(40):
        keys = [chance.randrange(50) for _ in range(chance.randrange(4))]
        given = {key: chance.randrange(LAST) for key in keys if chance.random() < 0.6}
        index.change(keys, given)
        for key in keys:
            plain.pop(key, None)
        plain.update(given)
        assert [index.get(key) for key in range(50)] == [plain.get(key) for key in range(50)]
        assert index.earliest_ms == min(plain.values(), default=None)
        if chance.random() < 0.4:
            now_ms = chance.choice([now_ms, chance.randrange(LAST), now_ms + 3])
            _check(index, plain, now_ms, chance.choice([1, 3, 100]), odd=chance.random() < 0.3)
        if chance.random() < 0.3:
            swept = [key for key, _ in index.overdue(now_ms, 5, lambda _: True)]
            index.change(swept, {})
            for key in swept:
                del plain[key]


def test_nothing_is_sorted_before_the_first_due() -> None:
    """Changes of other rows leave a recovered state unsorted, and its earliest due known."""
    index = DueIndex({key: 10 + key for key in range(10)})
    index.change([5, 6], {6: 12})
    assert index._later is None  # pyright: ignore[reportPrivateUsage] # whether it is sorted
    assert (index.earliest_ms, index.overdue(9, 5, lambda _: True), index.overdue_count(9)) == (10, [], 0)
    assert index._later is None  # pyright: ignore[reportPrivateUsage] # as above
    assert index.overdue(12, 5, lambda _: True) == [(0, 10), (1, 11), (2, 12), (6, 12)] or index.overdue(
        12, 5, lambda _: True
    ) == [(0, 10), (1, 11), (6, 12), (2, 12)]


def test_many_rows_with_one_due() -> None:
    """Of many rows that are due together no more are taken over than are asked for."""
    index = DueIndex(dict.fromkeys(range(1_000), 7))
    found = index.overdue(7, 10, lambda _: True)
    assert len(found) == 10
    assert len(index._at[7]) == 10  # pyright: ignore[reportPrivateUsage] # what was taken over
    index.change([key for key, _ in found], {})
    assert len(index.overdue(9, 2_000, lambda _: True)) == index.overdue_count(9) == 990
