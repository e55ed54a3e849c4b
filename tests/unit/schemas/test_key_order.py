"""Sorting agrees with Python's order, for keys that fit into one word with their key group, and for others."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.schemas.changes import key_order
from statelog.schemas.changes.key_order import is_last_row, sorted_last_rows, sorted_rows

_Keys = Sequence[Any]
"""Keys of bytes, or of numbers."""
_Place = tuple[int, Any]


def _bytes(rng: np.random.Generator, rows: int, *, alphabet: bytes, longest: int, prefix: bytes = b"") -> list[bytes]:
    return [prefix + bytes(rng.choice(list(alphabet), int(rng.integers(0, longest + 1)))) for _ in range(rows)]


def _key_groups(rng: np.random.Generator, rows: int, most: int) -> list[int]:
    return [int(one) for one in rng.integers(0, most, rows)]


_KINDS: dict[str, Callable[[np.random.Generator, int], _Keys]] = {
    "longs": lambda rng, rows: rng.integers(-(2**63), 2**63, rows).tolist(),
    "small longs": lambda rng, rows: rng.integers(-3, 4, rows).tolist(),
    "digits": lambda rng, rows: [b"user-%08d" % one for one in rng.integers(0, 50, rows)],
    "zero bytes at the end": lambda rng, rows: _bytes(rng, rows, alphabet=b"\0\1", longest=4),
    "any bytes": lambda rng, rows: _bytes(rng, rows, alphabet=bytes(range(256)), longest=9),
    "of 16 bytes": lambda rng, rows: [rng.bytes(16) for _ in range(rows)],
    "alike at first": lambda rng, rows: _bytes(rng, rows, alphabet=b"ab", longest=30, prefix=b"alike-at-first-"),
    "of 64 bytes": lambda rng, rows: _bytes(rng, rows, alphabet=b"xy", longest=64),
    "wider": lambda rng, rows: _bytes(rng, rows, alphabet=b"xy", longest=70),
    "text of UUIDs": lambda rng, rows: [str(UUID(bytes=rng.bytes(16))).encode() for _ in range(rows)],
    "addresses": lambda rng, rows: [
        b"https://www.example.com/of/%s?item=%d" % (rng.bytes(3).hex().encode() * 9, one)
        for one in rng.integers(0, 99, rows)
    ],
    "alike for longer than is looked at": lambda rng, rows: _bytes(
        rng, rows, alphabet=b"xy", longest=5, prefix=b"p" * 300
    ),
    "alike in parts": lambda rng, rows: [b"\0".join(_bytes(rng, 9, alphabet=b"ab", longest=1)) for _ in range(rows)],
    "of lengths far apart": lambda rng, rows: [b"\0" * int(one) for one in rng.choice([0, 1, 7, 8, 9, 5000], rows)],
    "empty": lambda _, rows: [b""] * rows,
    "all the same": lambda _, rows: [b"same"] * rows,
}


def _check(key_groups: Sequence[int], keys: _Keys) -> None:
    places: list[_Place] = list(zip(key_groups, keys, strict=True))
    newest = {place: row for row, place in enumerate(places)}
    columns = pa.array(key_groups, pa.uint16()), pa.array(keys, pa.int64() if isinstance(keys[0], int) else pa.binary())
    assert sorted_rows(*columns).tolist() == sorted(range(len(places)), key=lambda row: (places[row], row))
    assert sorted_last_rows(*columns).tolist() == [newest[place] for place in sorted(newest)]
    assert np.flatnonzero(is_last_row(*columns)).tolist() == sorted(newest.values())


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("most_key_groups", [1, 5, 2**16])
def test_the_order_is_that_of_the_keys(kind: str, most_key_groups: int) -> None:
    """The rows come in the order of their keys, whatever their order of arrival."""
    rng = np.random.default_rng(most_key_groups)
    for rows in (1, 2, 40, 300):
        _check(_key_groups(rng, rows, most_key_groups), _KINDS[kind](rng, rows))


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    ("name", "most"), [("_WORD_BITS", 19), ("_WORD_BITS", 27), ("_MOST_PASSES", 1), ("_MOST_PASSES", 0)]
)
def test_what_does_not_fit_is_told_apart(kind: str, name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with equal beginnings are sorted by what follows, in the end by Arrow, when hardly a byte has room."""
    monkeypatch.setattr(key_order, name, most)
    rng = np.random.default_rng(7)
    for most_key_groups in (1, 5):
        _check(_key_groups(rng, 300, most_key_groups), _KINDS[kind](rng, 300))


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("most_key_groups", [1, 5, 2**16])
def test_sorted_stretches_are_merged(kind: str, most_key_groups: int) -> None:
    """Sorted stretches that repeat each other's keys are merged, as a merge's tables are."""
    rng = np.random.default_rng(most_key_groups)
    for _ in range(5):
        drawn: list[_Place] = list(zip(_key_groups(rng, 400, most_key_groups), _KINDS[kind](rng, 400), strict=True))
        stretches = [sorted({drawn[int(row)] for row in rng.integers(0, 400, 200)}) for _ in range(3)]
        places = [place for stretch in stretches for place in stretch]
        _check([key_group for key_group, _ in places], [key for _, key in places])


@pytest.mark.parametrize("bits", [1, 47, 48, 49, 63, 64])
def test_how_many_bits_differ_changes_nothing(bits: int) -> None:
    """The number of differing bits does not matter, around the size of a word without the 16 bits of a key group."""
    rng = np.random.default_rng(bits)
    numbers: list[int] = (rng.integers(0, 2**64, 200, np.uint64) >> np.uint64(64 - bits)).tolist()
    _check(_key_groups(rng, 200, 2**16), [number - 2**63 for number in numbers])
    _check(_key_groups(rng, 200, 1), [number.to_bytes(8, "big") for number in numbers])


_PARTS = [
    b"\0",
    b"a",
    b"\xff",
    b"-" * 7,
    b"https://www.example.com/",
    b"0f8fad5b-d9cb-469f-a165-70867728950e",
    b"p" * 260,
]
_KEY = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from(_PARTS), max_size=8).map(b"".join),
    st.uuids().map(lambda one: str(one).encode()),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(_KEY, min_size=1, max_size=30), st.sampled_from([12, 16, 20, 64]), st.data())
def test_any_keys_are_sorted_as_python_sorts_them(keys: list[bytes], word_bits: int, data: st.DataObject) -> None:
    """Keys sort as in Python, whatever their kind and even if many come twice.

    The kinds are random bytes, UUIDs, addresses, common beginnings, mixed lengths and zero bytes.
    """
    drawn = data.draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(keys)), min_size=1, max_size=80))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_order, "_WORD_BITS", word_bits)
        _check([key_group for key_group, _ in drawn], [key for _, key in drawn])
