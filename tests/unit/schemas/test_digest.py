"""The digest of a state depends on its rows, and neither on their order nor on their pieces."""

import random

import pyarrow as pa
import pytest

from statelog.schemas.changes.changes import change_schema
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import OPAQUE, parse_value_schema

Row = tuple[int, bytes, bytes]
ROWS: list[Row] = [(i % 7, b"k%d" % i, b"v" * (i % 300)) for i in range(500)]


def digest(*tables: list[Row]) -> StateDigest:
    """Return the digest of the rows in these tables."""
    found = StateDigest()
    for rows in tables:
        groups, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
        columns = [groups, [0] * len(rows), keys, values]
        schema = change_schema(KeyType.BYTES)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        found = found.of_more(pa.Table.from_arrays(arrays, schema=schema), OPAQUE)
    return found


def test_order_and_pieces_do_not_matter() -> None:
    """A state has one digest, in whatever order and pieces its rows come."""
    source, whole = random.Random(3), digest(ROWS)
    for _ in range(20):
        shuffled = source.sample(ROWS, len(ROWS))
        cut = source.randrange(len(ROWS))
        assert digest(shuffled[:cut], [], shuffled[cut:]) == whole
    assert whole.rows == len(ROWS)
    assert str(whole) == str(digest(ROWS))
    assert digest([]) == StateDigest()


@pytest.mark.parametrize(
    "other",
    [
        ROWS[1:],
        [*ROWS, ROWS[0]],
        [*ROWS[:-1], ROWS[0]],
        [(6, *ROWS[0][1:]), *ROWS[1:]],
        [(0, b"K0", b""), *ROWS[1:]],
        [(0, b"k0", b"\0"), *ROWS[1:]],
        [(0, b"k0v", b""), *ROWS[1:]],
        [(1, ROWS[0][1], ROWS[1][2]), (0, ROWS[1][1], ROWS[0][2]), *ROWS[2:]],
    ],
    ids=["less", "twice", "another's place", "key group", "key", "value", "a byte on the other side", "swapped"],
)
def test_other_rows_have_another_digest(other: list[Row]) -> None:
    """Other rows change both halves of the digest."""
    found, whole = digest(other), digest(ROWS)
    assert found.first != whole.first
    assert found.second != whole.second


def test_deletes_count_and_other_versions_are_told() -> None:
    """A delete counts differently from a put of an empty value.

    A stored digest has its version, and digests of a version never change: a batch is compared with the commits of
    earlier versions of statelog.
    """
    rows = {"key_group": [1, 1, 2], "op": [0, 1, 1], "key": [b"a", b"b", b"c"], "value": [b"v" * 300, None, None]}
    changes = pa.RecordBatch.from_pydict(rows, schema=change_schema(KeyType.BYTES))
    found = StateDigest().of_changes(changes, OPAQUE)
    assert found == StateDigest().of_changes(changes.slice(2), OPAQUE).of_changes(changes.slice(0, 2), OPAQUE)
    put = {**rows, "op": [0, 0, 1], "value": [b"v" * 300, b"", None]}
    assert found != StateDigest().of_changes(pa.RecordBatch.from_pydict(put, schema=changes.schema), OPAQUE)
    assert found.to_text(OPAQUE) == "1.0.3.909d732884992407"


@pytest.mark.parametrize(
    "kind",
    ['"long"', '{"type": "array", "items": "long"}'],
    ids=["of plain values", "with an array"],
)
def test_typed_changes_count_by_field(kind: str) -> None:
    """Null, zero and an empty text are different, also in a nested record, and so are equal values of two fields."""
    record = '{"type": "record", "name": "r", "fields": [{"name": "x", "type": ["null", "double"]}]}'
    fields = [
        f'{{"name": "{name}", "type": {text}}}'
        for name, text in (
            ("a", '["null", "string"]'),
            ("b", '["null", "string"]'),
            ("r", record),
            ("t", '["null", "boolean"]'),
        )
    ]
    avsc = f'{{"type": "record", "name": "v", "fields": [{", ".join(fields)}, {{"name": "k", "type": {kind}}}]}}'
    schema = parse_value_schema(avsc, 1)
    base: dict[str, object] = {"a": "x", "b": "", "r": {"x": 0.0}, "t": False, "k": [1] if "array" in kind else 1}
    others = ({"b": None}, {"a": "", "b": "x"}, {"r": {"x": None}}, {"r": {"x": 0.5}}, {"t": None}, {"t": True})
    more = {"k": [1, 0] if "array" in kind else 0}
    found: set[StateDigest] = set()
    for other in ({}, *others, more):
        row = {"key_group": [1], "op": [0], "key": [5], "value": [{**base, **other}]}
        changes = pa.RecordBatch.from_pydict(row, schema=change_schema(KeyType.LONG, schema.arrow_type))
        found.add(StateDigest().of_changes(changes, schema))
        assert StateDigest().of_changes(changes, schema) in found
    assert len(found) == 2 + len(others)


def test_typed_values_count_by_field() -> None:
    """Null and empty, and the same text in another field, are different values."""
    schema = parse_value_schema(
        '{"type": "record", "name": "v", "fields": [{"name": "a", "type": ["null", "string"]},'
        ' {"name": "b", "type": ["null", "string"]}]}',
        1,
    )
    values = [{"a": "x", "b": ""}, {"a": "x", "b": None}, {"a": "", "b": "x"}, {"a": None, "b": "x"}]
    found: set[StateDigest] = set()
    for value in values:
        changes = change_schema(KeyType.LONG, schema.arrow_type)
        row = {"key_group": [1], "op": [0], "key": [5], "value": [value]}
        found.add(StateDigest().of_more(pa.table(row, schema=changes), schema))
    assert len(found) == len(values)
