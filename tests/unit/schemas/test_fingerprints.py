"""Fingerprints of keys are equal for equal keys, whatever other keys are in the column, and differ otherwise."""

import random

import numpy as np
import pyarrow as pa
import pytest

from statelog.schemas.arrays import fingerprints


def pairs(keys: pa.Array) -> list[tuple[int, int]]:
    """Return the fingerprints, a pair for each key."""
    one, two = fingerprints(keys)
    return list(zip(one.tolist(), two.tolist(), strict=True))


def test_a_key_has_one_fingerprint_wherever_it_stands() -> None:
    """A key has one fingerprint: alone, among keys of any lengths, in a slice, and as bytes or text."""
    source = random.Random(7)
    lengths = [0, 1, 7, 8, 9, 15, 16, 17, 64, 65, 255, 256, 257, 300, 5000]
    keys = [source.randbytes(length) for length in lengths] + [bytes(length) for length in lengths[1:]]
    alone = [pairs(pa.array([key]))[0] for key in keys]
    assert len(set(alone)) == len(keys), "zeros at the end count"
    mixed = pa.array(keys * 3)
    assert pairs(mixed) == alone * 3
    assert pairs(mixed.slice(5, 20)) == (alone * 3)[5:25]
    assert pairs(pa.array(["a", "é"])) == pairs(pa.array([b"a", "é".encode()]))
    assert pairs(pa.array([], pa.binary())) == []


@pytest.mark.parametrize("form", ["{:016d}", "user-{}", "{0:04d}/{0:08x}/{0}"])
def test_keys_that_look_alike_differ_in_both_halves(form: str) -> None:
    """Many numbers as text differ in both halves of 64 bits."""
    keys = pa.array([form.format(number) for number in range(200_000)])
    for half in fingerprints(keys):
        assert len(np.unique(half)) == len(keys)


def test_longs_are_exact() -> None:
    """A long is its own fingerprint."""
    assert pairs(pa.array([-1, 0, 1 << 62])) == [((1 << 64) - 1,) * 2, (0, 0), (1 << 62,) * 2]
