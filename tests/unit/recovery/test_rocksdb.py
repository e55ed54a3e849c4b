"""Recovery into RocksDB: what the database tells its reader, and how failures to make one are reported."""

import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
import rocksdict

from statelog.errors import (
    AlreadyExists,
    ConfigError,
    Corrupt,
    InvalidChange,
    KeyGroupMismatch,
    NotFound,
    StorageFull,
    StoreUnavailable,
    Unavailable,
    UnknownFormat,
)
from statelog.producer.writer import Writer
from statelog.recovery import Progress, RecoverySettings, RocksdbState, read_rocksdb_state, recover
from statelog.recovery.rocksdb_state import rocksdb_error
from statelog.recovery.settings import RecoveryTuning
from statelog.schemas import Place
from tests.support.rigs.history import HistoryRig, history_rig

AVSC = """{"type": "record", "name": "V", "fields": [{"name": "n", "type": "long"},
    {"name": "s", "type": ["null", "string"], "default": null}]}"""


def _filled(**options: Any) -> HistoryRig:
    rig = history_rig(**options)
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"one") for i in range(50)], {"offset": "1"})
        rig.snapshot()
        rig.commit(writer, 2, [(b"key-%d" % i, None if i % 2 else b"two") for i in range(25)], {"offset": 2})
    return rig


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_database_says_what_it_is(tmp_path: Path) -> None:
    """The database holds log, position, commits and key groups. Key groups are ranges of its keys."""
    rig = _filled()
    assert recover(rig.log, key_groups=[1, 2, 5]).to_rocksdb(tmp_path / "db") == len(rig.state_at(rig.end(), [1, 2, 5]))
    state = read_rocksdb_state(tmp_path / "db")
    assert (state.log, state.identity, state.position) == ("rig", rig.log.descriptor.identity, rig.end())
    assert state.place == rig.log.place
    moved = json.loads(state.to_json()) | {"position": rig.end() + 1}
    assert RocksdbState.from_json(json.dumps(moved).encode()).place == Place(rig.end() + 1)
    assert (state.recovered_key_groups, state.key_groups) == ((1, 2, 5), 8)
    assert (state.value_schema_id, state.value_schema) == (0, "")
    assert (state.commits["w"].checkpoint_id, state.commits["w"].metadata) == (2, {"offset": 2})
    with rocksdict.Rdict(str(tmp_path / "db")) as database:
        found = {key for key in database.keys(from_key=b"\0\2") if isinstance(key, bytes) and key < b"\0\3"}
    assert found == {state.key(key) for key in rig.state_at(rig.end(), [2])}
    assert _names(tmp_path) == ["db"]


def test_a_database_has_filters(tmp_path: Path) -> None:
    """A filter answers reads of missing keys without reading data."""
    recover(_filled().log).to_rocksdb(tmp_path / "db")
    with rocksdict.Rdict(str(tmp_path / "db")) as database:
        told = str(database.property_value("rocksdb.aggregated-table-properties"))
    facts = dict(fact.strip().split("=", 1) for fact in told.split(";") if "=" in fact)
    assert int(facts["filter block size"]) > 0


def test_an_empty_state_is_a_database(tmp_path: Path) -> None:
    """A log without changes gives a database without keys."""
    assert recover(history_rig().log).to_rocksdb(tmp_path / "db") == 0
    assert read_rocksdb_state(tmp_path / "db").rows == 0


def test_typed_values_are_avro(tmp_path: Path) -> None:
    """Any Avro reader can read a value with the schema text in the database."""
    rig = history_rig(value_schema=AVSC, key_type="long")
    expected = {-1: {"n": 2**40, "s": None}, 0: {"n": -1, "s": "ä"}, 7: {"n": 0, "s": ""}}
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, list(expected.items()))
    recover(rig.log).to_rocksdb(tmp_path / "db")
    state = read_rocksdb_state(tmp_path / "db")
    schema = fastavro.parse_schema(json.loads(state.value_schema))
    with rocksdict.Rdict(str(tmp_path / "db")) as database:
        data = {key: database[state.key(key)] or b"" for key in expected}
    assert {key: fastavro.schemaless_reader(io.BytesIO(one), schema) for key, one in data.items()} == expected
    assert state.value_schema_id == 1


def test_keys_of_a_caller_hashed_log_need_their_group(tmp_path: Path) -> None:
    """One key in two key groups is two keys of the database. A lookup needs the group."""
    rig = history_rig(hash_rule="caller")
    with Writer(rig.log, "w") as writer:
        writer.append(0, b"a", b"zero")
        writer.append(5, b"a", b"five")
        writer.commit(checkpoint_id=1)
    recover(rig.log).to_rocksdb(tmp_path / "db")
    state = read_rocksdb_state(tmp_path / "db")
    with rocksdict.Rdict(str(tmp_path / "db")) as database:
        assert database[state.key(b"a", key_group=0)] == b"zero"
        assert database[state.key(b"a", key_group=5)] == b"five"
    with pytest.raises(KeyGroupMismatch):
        state.key(b"a")
    with pytest.raises(KeyGroupMismatch):
        state.key(b"a", key_group=8)


def test_keys_lie_in_the_key_group_of_their_prefix(tmp_path: Path) -> None:
    """The database says how many bytes of a key decide its key group. A shorter key is refused."""
    rig = history_rig(hash_rule="crc32-prefix", prefix_bytes=2)
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"ab", b"1"), (b"abc", b"2"), (b"b", b"3")])
    recover(rig.log).to_rocksdb(tmp_path / "db")
    state = read_rocksdb_state(tmp_path / "db")
    with rocksdict.Rdict(str(tmp_path / "db")) as database:
        assert [database[state.key(key)] for key in (b"ab", b"abc", b"b")] == [b"1", b"2", b"3"]
    assert state.key(b"ab")[:2] == state.key(b"abc")[:2]
    for lie in ({"prefix_bytes": None}, {"hash_rule": "crc32"}):
        with pytest.raises(Corrupt):
            RocksdbState.from_json(json.dumps(json.loads(state.to_json()) | lie).encode())


def test_a_wrong_key_has_no_place(tmp_path: Path) -> None:
    """A key of another type, or under another key group, is refused."""
    recover(_filled().log).to_rocksdb(tmp_path / "db")
    state = read_rocksdb_state(tmp_path / "db")
    own = int.from_bytes(state.key(b"a")[:2], "big")
    assert state.key(b"a", key_group=own) == state.key(b"a")
    with pytest.raises(KeyGroupMismatch):
        state.key(b"a", key_group=(own + 1) % 8)
    with pytest.raises(InvalidChange):
        state.key("a")


def test_nothing_is_replaced(tmp_path: Path) -> None:
    """A path that holds anything is refused before a byte is read. An empty directory becomes the database."""
    rig = _filled()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "empty").mkdir()
    for name in ("file", "full"):
        with pytest.raises(AlreadyExists):
            recover(rig.log).to_rocksdb(tmp_path / name)
    recover(rig.log).to_rocksdb(tmp_path / "empty")
    with pytest.raises(AlreadyExists):
        recover(rig.log).to_rocksdb(tmp_path / "empty")
    assert _names(tmp_path) == ["empty", "file", "full"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_reading_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """An error in the middle of the rows passes through, and neither a database nor a part of it remains."""
    made: list[list[str]] = []

    def fail(now: Progress) -> None:
        if now.changes_done > 20:
            made.append(_names(tmp_path))
            raise ZeroDivisionError

    settings = RecoverySettings(_tuning=RecoveryTuning(progress_interval_s=0))
    with pytest.raises(ZeroDivisionError):
        recover(_filled().log, on_progress=fail, settings=settings).to_rocksdb(tmp_path / "db")
    assert len(made[0]) == 1
    assert _names(tmp_path) == []


@pytest.mark.parametrize("target", ["to_rocksdb", "to_parquet"])
def test_what_a_kill_left_is_swept_by_the_next_of_that_name(tmp_path: Path, target: str) -> None:
    """An unfinished target next to the name is removed if its owner is gone. Targets of other names remain."""
    left = tmp_path / f".state.{'0' * 32}.partial"

    def copy(_: Progress) -> None:
        for partial in set(tmp_path.glob(".state.*.partial")) - {left}:
            if not left.exists():
                shutil.copytree(partial, left)

    settings = RecoverySettings(_tuning=RecoveryTuning(progress_interval_s=0))
    getattr(recover(_filled().log, on_progress=copy, settings=settings), target)(tmp_path / "state")
    assert _names(tmp_path) == [left.name, "state"]
    getattr(recover(_filled().log), target)(tmp_path / "other")
    assert left.exists()
    (tmp_path / "state").rename(tmp_path / "older")
    getattr(recover(_filled().log), target)(tmp_path / "state")
    assert _names(tmp_path) == ["older", "other", "state"]


def test_what_comes_in_between_stays(tmp_path: Path) -> None:
    """A directory that is filled under the name meanwhile is AlreadyExists, and is untouched."""

    def fill(_: Progress) -> None:
        (tmp_path / "db").mkdir(exist_ok=True)
        (tmp_path / "db" / "mine").touch()

    settings = RecoverySettings(_tuning=RecoveryTuning(progress_interval_s=0))
    recovery = recover(_filled().log, on_progress=fill, settings=settings)
    assert not (tmp_path / "db").exists()
    with pytest.raises(AlreadyExists):
        recovery.to_rocksdb(tmp_path / "db")
    assert (_names(tmp_path), _names(tmp_path / "db")) == (["db"], ["mine"])


def test_an_unwritable_place_is_told(tmp_path: Path) -> None:
    """A directory that cannot be made is StoreUnavailable with the path."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable) as caught:
        recover(_filled().log).to_rocksdb(tmp_path / "file" / "db")
    assert caught.value.facts["path"] == str(tmp_path / "file" / "db")


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rocksdict, both entry points name the extra before anything is read."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    for door in (lambda: recover(_filled().log).to_rocksdb(tmp_path / "db"), lambda: read_rocksdb_state(tmp_path)):
        with pytest.raises(ConfigError, match=r"statelog\[rocksdb\]"):
            door()


def test_other_databases_say_nothing(tmp_path: Path) -> None:
    """A missing database is NotFound, a foreign one Corrupt, and one of a newer statelog UnknownFormat."""
    with pytest.raises(NotFound):
        read_rocksdb_state(tmp_path)
    with rocksdict.Rdict(str(tmp_path / "other"), rocksdict.Options(raw_mode=True)) as database:
        database[b"a"] = b"b"
    with pytest.raises(Corrupt):
        read_rocksdb_state(tmp_path / "other")
    for data in (b"", b"[]", b"{}", b'{"format": 1}', b"\xff"):
        with pytest.raises(Corrupt):
            RocksdbState.from_json(data)
    with pytest.raises(UnknownFormat):
        RocksdbState.from_json(b'{"format": 2}')


@pytest.mark.parametrize(("free_bytes", "kind"), [(100 << 10, StorageFull), (1 << 30, StoreUnavailable)])
def test_a_full_disk_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, kind: type[Unavailable]
) -> None:
    """A full disk is reported as such. RocksDB may report a later write without a reason, so the disk is asked."""

    def usage(_: object) -> SimpleNamespace:
        return SimpleNamespace(free=free_bytes)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    error = rocksdb_error(Exception("IO error: Writer has previous error."), tmp_path / "not" / "made")
    assert type(error) is kind
    assert error.facts["code"] == ("ENOSPC" if kind is StorageFull else "EIO")
