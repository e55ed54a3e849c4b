"""The promises of every store on a state that is partly in a snapshot, in a dict and in RocksDB alike.

Missing, deleted and later filled keys are the ones of one whole state.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from statelog.schemas.changes.due import DUE
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import LogIdentity, Place
from statelog.schemas.values.schema import OPAQUE
from statelog.tables import TableSettings
from statelog.tables.state.base import BaseSnapshot
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.keys import KeyRule
from statelog.tables.state.rocksdb import RocksdbStore
from statelog.tables.state.snapshot import sortable
from statelog.tables.state.state import State, Store
from statelog.tables.state.store import DictStore, Missing, StatePlace, table_record
from statelog.tables.state.values import ValueRule
from tests.support.samples.runs import change_table

GROUPS = 4
SNAPSHOT_POSITION = 5
VALUES = ValueRule(OPAQUE)
NONE: dict[Any, int] = {}
_KEYS: dict[KeyType, list[Any]] = {
    KeyType.BYTES: [b"", b"a", b"ab", b"b\x00", b"\xff", b"\xff\xff", *(b"%d" % n for n in range(12))],
    KeyType.STRING: ["", "a", "ä", "\U0010ffff", *map(str, range(12))],
    KeyType.LONG: [-(1 << 63), -300, -1, 0, 1, 256, (1 << 63) - 1, *range(10, 20)],
}

Make = Callable[..., State]
"""Makes a state over a snapshot of these rows, by the rule of their keys, with the dues of some."""


class PlainSnapshot:
    """A snapshot whose rows are in memory, and the base on top of it."""

    replacements = 0

    def __init__(self, rows: dict[Any, bytes], rule: KeyRule, dues: dict[Any, int] = NONE) -> None:
        ordered = sorted(rows, key=lambda key: (rule.group(key), sortable(rule.plain(key))))
        changes = [(rule.group(key), 0, rule.plain(key), rows[key]) for key in ordered]
        self.rows = change_table(changes, rule.descriptor.key_type.arrow_type)
        self.schema = self.rows.schema
        self.has_dues = bool(dues)
        if dues:
            self.rows = self.rows.append_column(DUE, pa.array([dues.get(key) for key in ordered], DUE.type))

    def find(self, key_group: int, key: Any) -> pa.RecordBatch | None:
        """Find a key, as `RemoteSnapshot.find`."""
        found = self._chosen(lambda group, one: group == key_group and one == key)
        return found.combine_chunks().to_batches()[0] if found.num_rows else None

    def ask(self, read: "Callable[[PlainSnapshot], Any]") -> Any:
        """Ask the snapshot, as `BaseSnapshot.ask`."""
        return read(self)

    def last_few(self, key_group: int, start: Any, end: Any, *, streams: int) -> Any:
        """Return the last rows, as `RemoteSnapshot.last_few`, with room for two."""
        (found,) = self.between(key_group, start, end, streams=streams)
        keys = found.column("key").to_pylist()
        return sortable(keys[-2:][0]) if keys else None

    def between(self, key_group: int, start: Any, end: Any, *, streams: int) -> Iterator[pa.Table]:
        """Yield a range, as `RemoteSnapshot.between`."""
        yield self._chosen(
            lambda group, key: group == key_group and (start is None or key >= start) and (end is None or key < end)
        )

    def tables(self, read: Any, beat: Any = None) -> Iterator[pa.Table]:
        """Yield tables, as `RemoteSnapshot.tables` of some key groups and `BaseSnapshot.tables` of their readers."""
        if beat is None:
            yield from read(self)
            return
        whole = self._chosen(lambda group, _: group in read)
        yield from (whole.slice(start, 3) for start in range(0, whole.num_rows, 3))

    def renew(self) -> None:
        """Do nothing: there is no lease."""

    def advance(self, position: int) -> None:
        """Do nothing: there is no lease."""

    def release(self) -> None:
        """Do nothing: there is no lease."""

    def _chosen(self, is_wanted: Callable[[int, Any], bool]) -> pa.Table:
        places = zip(self.rows.column("key_group").to_pylist(), self.rows.column("key").to_pylist(), strict=True)
        return self.rows.filter(pa.array([is_wanted(group, sortable(key)) for group, key in places], pa.bool_()))


@pytest.fixture(params=["dict", "rocksdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Yield each store in turn, which lacks all of a snapshot."""
    made: list[State] = []
    homes: list[StateDirectory] = []

    def state(snapshot: dict[Any, bytes], rule: KeyRule, dues: dict[Any, int] = NONE) -> State:
        missing = Missing(SNAPSHOT_POSITION, frozenset(rule.groups))
        store: Store
        if request.param == "dict":
            store = DictStore(rule, VALUES, {}, missing)
        else:
            homes.append(StateDirectory(tmp_path, "log", f"table-{len(homes)}"))
            store = RocksdbStore(homes[-1], rule, VALUES, TableSettings(), missing=missing)
        store.adopt(table_record(rule.descriptor, OPAQUE, None), StatePlace(Place(SNAPSHOT_POSITION)))
        made.append(_based(store, snapshot, rule, dues))
        return made[-1]

    yield state
    for one in made:
        one.close()
    for home in homes:
        home.close()


def _based(store: Store, snapshot: dict[Any, bytes], rule: KeyRule, dues: dict[Any, int] = NONE) -> State:
    return State(store, rule, VALUES, cast("BaseSnapshot", PlainSnapshot(snapshot, rule, dues)))


def _rule(key_type: KeyType, hash_rule: HashRule) -> KeyRule:
    descriptor = Descriptor(
        name="log",
        identity=LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l"),
        partitions=GROUPS,
        key_groups=GROUPS,
        hash_rule=hash_rule,
        key_type=key_type,
        value_schema_id=0,
        nonce=b"nonce",
    )
    return KeyRule(descriptor, None)


def _check(state: State, expected: dict[Any, bytes], keys: list[Any], rule: KeyRule) -> None:
    """Check that every way to read shows the same state."""
    assert [state.get(key) for key in keys] == [expected.get(key) for key in keys]
    assert dict(state.items(None)) == expected
    assert len(list(state.items(None))) == len(expected) == len(state)
    for group in rule.groups:
        assert dict(state.items([group])) == {key: at for key, at in expected.items() if rule.group(key) == group}
    ordered = sorted(keys)
    for start, end in ((None, None), (ordered[2], ordered[-2]), (None, ordered[5]), (ordered[5], None)):
        within = (one for one in sorted(expected.items()) if start is None or one[0] >= start)
        wanted = [one for one in within if end is None or one[0] < end]
        assert list(state.range(start, end)) == wanted
        assert list(state.range(start, end, reverse=True)) == wanted[::-1]


def _fill(
    state: State,
    snapshot: dict[Any, bytes],
    rule: KeyRule,
    group: int,
    dues: dict[Any, int] = NONE,
    *,
    is_whole: bool,
) -> None:
    """Fill the unchanged rows of a key group; all of them, or half, after which a kill could come."""
    rows = {key: value for key, value in snapshot.items() if rule.group(key) == group}
    part = rows if is_whole else dict(list(rows.items())[::2])
    state.store.fill(state.store.unchanged(PlainSnapshot(part, rule, dues).rows), [group] if is_whole else [])


@pytest.mark.parametrize("hash_rule", [HashRule.CRC32, HashRule.CALLER])
@pytest.mark.parametrize("kind", list(KeyType))
@pytest.mark.parametrize("seed", [1, 2])
def test_a_partial_state_is_the_whole_one(make: Make, kind: KeyType, hash_rule: HashRule, seed: int) -> None:
    """A partial state reads like a dict after any puts, removals and fills in any order, by commits and in bulk."""
    rule, chosen = _rule(kind, hash_rule), random.Random(seed)
    keys = _KEYS[kind]
    if rule.is_paired:
        keys = [(n % GROUPS, key) for n, key in enumerate(keys)] + [(1, keys[0]), (2, keys[0])]
    snapshot = {key: b"old" for key in keys if chosen.random() < 0.7}
    state, expected = make(snapshot, rule), dict(snapshot)
    _check(state, expected, keys, rule)
    groups = list(rule.groups)
    chosen.shuffle(groups)
    for turn in range(2 * GROUPS):
        changed: dict[Any, bytes | None] = {
            key: None if chosen.random() < 0.5 else b"%d" % turn for key in chosen.sample(keys, 4)
        }
        place = StatePlace(Place(SNAPSHOT_POSITION + 1 + turn))
        if turn % 3:
            state.apply(changed, place)
        else:
            rows = [(rule.group(key), int(at is None), rule.plain(key), at) for key, at in changed.items()]
            state.store.load(change_table(rows, kind.arrow_type))
            state.store.move(place)
            state = _based(state.store, snapshot, rule)  # An opened state loads the missing rows before it is made.
        expected = {key: at for key, at in {**expected, **changed}.items() if at is not None}
        _check(state, expected, keys, rule)
        _fill(state, snapshot, rule, groups[turn // 2], is_whole=turn % 2 == 1)
        _check(state, expected, keys, rule)
    assert state.is_local
    assert not any(state.store.is_deleted(rule.group(key), key) for key in keys)


def test_what_is_gone_is_not_filled(make: Make) -> None:
    """A key that was removed while its key group was missing stays removed, until a later put."""
    rule = _rule(KeyType.BYTES, HashRule.CRC32)
    group = rule.group(b"a")
    state = make({b"a": b"old"}, rule)
    assert state.get(b"a") == b"old"
    state.apply({b"a": None}, StatePlace(Place(6)))
    assert state.store.is_deleted(group, b"a")
    assert (state.get(b"a"), len(state)) == (None, 0)
    _fill(state, {b"a": b"old"}, rule, group, is_whole=True)
    assert (state.get(b"a"), len(state)) == (None, 0)
    state.apply({b"a": b"new"}, StatePlace(Place(7)))
    assert (state.get(b"a"), dict(state.items(None))) == (b"new", {b"a": b"new"})


@pytest.mark.parametrize("hash_rule", [HashRule.CRC32, HashRule.CALLER])
@pytest.mark.parametrize("kind", list(KeyType))
@pytest.mark.parametrize("seed", [1, 2])
def test_dues_of_a_partial_state(make: Make, kind: KeyType, hash_rule: HashRule, seed: int) -> None:
    """What is due is hidden from an owner, and from nobody else, wherever the row is; loaded rows join the index."""
    rule, chosen = _rule(kind, hash_rule), random.Random(seed)
    keys = [(n % GROUPS, key) if rule.is_paired else key for n, key in enumerate(_KEYS[kind])]
    snapshot = {key: b"old" for key in keys if chosen.random() < 0.7}
    below = {key: chosen.randrange(20) for key in snapshot if chosen.random() < 0.7}
    state, expected, dues, now = make(snapshot, rule, below), dict(snapshot), dict(below), [0]
    groups = list(rule.groups)
    chosen.shuffle(groups)
    for turn in range(2 * GROUPS):
        changed: dict[Any, bytes | None] = {
            key: None if chosen.random() < 0.4 else b"%d" % turn for key in chosen.sample(keys, 4)
        }
        given = {key: chosen.randrange(20) for key, at in changed.items() if at is not None and chosen.random() < 0.5}
        state.apply(changed, StatePlace(Place(SNAPSHOT_POSITION + 1 + turn)), given)
        expected = {key: at for key, at in {**expected, **changed}.items() if at is not None}
        dues = {key: due for key, due in {**dues, **dict.fromkeys(changed), **given}.items() if due is not None}
        owner = _based(state.store, snapshot, rule, below)
        owner.hide_due(lambda: now[0])
        _fill(state, snapshot, rule, groups[turn // 2], below, is_whole=turn % 2 == 1)
        _check(state, expected, keys, rule)
        assert [state.due_ms(key) for key in keys] == [dues.get(key) for key in keys]
        for now[0] in (0, chosen.randrange(20), 20):
            due = {key for key, due in dues.items() if due <= now[0]}
            _check(owner, {key: at for key, at in expected.items() if key not in due}, keys, rule)
            assert owner.overdue_count(now[0]) == len(due)
            local = owner.overdue(now[0], 100, lambda _: True)
            assert [due_ms for _, due_ms in local] == sorted(dues[key] for key, _ in local)
            assert due >= {key for key, _ in local}
            assert due == {key for key, _ in local} or not state.is_local
    assert state.is_local
    assert state.earliest_due_ms == min(dues.values(), default=None)
