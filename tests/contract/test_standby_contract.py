"""The promises of a standby, in a dict and in RocksDB; the tests that depend most on Kafka on a real broker, too."""

import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import (
    AnchorMismatch,
    ClosedError,
    ConfigError,
    Fenced,
    InvalidChange,
    KeyGroupMismatch,
    LogInUse,
    NotFound,
    TooOld,
)
from statelog.producer.guard import Life
from statelog.recovery import changes
from statelog.schemas.ledger.records import Mark, encode
from statelog.tables import Loading
from tests.support.processes.starts import in_fork
from tests.support.rigs.log import LogRig, TwinRig, twin_rig
from tests.support.rigs.table import TableRig, content
from tests.support.told import told
from tests.support.waiting import wait_for

WAIT_S = 60.0


@pytest.fixture(params=["dict", "rocksdb"])
def tables(request: pytest.FixtureRequest, rig: LogRig, tmp_path: Path) -> TableRig:
    """Return each backend in turn."""
    return TableRig(rig, tmp_path / "local" if request.param == "rocksdb" else None)


@pytest.fixture(params=["dict", "rocksdb"])
def twins(request: pytest.FixtureRequest, tmp_path: Path) -> TableRig:
    """Return each backend in turn, in memory."""
    return TableRig(twin_rig("log"), tmp_path / "local" if request.param == "rocksdb" else None)


def test_it_follows_and_is_promoted(tables: TableRig) -> None:
    """A standby shows commit after commit, never more; promoted it has all that the owner's acknowledged commits hold.

    The owner's epoch has ended then.
    """
    with tables.open() as table:
        table.update({b"a": b"1", b"b": b"2", b"c": b"3"})
        table.commit({"n": 1})
        with tables.standby() as standby:
            assert (content(standby), standby.progress) == (dict(table), {"n": 1})
            table[b"a"] = b"11"
            del table[b"b"]
            assert standby.refresh()
            assert standby[b"a"] == b"1", "uncommitted changes are not visible"
            table.commit({"n": 2})
            assert standby[b"a"] == b"1"
            assert standby.refresh()
            assert content(standby) == {b"a": b"11", b"c": b"3"}
            assert (standby.progress, standby.last_commit) == ({"n": 2}, table.last_commit)
            found = standby.get_with_age(b"a")
            assert (found.value, found.position) == (b"11", standby.position)
            assert 0 <= found.age_s <= standby.age_s
            assert standby.get_with_age(b"b").value is None
            table[b"a"] = b"12"
            table.commit_async({"n": 3}).result()
            table[b"zombie"] = b"x"
            promoted = standby.promote()
        with promoted:
            assert standby.life is Life.CLOSED
            assert (content(promoted), promoted.progress) == ({b"a": b"12", b"c": b"3"}, {"n": 3})
            assert promoted.opening.from_position == found.position
            promoted[b"b"] = b"new"
            promoted.commit({"n": 4})
            with pytest.raises(Fenced):
                table.commit({"n": 4})
            with pytest.raises(ClosedError):
                table.get(b"a")
            with pytest.raises(ClosedError, match="promoted"):
                standby.get(b"a")
    with TableRig(tables.rig, None).open() as table:
        assert (content(table), table.progress) == ({b"a": b"12", b"b": b"new", b"c": b"3"}, {"n": 4})


def test_its_thread(tables: TableRig) -> None:
    """A standby's thread follows by itself, and its age stays small; several of a table do not disturb each other."""
    with tables.open() as table, tables.standby("x", poll_s=0.01) as one, tables.standby("y", poll_s=0.02) as two:
        for n in range(5):
            table.update({b"k": b"%d" % n, b"%d" % n: b"x"})
            table.commit({"n": n})
            wait_for(lambda n=n: one.progress == two.progress == {"n": n})  # type: ignore[misc]  # a default binds it
            assert content(one) == content(two) == dict(table)
        assert one.get(b"k", max_age_s=WAIT_S) == b"4"
        first = one.age_s
        wait_for(lambda: one.age_s < first)
        with one.promote() as promoted:
            assert content(promoted) == dict(table)
            promoted.commit({"n": 5})
            wait_for(lambda: two.progress == {"n": 5})


def test_it_asks_nothing_until_a_reader_wants_to_know(twins: TableRig) -> None:
    """A standby queries nothing until a reader wants a younger state, and its age grows while nothing comes.

    The reader gets the younger state all the same.
    """
    with twins.open() as table, twins.standby(poll_s=0.02) as standby:
        table[b"k"] = b"1"
        table.commit()
        wait_for(lambda: b"k" in standby)
        time.sleep(4.0)  # After a second the read records are compared once more.
        assert standby.age_s > 2.0
        wait_for(lambda: standby.age_s < 1.0)
        time.sleep(2.5)
        assert standby.get_with_age(b"k", max_age_s=1.0).age_s <= 1.0
        end_s = time.monotonic() + 2.0
        while time.monotonic() < end_s:
            assert standby.get(b"k", max_age_s=1.0) == b"1"
            time.sleep(0.005)
        with pytest.raises(TooOld):
            standby.get(b"k", max_age_s=0)
        with pytest.raises(TooOld):
            standby.get(b"k", max_age_s=math.nan)


def test_while_it_waits_it_hears_of_a_loss(twins: TableRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting standby detects a loss that brings no records: it compares its records now and then."""
    monkeypatch.setattr(changes, "_CHECK_S", 0.3)
    with twins.open() as table:
        table[b"k"] = b"1"
        table.commit()
        with twins.standby(poll_s=0.02) as standby:
            assert isinstance(twins.rig, TwinRig)
            with told("has failed"):
                twins.rig.cluster.overwrite("log.ledger", 0, standby.position - 1, encode(Mark(bytes(32))))
                wait_for(lambda: standby.life is Life.FAILED)
            with pytest.raises(AnchorMismatch):
                standby.get(b"k")


def test_age(twins: TableRig) -> None:
    """The age counts from the last query of the ledger's end; a reader that wants a younger state gets an error."""
    now_s = [100.0]
    with twins.open() as table, twins.standby(environment=Environment(clock=lambda: now_s[0])) as standby:
        table[b"k"] = b"1"
        table.commit()
        assert standby.age_s == 0
        now_s[0] += 5
        assert standby.age_s == 5
        assert standby.get(b"k", max_age_s=5) is None
        with pytest.raises(TooOld) as told:
            standby.get_with_age(b"k", max_age_s=4.9)
        assert told.value.facts == {"age_s": 5.0, "max_age_s": 4.9, "position": standby.position}
        with pytest.raises(TooOld):  # No state is so young.
            standby.get(b"k", max_age_s=math.nan)
        assert standby.refresh()
        assert standby.get_with_age(b"k", max_age_s=0).value == b"1"


def test_reads(twins: TableRig) -> None:
    """Every read-only method of a table has the same answers and the same refusals; a scan is of one position."""
    with twins.open(key_type="string") as table:
        state = {f"{letter}{n}": b"%d" % n for letter in "abc" for n in range(3)}
        table.update(state)
        table.commit()
        with twins.standby() as standby:
            assert (len(standby), sorted(standby), sorted(standby.values())) == (
                9,
                sorted(state),
                sorted(state.values()),
            )
            assert list(standby.range("a1", "b1")) == list(table.range("a1", "b1"))
            assert list(standby.prefix("b")) == [("b0", b"0"), ("b1", b"1"), ("b2", b"2")]
            assert "a0" in standby
            assert "x" not in standby
            assert standby.get("x", b"default") == b"default"
            with pytest.raises(KeyError):
                standby["x"]
            groups = range(4)
            assert dict(standby.items(key_groups=groups)) == dict(table.items(key_groups=groups))
            with pytest.raises(KeyGroupMismatch):
                standby.items(key_groups=[99])
            with pytest.raises(InvalidChange):
                standby.get(b"a0")
            scan = iter(standby.items())
            next(scan)
            del table["a0"]
            table.commit()
            moved = threading.Thread(target=standby.refresh)
            moved.start()
            assert len(list(scan)) == 8
            moved.join(WAIT_S)
            assert "a0" not in standby


def test_shares_and_typed_values(twins: TableRig) -> None:
    """A standby of a share shows that share, and is promoted to it; values are copies, of the table's schema."""
    avsc = '{"type": "record", "name": "V", "fields": [{"name": "n", "type": "long"}]}'
    share: dict[str, Any] = {"owned": [0, 1]}
    with twins.open(value_schema=avsc, writer="low", **share) as low:
        keys = [b"%d" % n for n in range(40)]
        mine = [key for key in keys if _is_in(low, key)]
        assert 0 < len(mine) < len(keys)
        low.update({key: {"n": 1} for key in mine})
        low.commit({"low": 1})
        with (
            TableRig(twins.rig, None).open(owned=[2, 3], writer="high") as high,
            twins.standby(writer="low", **share) as standby,
        ):
            high.update({key: {"n": 2} for key in keys if key not in mine})
            high.commit({"high": 1})
            low[mine[0]] = {"n": 7}
            low.commit({"low": 2})
            standby.refresh()
            assert content(standby) == {**{key: {"n": 1} for key in mine}, mine[0]: {"n": 7}}
            assert standby.progress == {"low": 2}
            standby[mine[0]]["n"] = 8
            assert standby[mine[0]] == {"n": 7}
            with standby.promote() as promoted:
                promoted[mine[0]] = {"n": 9}
                promoted.commit({"low": 3})
                high.commit({"high": 2})
            with pytest.raises(Fenced):
                low.commit()


def _is_in(table: Any, key: bytes) -> bool:
    try:
        table.get(key)
    except KeyGroupMismatch:
        return False
    return True


def test_promote_fenced_by_another(twins: TableRig) -> None:
    """Of two standbys that are promoted one after the other the second is the owner, with the first one's commits."""
    with twins.open() as table, twins.standby("x") as one, twins.standby("y") as two:
        table[b"k"] = b"1"
        table.commit({"n": 1})
        with one.promote() as first:
            first[b"k"] = b"2"
            first.commit({"n": 2})
            with two.promote() as second:
                assert (second[b"k"], second.progress) == (b"2", {"n": 2})
                second[b"k"] = b"3"
                first[b"k"] = b"never"
                with pytest.raises(Fenced):
                    first.commit(first.progress)
                second.commit({"n": 3})
            with pytest.raises(ClosedError):
                first.get(b"k")


@pytest.mark.parametrize("how", ["commit", "commit_async", "commit_every"])
def test_a_fenced_table_serves_nothing(twins: TableRig, how: str) -> None:
    """The next commit of a fenced table raises Fenced, however it commits, and from then on no read is answered."""
    with twins.open() as table, twins.standby() as standby:
        table[b"k"] = b"1"
        table.commit({"n": 1})
        with standby.promote():
            table[b"k"] = b"2"
            with pytest.raises(Fenced):
                if how == "commit_every":
                    table.commit_every(0.0, {"n": 2})
                    deadline_s = time.monotonic() + WAIT_S
                    while time.monotonic() < deadline_s:
                        table.commit_every(0.0, {"n": 2})
                elif how == "commit_async":
                    table.commit_async({"n": 2}).result()
                else:
                    table.commit({"n": 2})
            for read in (lambda: table.get(b"k"), lambda: len(table), lambda: list(table), lambda: table[b"k"]):
                with pytest.raises(ClosedError):
                    read()


def test_refusals(twins: TableRig) -> None:
    """A missing log, no pace, a directory in use, a closed standby and a fork are typed errors."""
    with pytest.raises(NotFound, match=r"Create it with the owner's statelog\.table\(\.\.\., create=True\)"):
        twins.standby()
    twins.open().close()
    with pytest.raises(ConfigError):
        twins.standby(poll_s=0)
    standby = twins.standby()
    if twins.is_kept:
        with pytest.raises(LogInUse):
            twins.standby()

    def refused() -> None:
        for use in (lambda: standby.get(b"k"), standby.refresh, standby.promote, lambda: list(standby)):
            with pytest.raises(ClosedError):
                use()
        standby.close()

    assert in_fork(refused) == 0
    standby.close()
    standby.close()
    for use in (lambda: standby.get(b"k"), standby.refresh, standby.promote, lambda: list(standby)):
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert repr(standby).endswith("closed)")
    with pytest.warns(ResourceWarning, match="unclosed standby"):
        twins.standby("dropped")
    twins.standby("dropped").close()


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("is_rolled_up", [False, True])
def test_an_opening_counts_the_rows_that_it_reads(tmp_path: Path, *, is_kept: bool, is_rolled_up: bool) -> None:
    """An opening counts the rows that it reads: without a directory all of a snapshot and behind it.

    This holds for a table and a standby alike.
    """
    twins = TableRig(twin_rig("log"), None)
    with twins.open() as table:
        table.update({b"%d" % n: b"x" for n in range(20)})
        table.commit()
        if is_rolled_up:
            twins.roll_up(tmp_path)
        table[b"20"] = b"y"
        table.commit()
    there = replace(twins, directory=tmp_path / "local" if is_kept else None)
    with there.standby() as standby:
        assert (standby.opening.rows_read, standby.opening.from_position) == (21, None)
    with there.open() as table:
        assert (table.opening.rows_read, table.opening.from_position) == (21, None)
    behind = replace(there, loading=Loading.ON_DEMAND, directory=tmp_path / "other" if is_kept else None)
    with behind.open() as table:
        assert table.opening.rows_read == (1 if is_rolled_up else 21)


def test_its_directory_is_kept(tmp_path: Path) -> None:
    """The directory survives incarnations of a standby and its promotion to a table, which reads only later changes."""
    twins = TableRig(twin_rig("log"), tmp_path / "local")
    with twins.open() as table:
        table.update({b"%d" % n: b"x" for n in range(20)})
        table.commit()
        twins.standby().close()
        table[b"1"] = b"y"
        table.commit()
        with twins.standby() as standby:
            assert (standby.opening.rows_read, standby.opening.set_aside) == (1, None)
            standby.promote().close()
    with TableRig(twins.rig, tmp_path / "standby").open() as table:
        assert table.opening.from_position is not None
        assert table.opening.rows_read == 0
        assert len(table) == 20
