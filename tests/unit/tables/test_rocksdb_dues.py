"""The index of dues in RocksDB is exact: after commits, bulk loads, kills and power losses, and next to a plain dict.

A kill is a copy of the open database's files: all that it has written is in them. A power loss is one without its
write-ahead logs.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import rocksdict

from statelog.errors import Corrupt
from statelog.recovery.rocksdb_dues import BY_DUE, BY_KEY, DUE_FAMILY, FLOOR, due_bytes
from statelog.recovery.rocksdb_target import rocksdb_options
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
from statelog.tables.state.store import FAMILY, StatePlace
from statelog.tables.state.values import ValueRule
from tests.support.told import told

GROUPS = 4
RULE = KeyRule(
    Descriptor(
        name="log",
        identity=LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l"),
        partitions=1,
        key_groups=GROUPS,
        hash_rule=HashRule.CRC32,
        key_type=KeyType.LONG,
        value_schema_id=0,
        nonce=b"nonce",
    ),
    None,
)
KEYS = [-3, -1, 0, 1, 2, 5, 1 << 40, (1 << 63) - 1]
LAST = 40
SETTINGS = TableSettings(write_buffer_bytes=1 << 20)
"""With small files, of which there are soon several."""
Row = tuple[bytes, int | None]
State = dict[int, Row]


class Home:
    """The directory of a store, which is opened, killed and opened again."""

    def __init__(self, path: Path) -> None:
        self._path, self._lives = path, 0
        self.directory = StateDirectory(path, "log", "table-0")
        self.store = self._open()

    def _open(self) -> RocksdbStore:
        return RocksdbStore(self.directory, RULE, ValueRule(OPAQUE), SETTINGS)

    def restart(self) -> None:
        """Close the store, and open it again."""
        self.store.close()
        self.store = self._open()

    def kill(self, *, loses_power: bool = False) -> None:
        """Go on with what the files hold now, or with those of them that are synced."""
        self._lives += 1
        self.store._database.cancel_all_background(True)  # pyright: ignore[reportPrivateUsage] # its files rest then
        killed, self.directory = self.directory, StateDirectory(self._path, "log", f"table-{self._lives}")
        shutil.copytree(killed.database, self.directory.database)
        with told("was not written out"):  # What is dead writes nothing.
            self.store.close()
        killed.close()
        if loses_power:
            self.directory.drop_unsynced("another boot")
        self.store = self._open()

    def close(self) -> None:
        """Close all."""
        self.store.close()
        self.directory.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Yield a directory with an empty store."""
    made = Home(tmp_path)
    yield made
    made.close()


def _rows(changes: dict[int, Row | None]) -> pa.Table:
    """Return changes as the log gives them, with the column `due` only if one has a due."""
    rows = list(changes.values())
    columns = {
        "key_group": pa.array(np.asarray(RULE.groups_of(list(changes)), np.uint16)),
        "op": pa.array([DELETE if row is None else PUT for row in rows], pa.uint8()),
        "key": pa.array(list(changes), pa.int64()),
        "value": pa.array([None if row is None else row[0] for row in rows], pa.binary()),
    }
    table = pa.table(columns)
    dues = [None if row is None else row[1] for row in rows]
    return table.append_column(DUE, pa.array(dues, DUE.type)) if any(due is not None for due in dues) else table


def _take(state: State, changes: dict[int, Row | None]) -> None:
    for key, row in changes.items():
        state.pop(key, None)
        if row is not None:
            state[key] = row


def _entries(store: RocksdbStore) -> dict[bytes, bytes]:
    """Return all entries of the family, but for the hint."""
    family = store._database.get_column_family(DUE_FAMILY)  # pyright: ignore[reportPrivateUsage] # its raw content
    found = cast("dict[bytes, bytes]", dict(family.items()))
    floor = found.pop(FLOOR, due_bytes(0))
    times = [key for key in found if key.startswith(BY_DUE)]
    assert all(key[1:9] >= floor for key in times)
    return found


def _check(store: RocksdbStore, state: State, now_ms: int) -> None:
    """Check every way to ask, and what lies in the family."""
    dues = {key: due_ms for key, (_, due_ms) in state.items() if due_ms is not None}
    assert dict(store.items(None)) == {key: value for key, (value, _) in state.items()}
    assert [store.due_ms(key) for key in KEYS] == [dues.get(key) for key in KEYS]
    assert store.earliest_due_ms == min(dues.values(), default=None)
    assert store.is_timed is bool(dues)
    due = {key for key, due_ms in dues.items() if due_ms <= now_ms}
    found = store.overdue(now_ms, LAST, lambda _: True)
    assert [due_ms for _, due_ms in found] == sorted(dues[key] for key in due)
    assert {key for key, _ in found} == due
    assert store.overdue_count(now_ms) == len(due)
    assert store.overdue(now_ms, 1, lambda key: key < 0) == [one for one in found if one[0] < 0][:1]
    shown = {key: value for key, (value, _) in state.items() if key not in due}
    assert dict(store.items(None, now_ms)) == shown
    for start, end in ((None, None), (-1, 2), (0, None), (None, 0)):
        wanted = [
            (k, v) for k, v in sorted(shown.items()) if (start is None or k >= start) and (end is None or k < end)
        ]
        assert list(store.range(start, end, now_ms=now_ms)) == wanted
        assert list(store.range(start, end, reverse=True, now_ms=now_ms)) == wanted[::-1]
    if store._dues.is_there:  # pyright: ignore[reportPrivateUsage] # as above
        raw = {RULE.raw(key): due_bytes(due_ms) for key, due_ms in dues.items()}
        wanted_entries = {BY_KEY + key: due_ms for key, due_ms in raw.items()}
        wanted_entries |= {BY_DUE + due_ms + key: b"" for key, due_ms in raw.items()}
        assert _entries(store) == wanted_entries
    else:
        assert not dues


@pytest.mark.parametrize("seed", range(6))
def test_the_index_is_that_of_a_plain_dict(home: Home, seed: int) -> None:
    """After any commits, loads, restarts and kills every way to ask agrees with a dict, and the entries are exact."""
    chance, state = random.Random(seed), State()
    for step in range(60):
        keys = chance.sample(KEYS, chance.randint(1, 4))
        dues = [None, None, 0, *range(0, LAST, 7)]
        changes: dict[int, Row | None] = {
            key: None if chance.random() < 0.3 else (b"%d" % step, chance.choice(dues)) for key in keys
        }
        place = StatePlace(Place(step + 1))
        if chance.random() < 0.6:
            values = {key: None if row is None else row[0] for key, row in changes.items()}
            home.store.apply(values, place, {key: row[1] for key, row in changes.items() if row and row[1] is not None})
        else:
            home.store.load(_rows(changes))
            home.store.move(place)
        _take(state, changes)
        what = chance.random()
        if what < 0.1:
            home.restart()
        elif what < 0.2:
            home.kill()
        _check(home.store, state, chance.randint(-1, LAST))
    assert home.store.place == StatePlace(Place(60))


def test_the_family_comes_with_the_first_due(home: Home) -> None:
    """A database without dues is as ever: no family, whatever is put, deleted and loaded, and after a restart."""
    home.store.apply({1: b"1", 2: b"2"}, StatePlace(Place(1)))
    home.store.load(_rows({1: None, 5: (b"5", None)}))
    home.store.move(StatePlace(Place(2)))
    home.restart()
    database = str(home.directory.database)
    assert sorted(rocksdict.Rdict.list_cf(database)) == ["default", FAMILY]
    home.store.apply({5: b"6"}, StatePlace(Place(3)), {5: 10})
    assert sorted(rocksdict.Rdict.list_cf(database)) == ["default", DUE_FAMILY, FAMILY]
    home.restart()
    _check(home.store, {2: (b"2", None), 5: (b"6", 10)}, 10)
    home.store.apply({5: None}, StatePlace(Place(4)))
    home.restart()
    _check(home.store, {2: (b"2", None)}, 10)


def test_a_program_that_does_not_know_the_family_is_refused(home: Home) -> None:
    """A program that opens the families that it knows gets an error, by which older versions set a database aside."""
    home.store.apply({5: b"6"}, StatePlace(Place(1)), {5: 10})
    home.store.close()
    with pytest.raises(Exception, match=r"^Invalid argument: Column families not opened: due"):
        rocksdict.Rdict(str(home.directory.database), rocksdb_options(), column_families={FAMILY: rocksdb_options()})


@pytest.mark.parametrize("dues", [{}, {1: 7}], ids=["before", "with"])
def test_killed_as_the_family_is_made(home: Home, dues: dict[int, int]) -> None:
    """A kill right after the family was made, or after the batch that needed it, leaves a state that goes on."""
    home.store.apply({1: b"1"}, StatePlace(Place(1)))
    if dues:
        home.store.apply({1: b"2"}, StatePlace(Place(2)), dues)
    else:
        home.store._database.create_column_family(DUE_FAMILY, rocksdb_options())  # pyright: ignore[reportPrivateUsage] # half of it
    home.kill()
    _check(home.store, {1: (b"2", 7) if dues else (b"1", None)}, 10)
    home.store.apply({2: b"3"}, StatePlace(Place(3)), {2: 9})
    home.kill()
    _check(home.store, {1: (b"2", 7) if dues else (b"1", None), 2: (b"3", 9)}, 8)


def test_a_power_loss_leaves_rows_and_dues_of_one_place(home: Home) -> None:
    """Files that are synced hold rows, dues and place of the same commit, whichever family filled up first."""
    state, states = State(), dict[int, State]()
    for step in range(1, 400):
        changes: dict[int, Row | None] = {KEYS[step % 7]: (b"%d" % step * 4000, step), KEYS[step % 5]: None}
        values = {key: None if row is None else row[0] for key, row in changes.items()}
        home.store.apply(values, StatePlace(Place(step)), {key: step for key, row in changes.items() if row})
        _take(state, changes)
        states[step] = dict(state)
    home.kill(loses_power=True)
    place = home.store.place.position
    assert 1 < place < 400
    _check(home.store, states[place], place)


class _Part:
    """A part of a database that is closed after `strike`."""

    def __init__(self, part: rocksdict.Rdict, strike: Callable[[], None]) -> None:
        self._part, self._strike = part, strike

    def close(self) -> None:
        """Close it."""
        self._strike()
        self._part.close()


def test_a_power_loss_while_it_is_closed(home: Home, tmp_path: Path) -> None:
    """A power loss at any moment of closing leaves rows and dues that are at its place, or ahead of it."""
    steps: dict[int, dict[int, Row | None]] = {1: {1: (b"1", 9), 2: (b"1", None)}, 2: {1: (b"2", None), 2: None}}
    for step, changes in steps.items():
        home.store.load(_rows(changes))
        home.store.move(StatePlace(Place(step)))
    copies = list[StateDirectory]()

    def strike() -> None:
        copies.append(StateDirectory(tmp_path / "struck", "log", f"table-{len(copies)}"))
        shutil.copytree(home.directory.database, copies[-1].database)
        copies[-1].drop_unsynced("another boot")

    store: Any = home.store
    parts = [store._dues.release()[0], store._family, store._database]
    store._dues.release = lambda: [_Part(parts[0], strike)]
    store._family, store._database = (_Part(part, strike) for part in parts[1:])
    store.close()
    strike()
    assert len(copies) == 4
    for copy in copies:
        struck = RocksdbStore(copy, RULE, ValueRule(OPAQUE), SETTINGS)
        try:
            place = struck.place.position
        except Corrupt:  # Nothing was written out.
            place = 0
        for step in range(place + 1, 3):
            struck.load(_rows(steps[step]))
            struck.move(StatePlace(Place(step)))
        _check(struck, {1: (b"2", None)}, LAST)
        struck.close()
        copy.close()
