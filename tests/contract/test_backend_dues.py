"""The promises of every backend about rows with a due: dues change with their rows, and are found in order."""

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statelog.schemas.changes.changes import DELETE, PUT
from statelog.schemas.changes.due import DUE
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import LogIdentity, Place
from statelog.schemas.values.schema import OPAQUE
from statelog.tables import TableSettings
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.keys import KeyRule
from statelog.tables.state.rocksdb import RocksdbStore
from statelog.tables.state.state import Store
from statelog.tables.state.store import NOTHING, DictStore, Missing, StatePlace, table_record
from statelog.tables.state.values import ValueRule

GROUPS = 16
VALUES = ValueRule(OPAQUE)
Make = Callable[..., Store]
Rows = Mapping[bytes, tuple[bytes | None, int | None]]
"""Values and dues by key; the value None deletes."""


def _keys() -> KeyRule:
    identity = LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l")
    descriptor = Descriptor(
        name="log",
        identity=identity,
        partitions=4,
        key_groups=GROUPS,
        hash_rule=HashRule.CRC32,
        key_type=KeyType.BYTES,
        value_schema_id=0,
        nonce=b"nonce",
    )
    return KeyRule(descriptor, None)


KEYS = _keys()


@pytest.fixture(params=["dict", "rocksdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Yield each backend in turn, empty; on request without some key groups."""
    made: list[Store] = []
    homes: list[StateDirectory] = []

    def empty(missing: Missing = NOTHING) -> Store:
        if request.param == "dict":
            made.append(DictStore(KEYS, VALUES, {}, missing))
        else:
            homes.append(StateDirectory(tmp_path, "log", f"table-{len(homes)}"))
            made.append(RocksdbStore(homes[-1], KEYS, VALUES, TableSettings(), missing=missing))
        made[-1].adopt(table_record(KEYS.descriptor, OPAQUE, None), StatePlace(Place(0)))
        return made[-1]

    yield empty
    for backend in made:
        backend.close()
    for home in homes:
        home.close()


def _table(rows: Rows, *, with_dues: bool = True) -> pa.Table:
    """Return rows as the log gives them, in two chunks, with the column `due` or without it."""
    columns = {
        "key_group": pa.array(np.asarray(KEYS.groups_of(list(rows)), np.uint16)),
        "op": pa.array([DELETE if value is None else PUT for value, _ in rows.values()], pa.uint8()),
        "key": pa.array(list(rows), pa.binary()),
        "value": pa.array([value for value, _ in rows.values()], pa.binary()),
    }
    if with_dues:
        columns["due"] = pa.array([due_ms for _, due_ms in rows.values()], DUE.type)
    whole, half = pa.table(columns), len(rows) // 2
    return pa.concat_tables([whole.slice(0, half), whole.slice(half)])


def _apply(store: Store, rows: Rows, position: int) -> None:
    changes = {key: value for key, (value, _) in rows.items()}
    dues = {key: due_ms for key, (_, due_ms) in rows.items() if due_ms is not None}
    store.apply(changes, StatePlace(Place(position)), dues)


def _any(_: object) -> bool:
    return True


def test_a_store_without_dues(make: Make) -> None:
    """Without a due there is no earliest one, and nothing is overdue."""
    store = make()
    store.apply({b"a": b"1"}, StatePlace(Place(1)))
    assert (store.is_timed, store.earliest_due_ms, store.due_ms(b"a")) == (False, None, None)
    assert (store.overdue(1 << 40, 10, _any), store.overdue_count(1 << 40)) == ([], 0)
    assert dict(store.items(None, 1 << 40)) == {b"a": b"1"}


def test_a_put_moves_and_ends_a_due(make: Make) -> None:
    """A put with a due moves it, one without ends it, and so does a delete; another key's stays."""
    store = make()
    _apply(store, {b"a": (b"1", 50), b"b": (b"1", 50), b"c": (b"1", 70)}, 1)
    assert (store.is_timed, store.earliest_due_ms, store.due_ms(b"a")) == (True, 50, 50)
    _apply(store, {b"a": (b"2", 90), b"b": (b"2", None)}, 2)
    assert [store.due_ms(key) for key in (b"a", b"b", b"c", b"d")] == [90, None, 70, None]
    assert (store.earliest_due_ms, store.overdue(100, 9, _any)) == (70, [(b"c", 70), (b"a", 90)])
    _apply(store, {b"c": (None, None)}, 3)
    assert (store.earliest_due_ms, store.overdue(100, 9, _any)) == (90, [(b"a", 90)])
    _apply(store, {b"a": (b"3", None)}, 4)
    assert (store.earliest_due_ms, store.overdue(100, 9, _any)) == (None, [])
    assert dict(store.items(None)) == {b"a": b"3", b"b": b"2"}


def test_an_equal_due_again(make: Make) -> None:
    """A row that is put with the due that it had, or with one that it once had, is overdue once (quix #1129)."""
    store = make()
    for position, due_ms in enumerate((50, 50, 60, 50), 1):
        _apply(store, {b"a": (b"%d" % position, due_ms)}, position)
    assert store.overdue(60, 9, _any) == [(b"a", 50)]
    assert store.overdue_count(60) == 1
    _apply(store, {b"a": (None, None)}, 5)
    assert (store.overdue(60, 9, _any), store.overdue_count(60), store.earliest_due_ms) == ([], 0, None)


def test_overdue_rows_come_oldest_first(make: Make) -> None:
    """Rows that are due at or before a time come in the order of their dues, up to the bound, and only wanted ones."""
    store = make()
    dues = {b"k%03d" % n: n * 37 % 101 for n in range(100)}
    _apply(store, {key: (b"v", due_ms) for key, due_ms in dues.items()}, 1)
    found = store.overdue(50, 1000, _any)
    assert [due_ms for _, due_ms in found] == sorted(due_ms for due_ms in dues.values() if due_ms <= 50)
    assert dict(found) == {key: due_ms for key, due_ms in dues.items() if due_ms <= 50}
    assert store.overdue_count(50) == len(found)
    assert [due_ms for _, due_ms in store.overdue(50, 7, _any)] == [due_ms for _, due_ms in found[:7]]
    odd = store.overdue(50, 5, lambda key: dues[key] % 2 == 1)
    assert [due_ms for _, due_ms in odd] == [one for _, one in found if one % 2][:5]


def test_a_portion_of_many_rows_with_one_due(make: Make) -> None:
    """Of many rows that are due together only as many are looked at as are asked for."""
    store, asked = make(), list[bytes]()
    _apply(store, {b"k%d" % n: (b"v", 50) for n in range(500)}, 1)

    def is_wanted(key: bytes) -> bool:
        asked.append(key)
        return True

    assert len(store.overdue(50, 10, is_wanted)) == 10
    assert len(asked) <= 11
    assert len(store.overdue(50, 1000, _any)) == store.overdue_count(50) == 500


def test_a_bulk_sets_and_ends_dues(make: Make) -> None:
    """`load` takes dues from the column, and a row without one, or of a table without the column, has none."""
    store = make()
    store.load(_table({b"a": (b"1", 50), b"b": (b"1", None), b"c": (b"1", 60), b"d": (b"1", 70)}))
    store.move(StatePlace(Place(1)))
    assert [store.due_ms(key) for key in (b"a", b"b", b"c", b"d")] == [50, None, 60, 70]
    store.load(_table({b"a": (b"2", None), b"b": (b"2", 80), b"c": (None, None)}))
    store.load(_table({b"d": (b"2", None)}, with_dues=False))
    store.move(StatePlace(Place(2)))
    assert [store.due_ms(key) for key in (b"a", b"b", b"c", b"d")] == [None, 80, None, None]
    assert (store.earliest_due_ms, store.overdue(100, 9, _any)) == (80, [(b"b", 80)])


def test_scans_leave_out_what_is_due(make: Make) -> None:
    """With a time, scans leave out rows that are due then. Without one they have all of them, and so does `get`."""
    store = make()
    _apply(store, {b"a": (b"1", 50), b"b": (b"2", None), b"c": (b"3", 60)}, 1)
    whole = {b"a": b"1", b"b": b"2", b"c": b"3"}
    for now_ms, gone in ((49, b""), (50, b"a"), (59, b"a"), (60, b"ac")):
        shown = sorted((key, value) for key, value in whole.items() if key not in gone)
        assert sorted(store.items(None, now_ms)) == shown
        assert sorted(store.items(range(GROUPS), now_ms)) == shown
        assert list(store.range(None, None, now_ms=now_ms)) == shown
        assert (
            list(store.range(b"a", b"c", now_ms=now_ms, reverse=True)) == [row for row in shown if row[0] < b"c"][::-1]
        )
    assert dict(store.items(None)) == dict(store.range(None, None)) == whole
    assert (len(store), store.get(b"a")) == (3, b"1")


def test_dues_join_with_the_rows_of_a_snapshot(make: Make) -> None:
    """Rows of a missing key group bring their dues when they are filled in, and replace no local change."""
    groups = frozenset(KEYS.groups_of([b"a", b"b", b"c"]))
    store = make(Missing(1, groups))
    _apply(store, {b"a": (b"new", None), b"b": (b"new", 90), b"c": (None, None)}, 2)
    rows = _table({b"a": (b"old", 10), b"b": (b"old", 20), b"c": (b"old", 30), b"d": (b"old", 40)})
    store.fill(store.unchanged(rows), groups)
    assert store.overdue(100, 9, _any) == [(b"d", 40), (b"b", 90)]
    assert [store.due_ms(key) for key in (b"a", b"b", b"c", b"d")] == [None, 90, None, 40]


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_equal_a_plain_dict(make: Make, seed: int) -> None:
    """After any changes, by commits and in bulk, dues are those of a plain dict, whatever was asked in between."""
    chosen, store, plain = random.Random(seed), make(), dict[bytes, tuple[bytes | None, int | None]]()
    for position in range(1, 120):
        rows: dict[bytes, tuple[bytes | None, int | None]] = {}
        for _ in range(chosen.randrange(1, 12)):
            value = chosen.choice([b"v", b"w", None])
            due_ms = None if value is None or chosen.random() < 0.3 else chosen.randrange(40)
            rows[b"k%d" % chosen.randrange(30)] = value, due_ms
        if chosen.random() < 0.3:
            store.load(_table(rows))
            store.move(StatePlace(Place(position)))
        else:
            _apply(store, rows, position)
        plain.update(rows)
        now_ms = chosen.randrange(40)
        timed = {key: due_ms for key, (_, due_ms) in plain.items() if due_ms is not None}
        overdue = {key: due_ms for key, due_ms in timed.items() if due_ms <= now_ms}
        assert store.earliest_due_ms == min(timed.values(), default=None)
        found = store.overdue(now_ms, 1000, _any)
        assert (dict(found), store.overdue_count(now_ms)) == (overdue, len(found))
        assert [due_ms for _, due_ms in found] == sorted(overdue.values())
        live = {key for key, (value, _) in plain.items() if value is not None}
        assert dict(store.items(None, now_ms)).keys() == live - overdue.keys()
