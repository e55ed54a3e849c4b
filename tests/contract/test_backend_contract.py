"""The promises of every backend of a table by itself, without a log: changes in bulk equal commit after commit."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statelog.schemas.changes.changes import DELETE, PUT
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import LogIdentity, Place
from statelog.schemas.values.schema import OPAQUE, ValueSchema, parse_value_schema
from statelog.tables import TableSettings
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.keys import KeyRule
from statelog.tables.state.rocksdb import RocksdbStore
from statelog.tables.state.state import Store
from statelog.tables.state.store import DictStore, StatePlace
from statelog.tables.state.values import ValueRule

GROUPS = 16
IDENTITY = LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l")
AVSC = json.dumps(
    {
        "type": "record",
        "name": "V",
        "fields": [
            {"name": "n", "type": "long"},
            {"name": "of", "type": {"type": "map", "values": "string"}},
        ],
    }
)
TYPED = parse_value_schema(AVSC, 1)
"""Values with a map, which Arrow gives as a list of pairs."""

Make = Callable[[KeyRule, ValueRule], Store]


@pytest.fixture(params=["dict", "rocksdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Yield each backend in turn, empty."""
    made: list[Store] = []
    homes: list[StateDirectory] = []

    def empty(keys: KeyRule, values: ValueRule) -> Store:
        if request.param == "dict":
            made.append(DictStore(keys, values, {}))
        else:
            homes.append(StateDirectory(tmp_path, "log", f"table-{len(homes)}"))
            made.append(RocksdbStore(homes[-1], keys, values, TableSettings()))
        return made[-1]

    yield empty
    for backend in made:
        backend.close()
    for home in homes:
        home.close()


def _keys(
    key_type: KeyType = KeyType.BYTES,
    hash_rule: HashRule = HashRule.CRC32,
    one: int | None = None,
    prefix_bytes: int | None = None,
) -> KeyRule:
    descriptor = Descriptor(
        name="log",
        identity=IDENTITY,
        partitions=4,
        key_groups=GROUPS,
        hash_rule=hash_rule,
        key_type=key_type,
        value_schema_id=0,
        nonce=b"nonce",
        prefix_bytes=prefix_bytes,
    )
    return KeyRule(descriptor, None if one is None else frozenset([one]), one)


def _table(keys: KeyRule, values: ValueRule, changes: dict[Any, Any]) -> pa.Table:
    """Return the changes as the log gives them, in two chunks."""
    columns = {
        "key_group": pa.array(np.asarray(keys.groups_of(list(changes)), np.uint16)),
        "op": pa.array([DELETE if value is None else PUT for value in changes.values()], pa.uint8()),
        "key": pa.array([keys.plain(key) for key in changes], keys.descriptor.key_type.arrow_type),
        "value": values.column(list(changes.values())),
    }
    whole, half = pa.table(columns), len(changes) // 2
    return pa.concat_tables([whole.slice(0, half), whole.slice(half)])


@pytest.mark.parametrize(
    ("keys", "some"),
    [
        (_keys(), [b"a", b"", b"\xff\x00", b"long" * 50]),
        (_keys(KeyType.STRING), ["a", "", "ä", "\U0001f600"]),
        (_keys(KeyType.LONG), [0, -1, 1 << 62, -(1 << 63)]),
        (_keys(hash_rule=HashRule.CALLER), [(0, b"a"), (1, b"a"), (15, b""), (2, b"b")]),
        (_keys(hash_rule=HashRule.CALLER, one=3), [b"a", b"", b"b", b"c"]),
        (_keys(hash_rule=HashRule.CRC32_PREFIX, prefix_bytes=2), [b"ab", b"", b"abc", b"\xff\xff\x00"]),
        (_keys(KeyType.STRING, HashRule.CRC32_PREFIX, prefix_bytes=2), ["aä", "", "aäb", "\U0001f600"]),
    ],
    ids=["bytes", "text", "numbers", "pairs", "one-key-group", "prefixes", "prefixes-of-text"],
)
@pytest.mark.parametrize("schema", [OPAQUE, TYPED], ids=["bytes", "typed"])
def test_in_bulk_and_by_commits(make: Make, keys: KeyRule, some: list[Any], schema: ValueSchema) -> None:
    """`load` and `move` lead to the same state as `apply`, for all kinds of keys and values, and for deletes."""
    values = ValueRule(schema)

    def value(n: int) -> Any:
        return b"%d" % n if schema.is_opaque else {"n": n, "of": {"x": str(n)} if n else {}}

    first = {key: value(i) for i, key in enumerate(some)}
    second = {some[0]: None, some[1]: value(7), some[3]: None}
    third = {some[3]: value(9)}
    loaded, applied = make(keys, values), make(keys, values)
    assert len(loaded) == 0
    for i, changes in enumerate((first, second, third)):
        applied.apply(changes, StatePlace(Place(i + 1)))
        loaded.load(_table(keys, values, changes))
        if i != 1:  # Two commits may be loaded before the position moves.
            loaded.move(StatePlace(Place(i + 1)))
    expected = {some[1]: value(7), some[2]: value(2), some[3]: value(9)}
    for one in (loaded, applied):
        assert dict(one.items(None)) == expected
        assert len(one) == len(expected)
        assert list(one.range(None, None)) == sorted(expected.items())
        assert [one.get(key) for key in some] == [expected.get(key) for key in some]
    loaded.load(_table(keys, values, {}))
    loaded.load(_table(keys, values, dict.fromkeys(some)))
    loaded.move(StatePlace(Place(4)))
    assert dict(loaded.items(None)) == {}
    assert len(loaded) == 0


def test_more_rows_than_are_taken_at_a_time(make: Make) -> None:
    """A bulk of any size arrives whole."""
    keys, values = _keys(KeyType.LONG), ValueRule(OPAQUE)
    backend = make(keys, values)
    backend.load(_table(keys, values, {n: b"%d" % n for n in range(120_001)}))
    backend.load(_table(keys, values, dict.fromkeys(range(0, 120_001, 2))))
    backend.move(StatePlace(Place(1)))
    assert len(backend) == 60_000
    assert dict(backend.items(None)) == {n: b"%d" % n for n in range(1, 120_001, 2)}


_KINDS: dict[str, tuple[KeyRule, Callable[[int], Any]]] = {
    "bytes": (_keys(), lambda n: b"%d" % (n * n)),
    "wide-bytes": (_keys(), lambda n: b"%d" % n + b"wide" * 20),
    "text": (_keys(KeyType.STRING), lambda n: "ä" * (n % 3) + str(n)),
    "numbers": (_keys(KeyType.LONG), lambda n: n * n * (-1) ** n),
    "pairs": (_keys(hash_rule=HashRule.CALLER), lambda n: (n % GROUPS, b"%d" % n)),
    "one-key-group": (_keys(hash_rule=HashRule.CALLER, one=3), lambda n: b"%d" % n),
    "prefixes": (_keys(hash_rule=HashRule.CRC32_PREFIX, prefix_bytes=2), lambda n: b"%d" % n),
}


@pytest.mark.parametrize(("keys", "key"), _KINDS.values(), ids=_KINDS)
def test_large_commits(make: Make, keys: KeyRule, key: Callable[[int], Any]) -> None:
    """Many keys in bulk become the same as each by itself: every key is found where it lies."""
    first: dict[Any, bytes | None] = {key(n): b"%d" % n for n in range(5000)}
    second: dict[Any, bytes | None] = {key(n): b"new" if n % 2 else None for n in range(2000, 7000)}
    backend, expected = make(keys, ValueRule(OPAQUE)), {**first, **second}
    backend.apply(first, StatePlace(Place(1)))
    backend.apply(second, StatePlace(Place(2)))
    backend.apply({key(9000): b"small"}, StatePlace(Place(3)))
    expected = {**expected, key(9000): b"small"}
    live = {one: value for one, value in expected.items() if value is not None}
    assert dict(backend.items(None)) == live
    assert list(backend.range(None, None)) == sorted(live.items())
    backend.load(_table(keys, ValueRule(OPAQUE), {}))  # After it the backend holds nothing of its newest commits.
    assert all(backend.get(one) == value for one, value in expected.items())
