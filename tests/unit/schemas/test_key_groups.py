"""Key groups: the rule for one key, for a column, for partitions and for bitmaps."""

import json
import random
import zlib
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.errors import ConfigError, InvalidChange, KeyGroupMismatch
from statelog.schemas.arrays import binary_column
from statelog.schemas.key_groups import (
    MAX_KEY_GROUPS,
    KeyType,
    bitmaps_overlap,
    check_counts,
    crc32_column,
    key_bytes,
    key_group_of,
    key_groups_of,
    key_groups_of_partition,
    merge_bitmaps,
    partition_of,
    partition_starts,
    ranges_text,
    read_ranges,
    spark_expression,
    to_bitmap,
)

Key = bytes | str | int


def vectors(kind: str = "vectors") -> list[dict[str, Any]]:
    """Return the published test vectors."""
    text = resources.files("statelog.schemas").joinpath("key_group_vectors.json").read_text("utf-8")
    found: list[dict[str, Any]] = json.loads(text)[kind]
    return found


def vector_key(vector: dict[str, Any]) -> Key:
    """Return the key of a vector, in its native type."""
    text: str = vector["key"]
    natives: dict[str, Callable[[str], Key]] = {"bytes": bytes.fromhex, "string": str, "long": int}
    return natives[vector["key_type"]](text)


def crcs_one_by_one(keys: list[Key], key_type: KeyType) -> list[int]:
    """Return the expected checksums of a column, computed key by key."""
    return [zlib.crc32(key_bytes(key, key_type)) for key in keys]


@pytest.mark.parametrize("vector", vectors(), ids=lambda v: f"{v['key_type']}-{v['key'][:12]}")
def test_vectors_hold(vector: dict[str, Any]) -> None:
    """The code computes every published vector, for one key and for a column."""
    key, key_type = vector_key(vector), KeyType(vector["key_type"])
    assert key_bytes(key, key_type).hex() == vector["key_bytes"]
    column = pa.array([key], key_type.arrow_type)
    assert crc32_column(column).tolist() == [vector["crc32"]]
    for count, key_group in vector["key_groups"].items():
        assert key_group_of(key, key_type, int(count)) == key_group
        assert key_groups_of(column, int(count)).tolist() == [key_group]


@pytest.mark.parametrize("vector", vectors("prefix_vectors"), ids=lambda v: f"{v['key_type']}-{v['key']}")
def test_vectors_of_prefixes_hold(vector: dict[str, Any]) -> None:
    """The first bytes are hashed, even if they end inside of a character. A shorter key is hashed whole."""
    key, key_type, length = vector_key(vector), KeyType(vector["key_type"]), vector["prefix_bytes"]
    assert key_bytes(key, key_type)[:length].hex() == vector["hashed"]
    for count, key_group in vector["key_groups"].items():
        assert key_group_of(key, key_type, int(count), length) == key_group
        assert key_groups_of(pa.array([key], key_type.arrow_type), int(count), length).tolist() == [key_group]
        assert key_group_of(bytes.fromhex(vector["hashed"]), KeyType.BYTES, int(count)) == key_group


@given(prefix=st.binary(min_size=3, max_size=3), rests=st.lists(st.binary(max_size=20), min_size=1))
def test_all_keys_of_a_prefix_share_a_key_group(prefix: bytes, rests: list[bytes]) -> None:
    """All keys of a prefix share a key group, for one key and for a sliced column."""
    keys = [prefix + rest for rest in rests]
    groups = {key_group_of(key, KeyType.BYTES, 128, 3) for key in keys}
    assert groups == set(key_groups_of(pa.array([b"other", *keys], pa.binary()).slice(1), 128, 3).tolist())
    assert groups == {key_group_of(prefix, KeyType.BYTES, 128)}


@given(texts=st.lists(st.text(max_size=8)), length=st.integers(1, 12))
def test_a_column_of_texts_goes_by_the_prefixes_of_each(texts: list[str], length: int) -> None:
    """A column agrees with one key at a time."""
    one_by_one = [key_group_of(text, KeyType.STRING, 128, length) for text in texts]
    assert key_groups_of(pa.array(texts, pa.string()), 128, length).tolist() == one_by_one


@pytest.mark.parametrize("length", [0, 257, -1, True, "8", 1.0])
def test_lengths_of_prefixes_that_are_refused(length: Any) -> None:
    """An impossible prefix length is refused by name, and so is every length for numbers."""
    with pytest.raises(ConfigError, match="prefix_bytes"):
        key_group_of(b"a", KeyType.BYTES, 128, length)
    with pytest.raises(ConfigError, match="prefix_bytes"):
        key_groups_of(pa.array([b"a"]), 128, length)
    with pytest.raises(ConfigError, match="prefix_bytes"):
        spark_expression("k", KeyType.BYTES, 128, length)
    for ask in (
        lambda: key_group_of(1, KeyType.LONG, 8, 4),
        lambda: key_groups_of(pa.array([1]), 8, 4),
        lambda: spark_expression("k", KeyType.LONG, 8, 4),
    ):
        with pytest.raises(ConfigError, match="long"):
            ask()


@pytest.mark.parametrize("key_type", list(KeyType))
def test_a_key_type_may_be_named_by_its_text(key_type: KeyType) -> None:
    """A key type may be given as text. An unknown name or an impossible count is refused with the valid ones."""
    keys: dict[KeyType, Key] = {KeyType.BYTES: b"a", KeyType.STRING: "a", KeyType.LONG: 1}
    key = keys[key_type]
    assert key_group_of(key, key_type.value, 128) == key_group_of(key, key_type, 128)
    assert spark_expression("k", key_type.value, 8) == spark_expression("k", key_type, 8)
    swapped: Any = (128, key_type.value)
    with pytest.raises(ConfigError, match="key_type is 128") as raised:
        key_group_of(key, *swapped)
    assert raised.value.hint == "Use one of bytes, string, long"
    with pytest.raises(ConfigError, match="out of range"):
        key_group_of(key, key_type, 0)
    with pytest.raises(ConfigError, match="key_type is 'text'"):
        spark_expression("k", "text", 8)
    for count in (-8, 0, MAX_KEY_GROUPS + 1):
        with pytest.raises(ConfigError, match="out of range"):
            spark_expression("k", key_type, count)


def test_vectors_cover_every_key_type() -> None:
    """The vectors have several keys of each type."""
    assert {KeyType(v["key_type"]) for v in vectors()} == set(KeyType)


@pytest.mark.parametrize("widths", [(0, 1), (16, 17), (15, 16), (0, 40), (1, 257), (200, 400)])
def test_column_equals_zlib(widths: tuple[int, int]) -> None:
    """A column of keys of these widths has zlib's crc32 for every key, over several blocks and in slices."""
    rng = random.Random(5)
    keys: list[Key] = [rng.randbytes(rng.randrange(*widths)) for _ in range(9000)]
    column = pa.array(keys, pa.binary())
    expected = crcs_one_by_one(keys, KeyType.BYTES)
    assert crc32_column(column).tolist() == expected
    assert crc32_column(column.slice(11, 8500)).tolist() == expected[11:8511]


def test_column_of_longs_and_strings() -> None:
    """Sliced longs and strings have the crc32 of their canonical bytes."""
    longs: list[Key] = [-(1 << 63), -1, 0, 1, (1 << 63) - 1]
    assert crc32_column(pa.array(longs, pa.int64()).slice(1)).tolist() == crcs_one_by_one(longs, KeyType.LONG)[1:]
    texts: list[Key] = ["", "a", "Zürich", "日本語", "x" * 300]
    assert crc32_column(pa.array(texts, pa.string()).slice(2)).tolist() == crcs_one_by_one(texts, KeyType.STRING)[2:]


@pytest.mark.parametrize("key_type", KeyType)
def test_empty_column(key_type: KeyType) -> None:
    """A column without keys has no key groups, whether it is empty or an empty slice."""
    assert crc32_column(pa.array([], key_type.arrow_type)).tolist() == []
    one = pa.array([{"bytes": b"a", "string": "a", "long": 1}[key_type.value]], key_type.arrow_type)
    assert crc32_column(one.slice(1)).tolist() == []


def test_columns_that_are_refused() -> None:
    """Nulls and types that no log has are refused by name."""
    with pytest.raises(InvalidChange, match="null"):
        crc32_column(pa.array([b"a", None]))
    with pytest.raises(InvalidChange, match="type"):
        crc32_column(pa.array([1.5]))


@pytest.mark.parametrize(
    ("key", "key_type"),
    [
        ("a", KeyType.BYTES),
        (b"a", KeyType.STRING),
        (1, KeyType.STRING),
        (True, KeyType.LONG),
        (1 << 63, KeyType.LONG),
        (-(1 << 63) - 1, KeyType.LONG),
        ("\ud800", KeyType.STRING),
    ],
)
def test_keys_that_are_refused(key: Key, key_type: KeyType) -> None:
    """A key of the wrong type, over 64 bits or with a lone surrogate is refused."""
    with pytest.raises(InvalidChange):
        key_bytes(key, key_type)


@pytest.mark.parametrize(("partitions", "key_groups"), [(1, 1), (1, 128), (8, 128), (7, 128), (128, 128), (3, 65536)])
def test_partitions_share_out_the_key_groups(partitions: int, key_groups: int) -> None:
    """Every key group is in exactly one partition, by ranges as by starts, and no partition is empty."""
    check_counts(partitions, key_groups)
    starts = partition_starts(partitions, key_groups).tolist()
    seen: list[int] = []
    for partition in range(partitions):
        held = key_groups_of_partition(partition, partitions, key_groups)
        assert held == range(starts[partition], starts[partition + 1])
        assert held and all(partition_of(key_group, partitions, key_groups) == partition for key_group in held)
        seen.extend(held)
    assert seen == list(range(key_groups))


@pytest.mark.parametrize(("partitions", "key_groups"), [(0, 1), (2, 1), (1, 65537), (1, 0), (1, 2.5), (1, "8")])
def test_counts_that_are_refused(partitions: int, key_groups: Any) -> None:
    """No partition, more partitions than key groups, more than 65536 key groups, and fractions are refused."""
    with pytest.raises(ConfigError):
        check_counts(partitions, key_groups)


def from_bitmap(bitmap: bytes, first: int) -> set[int]:
    """Return the key groups of a bitmap, in the partition whose first key group is `first`."""
    return {first + i for i in range(8 * len(bitmap)) if bitmap[i // 8] >> i % 8 & 1}


def test_bitmaps_round_trip() -> None:
    """A bitmap holds its key groups as a set, whatever their order, lowest bit first."""
    assert to_bitmap(np.array([16, 18, 24, 16], np.uint16), 16) == b"\x05\x01"
    assert from_bitmap(b"\x05\x01", 16) == {16, 18, 24}
    assert to_bitmap(np.array([], np.uint16), 16) == b""
    assert from_bitmap(b"", 16) == set()
    for count in (1, 1_000):
        with pytest.raises(KeyGroupMismatch):
            to_bitmap(np.array([15] * count, np.uint16), 16)


def test_bitmaps_as_sets() -> None:
    """Merging is union and overlap is a non-empty intersection, also for bitmaps of different lengths."""
    rng = random.Random(3)
    for _ in range(200):
        a, b = ({rng.randrange(100, 140) for _ in range(rng.randrange(4))} for _ in range(2))
        bitmap_a, bitmap_b = (to_bitmap(np.array(sorted(s), np.uint16), 100) for s in (a, b))
        assert bitmap_a == to_bitmap(np.array(list(a) * 100, np.uint16), 100), "few and many are counted differently"
        assert from_bitmap(merge_bitmaps(bitmap_a, bitmap_b), 100) == a | b
        assert merge_bitmaps(bitmap_a, bitmap_b) == to_bitmap(np.array(sorted(a | b), np.uint16), 100)
        assert bitmaps_overlap(bitmap_a, bitmap_b) == bool(a & b)


def test_key_type_of_an_arrow_type() -> None:
    """A key type is found by its Arrow type, and an unsupported type is refused."""
    assert [KeyType.of(key_type.arrow_type) for key_type in KeyType] == list(KeyType)
    with pytest.raises(InvalidChange):
        KeyType.of(pa.int32())


def test_spark_expression_quotes_the_column() -> None:
    """A backtick in a column's name cannot end the name."""
    assert spark_expression("a`b", KeyType.STRING, 8) == "CAST(pmod(crc32(CAST(`a``b` AS BINARY)), 8) AS INT)"


def test_spark_hashes_the_same_first_bytes() -> None:
    """Spark hashes the same first bytes: it counts bytes of the binary form, from position 1."""
    found = spark_expression("k", KeyType.STRING, 8, 4)
    assert found == "CAST(pmod(crc32(substring(CAST(`k` AS BINARY), 1, 4)), 8) AS INT)"


def test_a_column_whose_offsets_end_with_a_part_of_a_number() -> None:
    """A buffer from elsewhere may exceed its offsets by any number of bytes."""
    offsets = pa.py_buffer(np.array([0, 1, 3], np.int32).tobytes() + b"\0")
    column = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abb")])
    assert binary_column(column).lengths.tolist() == [1, 2]


def test_ranges_are_read_as_they_are_written() -> None:
    """Shown ranges of numbers can be parsed again. Both ends of a dash are included, and other texts are refused."""
    for numbers in ((0,), (0, 1, 2, 3, 6), (1, 3, 5)):
        assert read_ranges(ranges_text(numbers), "it") == numbers
    assert read_ranges("70, 0-3,2:5", "it") == (0, 1, 2, 3, 4, 70)
    assert read_ranges(f"0:{MAX_KEY_GROUPS}", "it")[-1] == MAX_KEY_GROUPS - 1
    for text in ("", " , ", "x", "1:x", "-1", "4:4", "5-4", f"0:{10**12}", f"0-{MAX_KEY_GROUPS}", str(10**30)):
        with pytest.raises(ConfigError, match=r"^it (is|has)"):
            read_ranges(text, "it")
