"""A table's local directory: the reads of a restart, and when it is quarantined and rebuilt with a warning."""

import errno
import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import rocksdict

from statelog.environment import Environment
from statelog.errors import ConfigError, Corrupt, Fenced, LogInUse, StorageFull
from statelog.materializer import run_round
from statelog.tables import TableSettings
from statelog.tables.setup import TableTuning
from statelog.tables.state import directory
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.store import FAMILY, PLACE_KEY, TABLE_KEY, WRITE, StatePlace, place_from_json, place_to_json
from tests.support.rigs.log import TwinRig, settings_for, twin_rig
from tests.support.rigs.table import STATE, TableRig, content, home, kept_table
from tests.support.samples.folds import put_all
from tests.support.told import lines, told


@pytest.fixture
def rig() -> TwinRig:
    """Return the Kafka and the store of a log."""
    return twin_rig("log")


@pytest.fixture
def kept(rig: TwinRig, tmp_path: Path) -> TableRig:
    """Return a table with a directory that holds STATE."""
    return kept_table(rig, tmp_path / "local")


def test_a_home_is_its_owners_alone(kept: TableRig, tmp_path: Path) -> None:
    """A table's directory is private to its user, unless a person opens it, although RocksDB follows the umask."""
    old = os.umask(0o022)
    try:
        tables = TableRig(kept.rig, tmp_path / "deep" / "local")
        with tables.open() as table:
            assert content(table) == STATE
        assert stat.S_IMODE(home(tables).stat().st_mode) == 0o700
        home(tables).chmod(0o750)
        with tables.open() as table:
            assert content(table) == STATE
        assert stat.S_IMODE(home(tables).stat().st_mode) == 0o750
    finally:
        os.umask(old)


class Machine:
    """The machine of a table. `boots` is the number of its starts."""

    boots = 0

    @property
    def environment(self) -> Environment:
        """The environment of the present boot."""
        return Environment(boot_id=lambda: f"boot {self.boots}")


def write_elsewhere(rig: TwinRig, changes: dict[bytes, bytes | None]) -> None:
    """Commit as the same owner on another machine, without a directory."""
    with TableRig(rig, None).open() as table:
        put_all(table, changes.items())
        table.commit({"n": 2})


def edit(tables: TableRig, key: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change a record of the database."""
    options = rocksdict.Options(raw_mode=True)
    with rocksdict.Rdict(str(home(tables) / "db"), options, column_families={FAMILY: options}) as database:
        family = database.get_column_family(FAMILY)
        found = family[key]
        assert found is not None
        family[key] = change(found)
        family.close()


def test_a_restart_reads_what_was_committed_since(rig: TwinRig, kept: TableRig) -> None:
    """A restart reads the newest changes behind its position, deletes too, and nothing after its own last commit."""
    with kept.open() as table:
        assert (content(table), table.progress) == (STATE, {"n": 1})
        assert table.opening.rows_read == 0
        assert table.opening.from_position is not None
    write_elsewhere(rig, {b"k1": None, b"new": b"x", b"k2": b"y"})
    write_elsewhere(rig, {b"k2": b"z"})
    with kept.open() as table:
        changed = {**STATE, b"new": b"x", b"k2": b"z"}
        del changed[b"k1"]
        assert (content(table), table.progress) == (changed, {"n": 2})
        assert table.opening.rows_read == 3
        assert len(table) == 50
    assert not list(home(kept).glob("aside-*"))


def test_behind_a_snapshot_but_not_behind_truncation(rig: TwinRig, kept: TableRig, tmp_path: Path) -> None:
    """A directory is used while the log holds the changes behind its position, whatever snapshots exist."""
    with rig.open() as log:
        run_round(log, settings_for(tmp_path))
    write_elsewhere(rig, {b"new": b"x"})
    with kept.open() as table:
        assert content(table) == {**STATE, b"new": b"x"}
        assert table.opening.rows_read == 1


def _behind_truncation(rig: TwinRig, kept: TableRig, tmp_path: Path) -> None:
    for i in range(4):
        write_elsewhere(rig, {b"k0": b"%d" % i})
        with rig.open() as log:
            run_round(log, settings_for(tmp_path))
    write_elsewhere(rig, {b"k0": b"0"})


def _of_another_log(_: TwinRig, kept: TableRig, __: Path) -> None:
    edit(kept, TABLE_KEY, lambda data: json.dumps({**json.loads(data), "ledger_topic_id": "other"}).encode())


def _no_place(_: TwinRig, kept: TableRig, __: Path) -> None:
    edit(kept, PLACE_KEY, lambda _: b"{")


def _newer_format(_: TwinRig, kept: TableRig, __: Path) -> None:
    edit(kept, TABLE_KEY, lambda data: json.dumps({**json.loads(data), "format": 3}).encode())


def _other_losses(_: TwinRig, kept: TableRig, __: Path) -> None:
    def change(data: bytes) -> bytes:
        place = place_from_json(data)
        return place_to_json(StatePlace(place.ledger, 1))

    edit(kept, PLACE_KEY, change)


def _torn(name: str, change: Callable[[Path], object]) -> Callable[[TwinRig, TableRig, Path], None]:
    def tear(_: TwinRig, kept: TableRig, __: Path) -> None:
        found = sorted((home(kept) / "db").glob(name))
        assert found
        for path in found:
            change(path)

    return tear


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_behind_truncation, "truncated"),
        (_of_another_log, "another log"),
        (_no_place, "no record `place`"),
        (_newer_format, "format is 3"),
        (_other_losses, "a loss was accepted"),
        (_torn("CURRENT", Path.unlink), "damaged"),
        (_torn("CURRENT", lambda path: path.write_bytes(b"x")), "damaged"),
        (_torn("MANIFEST-*", _flip), "damaged"),
        (_torn("MANIFEST-*", Path.unlink), "damaged"),
        (_torn("*.sst", Path.unlink), "damaged"),
    ],
    ids=lambda one: one.strip("_") if isinstance(one, str) else "",
)
def test_what_cannot_be_used_is_set_aside(
    rig: TwinRig, kept: TableRig, tmp_path: Path, harm: Callable[..., None], said: str
) -> None:
    """An unusable directory is renamed and not deleted. A log line has the reason, and the state is the log's."""
    with kept.open() as table:
        table[b"k0"] = b"0"
        table.commit({"n": 2})
    harm(rig, kept, tmp_path)
    with told(said) as lines, kept.open() as table:
        assert (content(table), table.progress) == (STATE, {"n": 2})
        assert table.opening.set_aside is not None
        assert table.opening.set_aside.is_dir()
        assert said in table.opening.reason
        table[b"k0"] = b"again"
        table.commit(table.progress)
    assert ["set aside" in line for line in lines].count(True) == 1
    with kept.open() as table:
        assert table.opening.set_aside is None
        assert content(table) == {**STATE, b"k0": b"again"}


def test_few_are_kept(tmp_path: Path) -> None:
    """Only the newest quarantined directory and the one before are retained, also if the clock goes back."""
    place = StateDirectory(tmp_path, "log", "table")
    asides: list[Path] = []
    clock = iter([1.0, 3.0, 2.0, 0.0])
    for _ in range(4):
        place.database.mkdir()
        (place.database / "file").write_bytes(b"x")
        with told("set aside"):
            asides.append(place.set_aside("why not", Environment(wall_clock=lambda: next(clock))))
        assert asides[-1].is_dir()
    assert {path.name for path in place.path.glob("aside-*")} == {asides[1].name, asides[3].name}
    place.close()


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("is_full", [False, True])
def test_damage_that_is_found_later(kept: TableRig, monkeypatch: pytest.MonkeyPatch, *, is_full: bool) -> None:
    """A block that fails its checksum raises when it is read, and the next incarnation rebuilds the directory."""
    with kept.open() as table:
        chance = random.Random(7)
        table.update({b"large%d" % i: chance.randbytes(1000) for i in range(2000)})
        table.commit({"n": 2})
    options = rocksdict.Options(raw_mode=True)
    with rocksdict.Rdict(str(home(kept) / "db"), options, column_families={FAMILY: options}) as database:
        database.flush()
    largest = max((home(kept) / "db").glob("*.sst"), key=lambda path: path.stat().st_size)
    _flip(largest)
    with pytest.raises(Corrupt, match="damaged"), kept.open() as table, monkeypatch.context() as patched:
        if is_full:
            patched.setattr(directory, "sync", _full)
        content(table)
    with told("found damaged"), kept.open() as table:
        assert len(content(table)) == 2050
        assert "found damaged" in table.opening.reason


def test_damage_that_a_write_finds(rig: TwinRig, kept: TableRig) -> None:
    """A compaction that reads a damaged block ends the table. The next incarnation quarantines the directory."""
    chance, settings = random.Random(9), TableSettings(write_buffer_bytes=64 << 10, _tuning=TableTuning(recent_bytes=0))

    def live() -> None:
        with kept.open(settings=settings) as table:
            for _ in range(4):
                table.update({b"k%d" % chance.randrange(5_000): chance.randbytes(100) for _ in range(500)})
                table.commit({"n": 2})

    for _ in range(3):
        live()
    _flip(max((home(kept) / "db").glob("*.sst"), key=lambda path: path.stat().st_size))
    with lines() as texts:
        for _ in range(6):
            with suppress(Corrupt):
                live()
    assert any("found damaged" in text for text in texts)
    with TableRig(rig, None).open() as table:
        state = content(table)
    with kept.open() as table:
        assert content(table) == state
        assert table.opening.set_aside is None


def test_a_directory_takes_one_table(rig: TwinRig, kept: TableRig) -> None:
    """A second table on a directory is refused before it fences the first. A kill of the first frees it."""
    with kept.open() as table:
        with pytest.raises(LogInUse):
            kept.open()
        table[b"k0"] = b"x"
        table.commit(table.progress)
    with kept.open() as table:
        forgotten = iter(table.items())
        next(forgotten)
    with kept.open() as table:
        assert table[b"k0"] == b"x"


def test_a_fenced_table_leaves_its_directory_right(rig: TwinRig, kept: TableRig) -> None:
    """The uncommitted changes of a fenced table are not in its directory."""
    former = kept.open()
    former[b"k0"] = b"never"
    write_elsewhere(rig, {b"k1": b"x"})
    with pytest.raises(Fenced):
        former.commit(former.progress)
    former.close()
    with kept.open() as table:
        assert content(table) == {**STATE, b"k1": b"x"}
        assert table.opening.rows_read == 1


def test_a_new_value_schema_rebuilds(rig: TwinRig, tmp_path: Path) -> None:
    """A directory with values of an older schema is rebuilt in the newest."""
    schema = '{"type": "record", "name": "V", "fields": [{"name": "a", "type": "int"}%s]}'
    tables = TableRig(rig, tmp_path / "local")
    with tables.open(value_schema=schema % "") as table:
        table[b"k"] = {"a": 1}
        table.commit()
    with rig.open() as log:
        log.evolve_value_schema(schema % ', {"name": "b", "type": "long", "default": 7}')
    with told("value_schema_id is 1 and not 2"), tables.open() as table:
        assert content(table) == {b"k": {"a": 1, "b": 7}}
    with tables.open() as table:
        assert content(table) == {b"k": {"a": 1, "b": 7}}
    assert len(list(home(tables).glob("aside-*"))) == 1


def test_a_full_disk(rig: TwinRig, tmp_path: Path) -> None:
    """A full disk is a typed error while the state is made, and leaves nothing open. The next incarnation makes it."""
    tables = TableRig(rig, tmp_path / "local")
    write_elsewhere(rig, dict(STATE))

    def full(step: str, _: Path) -> None:
        if step == "write":
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageFull):
        tables.open(environment=Environment(disk=full))
    with tables.open() as table:
        assert content(table) == STATE


def test_options_that_contradict_each_other(rig: TwinRig, tmp_path: Path) -> None:
    """Contradicting options are refused before anything is opened."""
    with pytest.raises(ConfigError, match="directory"):
        TableRig(rig, None).open(backend="rocksdb")
    with pytest.raises(ConfigError, match="directory"):
        TableRig(rig, None).open(directory=tmp_path)
    with pytest.raises(ConfigError, match="backend"):
        TableRig(rig, None).open(backend="redis")
    with pytest.raises(ConfigError, match="cache_bytes"):
        TableSettings(cache_bytes=0)


# ---- the end of the machine


def _with_two_logs(tables: TableRig, machine: Machine, scratch: Path) -> tuple[dict[bytes, bytes], list[Path]]:
    """Commit until RocksDB has two write-ahead logs, and copy the directory to `scratch`.

    Return the state and the logs, older first.
    """
    chance = random.Random(5)
    with tables.open(
        settings=TableSettings(write_buffer_bytes=64 << 10, _tuning=TableTuning(recent_bytes=0)),
        environment=machine.environment,
    ) as table:
        model = content(table)
        for number in range(50_000):  # How long two exist depends on the machine and its disk.
            for _ in range(8):
                key = b"k%d" % chance.randrange(4_000)
                model[key] = table[key] = b"%d" % number + chance.randbytes(300)
            table.commit({"n": number})
            found = _files(home(tables) / "db")
            logs = sorted(name for name in found if name.endswith(".log"))
            if len(logs) > 1 and all(found[name] for name in logs):
                shutil.rmtree(scratch, ignore_errors=True)
                with suppress(OSError, shutil.Error):
                    shutil.copytree(home(tables), scratch, copy_function=_quick_copy)
                    if _files(home(tables) / "db") == found:  # RocksDB has changed nothing meanwhile.
                        return model, [scratch / "db" / name for name in logs]
    raise AssertionError("there never were two")


def _quick_copy(source: str, target: str) -> None:
    """Link files that never change, so that the copy is quick and little changes meanwhile."""
    (os.link if source.endswith(".sst") else shutil.copyfile)(source, target)


def _files(directory: Path) -> dict[str, int]:
    """Return the files of a directory, with their sizes."""
    with suppress(OSError):
        return {path.name: path.stat().st_size for path in directory.iterdir()}
    return {}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_power_loss_that_takes_the_older_log(kept: TableRig, tmp_path: Path, is_known: bool) -> None:
    """After a power loss, a newer write-ahead log with a hole before it is not trusted, and the files catch up.

    The same holds where the system does not distinguish boots.
    """
    machine, copy = Machine(), tmp_path / "copy"
    model, logs = _with_two_logs(kept, machine, copy)
    shutil.rmtree(home(kept))
    copy.rename(home(kept))
    machine.boots += 1
    (home(kept) / "db" / logs[0].name).unlink()
    with kept.open(environment=machine.environment if is_known else Environment(boot_id=lambda: "")) as table:
        assert content(table) == model
        assert table.opening.set_aside is None
        assert table.opening.rows_read > 0


def test_a_kill_takes_nothing(kept: TableRig, tmp_path: Path) -> None:
    """In the same boot the write-ahead log is whole, so a restart after a kill reads only newer commits."""
    machine, copy = Machine(), tmp_path / "copy"
    model, _ = _with_two_logs(kept, machine, copy)
    _put_back(copy / "db", home(kept) / "db")
    with kept.open(environment=machine.environment) as table:
        assert content(table) == model
        assert table.opening.rows_read == 0


def _put_back(copy: Path, database: Path) -> None:
    """Restore the directory itself, not a copy."""
    for path in database.iterdir():
        path.unlink()
    for path in copy.iterdir():
        path.rename(database / path.name)


def test_a_log_that_is_gone(kept: TableRig, tmp_path: Path) -> None:
    """A directory whose older write-ahead log was deleted while RocksDB needed it is quarantined."""
    machine, copy = Machine(), tmp_path / "copy"
    for _ in range(10):
        model, logs = _with_two_logs(kept, machine, copy)
        logs[0].unlink()
        _put_back(copy / "db", home(kept) / "db")
        with lines() as texts, kept.open(environment=machine.environment) as table:
            assert content(table) == model
        if any("a part of its write-ahead logs is missing" in text for text in texts):
            return
    raise AssertionError("no log counted when it was deleted")


def test_a_copy(kept: TableRig, tmp_path: Path) -> None:
    """Of a copy taken while the table ran and restored in the same boot, only the files are trusted."""
    machine, copy = Machine(), tmp_path / "copy"
    model, _ = _with_two_logs(kept, machine, copy)
    shutil.rmtree(home(kept))
    copy.rename(home(kept))
    with kept.open(environment=machine.environment) as table:
        assert content(table) == model
        assert table.opening.rows_read > 0
        assert table.opening.set_aside is None


def test_a_directory_of_before(kept: TableRig) -> None:
    """A directory whose boot note lacks the inode, and whose write batches lack numbers, is still used."""
    with kept.open() as table:
        table[b"k0"] = b"x"
        table.commit(table.progress)
    options = rocksdict.Options(raw_mode=True)
    with rocksdict.Rdict(str(home(kept) / "db"), options, column_families={FAMILY: options}) as database:
        family = database.get_column_family(FAMILY)
        numbers = [key for key in family.keys() if isinstance(key, bytes) and key.startswith(WRITE)]  # noqa: SIM118 - no dict
        assert len(numbers) == 1
        del family[numbers[0]]
        family.close()
    (home(kept) / "boot").write_text((home(kept) / "boot").read_text("utf-8").partition(" ")[0], "utf-8")
    for n in range(2):
        with kept.open() as table:
            assert content(table) == {**STATE, b"k0": b"x"}
            assert (table.opening.rows_read, table.opening.set_aside) == (0, None)
            table.commit({"n": n})


def test_another_boot_behind_a_close(kept: TableRig) -> None:
    """After a close and another boot, the files have everything: nothing is read or quarantined."""
    with kept.open(environment=Environment(boot_id=lambda: "another")) as table:
        assert content(table) == STATE
        assert (table.opening.rows_read, table.opening.set_aside) == (0, None)


def test_a_note_of_damage_goes_with_its_database(kept: TableRig) -> None:
    """A note of damage left by a quarantine that died does not quarantine the next database."""
    (home(kept) / "db").rename(home(kept) / "aside-died")
    (home(kept) / "damaged").write_text("it was", "utf-8")
    for _ in range(2):
        with kept.open() as table:
            assert content(table) == STATE
            assert table.opening.set_aside is None


def test_a_relative_directory(rig: TwinRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative directory keeps the meaning that it had when the table was opened."""
    monkeypatch.chdir(tmp_path)
    tables = TableRig(rig, Path("local"))
    with tables.open(settings=TableSettings(write_buffer_bytes=64 << 10)) as table:
        monkeypatch.chdir("/")
        for number in range(30):
            table.update({b"k%d-%d" % (number, i): bytes(500) for i in range(50)})
            table.commit({"n": number})
    assert (tmp_path / "local" / "log" / "table" / "db").is_dir()


def test_a_close_that_the_disk_refuses(kept: TableRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A close that the disk refuses is reported, and hides no other error: the log has what is missing."""
    table = kept.open()
    table[b"k0"] = b"new"
    table.commit({"n": 2})
    close = rocksdict.Rdict.close

    def refuse(database: rocksdict.Rdict) -> None:
        close(database)
        raise Exception("IO error: No space left on device")  # noqa: TRY002 - as RocksDB does

    with monkeypatch.context() as patched, told("was not written out"):
        patched.setattr(rocksdict.Rdict, "close", refuse)
        table.close()
    with kept.open() as table:
        assert content(table) == {**STATE, b"k0": b"new"}
