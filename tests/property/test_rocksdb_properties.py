"""Raw keys and RocksDB: sorted tables come out in the order of their bytes; a database is the state of its source."""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import rocksdict
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.producer.writer import Writer
from statelog.recovery import AtPosition, read_rocksdb_state, recover
from statelog.recovery.rocksdb_target import in_raw_order, raw_keys
from statelog.schemas.key_groups import KeyType, key_bytes
from tests.support.rigs.history import history_rig

_LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
_KEYS: dict[KeyType, st.SearchStrategy[Any]] = {
    KeyType.LONG: _LONGS,
    KeyType.BYTES: st.binary(max_size=4),
    KeyType.STRING: st.text(max_size=3),
}


def _native(row: tuple[int, Any]) -> tuple[int, Any]:
    group, key = row
    return group, key.encode() if isinstance(key, str) else key


@settings(deadline=None, max_examples=200)
@given(data=st.data(), key_type=st.sampled_from(KeyType))
def test_sorted_tables_become_raw_order(data: st.DataObject, key_type: KeyType) -> None:
    """Sorted rows, cut into tables in any way, come out whole, strictly by key group and key bytes."""
    rows = data.draw(st.sets(st.tuples(st.integers(0, 3), _KEYS[key_type]), max_size=30))
    ordered = sorted(rows, key=_native)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ordered)), max_size=5)))
    groups = pa.array([group for group, _ in ordered], pa.uint16())
    table = pa.table({"key_group": groups, "key": pa.array([key for _, key in ordered], key_type.arrow_type)})
    tables = [table.slice(start, end - start) for start, end in pairwise([0, *cuts, len(ordered)])]

    out = list(in_raw_order(tables))

    keys = [key for one in out for batch in one.to_batches() for key in raw_keys(batch).to_pylist()]
    assert keys == sorted(group.to_bytes(2, "big") + key_bytes(key, key_type) for group, key in rows)
    assert all(one.num_rows for one in out)


@settings(deadline=None, max_examples=12)
@given(data=st.data(), key_type=st.sampled_from(KeyType))
def test_a_database_is_the_state_of_its_position(data: st.DataObject, key_type: KeyType) -> None:
    """After puts and deletes over commits and snapshots a database, in SSTs of any size, is its position's state."""
    keys = data.draw(st.lists(_KEYS[key_type], min_size=1, max_size=12, unique=True))
    changes = st.lists(st.tuples(st.sampled_from(keys), st.none() | st.binary(max_size=3)), max_size=8)
    rig = history_rig(key_type=key_type)
    with Writer(rig.log, "w") as writer:
        for number in range(1, data.draw(st.integers(1, 4)) + 1):
            rig.commit(writer, number, data.draw(changes), {"offset": str(number)})
            if data.draw(st.booleans()):
                rig.snapshot()
    for position in (rig.end(), data.draw(st.sampled_from(rig.history)).position):
        expected = rig.state_at(position)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "db"
            sst_bytes = data.draw(st.sampled_from([1, 1 << 20]))
            assert recover(rig.log, at=AtPosition(position)).to_rocksdb(path, sst_bytes=sst_bytes) == len(expected)
            state = read_rocksdb_state(path)
            with rocksdict.Rdict(str(path)) as database:
                assert dict(database.items()) == {state.key(key): value for key, value in expected.items()}
            assert (state.position, state.rows) == (position, len(expected))
