"""A local directory ahead of its ledger, or built on other records, is a proof of loss: reported and retained."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statelog.errors import AnchorMismatch, BeyondEnd, DataLoss
from statelog.log import accept_data_loss, accept_ledger_loss
from statelog.log.loss import append_restarts
from statelog.schemas.ledger.place import LastRecord, Place
from statelog.schemas.ledger.records import LossRange, Restart
from statelog.tables import Loading, Table
from statelog.tables.state.store import StatePlace, place_from_json, place_to_json
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from tests.support.faults.unanswered import Unanswered
from tests.support.rigs.log import TwinRig, twin_rig
from tests.support.rigs.lost_topics import BOTH, made, move
from tests.support.rigs.table import TableRig
from tests.support.told import told

pytest.importorskip("rocksdict")

FIELDS = [{"name": "n", "type": "long"}, {"name": "m", "type": ["null", "long"], "default": None}]
NARROW, WIDER = (json.dumps({"type": "record", "name": "V", "fields": FIELDS[:count]}) for count in (1, 2))
TYPED = {"value_schema": NARROW}
pytestmark = pytest.mark.usefixtures("at_once")


@pytest.fixture
def rig() -> TwinRig:
    """Return the Kafka and the store of a log, in memory."""
    return twin_rig("log")


def _ends(rig: TwinRig) -> dict[tuple[str, int], int]:
    kafka = MemoryKafka(cluster=rig.cluster)
    topics = {"log": range(4), "log.ledger": range(1)}
    return {(name, n): kafka.offsets(name, [n])[n].end for name, numbers in topics.items() for n in numbers}


def _go_back(rig: TwinRig, ends: dict[tuple[str, int], int]) -> None:
    """Restore the brokers' backup: both topics end where they did."""
    for (name, partition), end in ends.items():
        rig.cluster.lose_tail(name, partition, end)


def _written(rig: TwinRig, tables: TableRig) -> None:
    """Acknowledge five commits, and restore the brokers' backup from behind the second."""
    ends: dict[tuple[str, int], int] = {}
    with tables.open() as table:
        for n in range(1, 6):
            table.update({b"n": b"%d" % n, b"k%d" % n: b"v"})
            table.commit({"n": n})
            if n == 2:
                ends = _ends(rig)
    _go_back(rig, ends)


def _age(rig: TwinRig, position: int) -> None:
    """Let Kafka delete the ledger's records below a position by their age, whatever holds them."""
    log = rig.cluster.log("log.ledger", 0)
    assert log.start < position
    MemoryKafka(cluster=rig.cluster).delete_records("log.ledger", {0: position})
    assert log.start == position


def _elsewhere(rig: TwinRig, commits: int) -> None:
    """Open the table without a directory, and commit."""
    with TableRig(rig, None).open() as table:
        for n in range(commits):
            table[b"other"] = b"%d" % n
            table.commit({"n": 100 + n})


def _kept_as_lost(table: Table[bytes, bytes]) -> Path:
    """Return the path of the former database, which was quarantined under a name that nothing deletes."""
    aside = table.opening.set_aside
    assert aside is not None
    assert aside.name.startswith("lost-")
    return aside


def _truncate_past(rig: TwinRig, tables: TableRig, scratch: Path, position: int, *, commits: int) -> None:
    """Let other tables commit, and rounds truncate the ledger above a position."""
    for _ in range(3):
        _elsewhere(rig, commits)
        tables.roll_up(scratch)
    with rig.open() as log:
        assert log.ledger.range().start > position


def _open_in_place_of_what_is_lost(tables: TableRig) -> None:
    """Open, and check that the directory is retained as lost, once."""
    with told("a loss was accepted since"), tables.open() as table:
        _kept_as_lost(table)
    with tables.open() as table:
        assert table.opening.set_aside is None


def _quiet(_: TwinRig) -> None:
    """Write nothing before the directory is opened."""


def _regrown(rig: TwinRig) -> None:
    _elsewhere(rig, 9)


@pytest.mark.parametrize("loading", [Loading.FIRST, Loading.BEHIND])
@pytest.mark.parametrize(("grow", "error"), [(_quiet, BeyondEnd), (_regrown, AnchorMismatch)])
def test_it_is_told_and_kept(
    rig: TwinRig, tmp_path: Path, grow: Callable[[TwinRig], None], error: type[DataLoss], loading: Loading
) -> None:
    """A proof of loss is an error at every opening, before an append, and stays unchanged.

    Once a person has moved the directory away, the table opens.
    """
    tables = TableRig(rig, tmp_path / "local", loading)
    _written(rig, tables)
    grow(rig)
    home = tmp_path / "local" / "log" / "table"
    ends = _ends(rig)
    for _ in range(2):
        with pytest.raises(error, match="move the directory away") as raised:
            tables.open()
        assert raised.value.facts["path"] == str(home / "db")
    assert _ends(rig) == ends
    assert not [*home.glob("aside-*"), *home.glob("lost-*")]
    (home / "db").rename(home / "lost")
    with tables.open() as table:
        assert table[b"n"] == b"2"
        assert b"k5" not in table


def _other_share(_: TwinRig) -> dict[str, Any]:
    return {"owned": range(4), "writer": "table"}


def _other_schema(rig: TwinRig) -> dict[str, Any]:
    with rig.open() as log:
        log.evolve_value_schema(WIDER)
    return {}


@pytest.mark.parametrize(("commits", "error"), [(0, BeyondEnd), (9, AnchorMismatch)])
@pytest.mark.parametrize(("change", "shape", "value"), [(_other_share, {}, b"1"), (_other_schema, TYPED, {"n": 1})])
def test_one_that_would_be_rebuilt_anyway(
    rig: TwinRig,
    tmp_path: Path,
    change: Callable[[TwinRig], dict[str, Any]],
    shape: dict[str, Any],
    value: Any,
    commits: int,
    error: type[DataLoss],
) -> None:
    """A directory is compared even if it would be rebuilt, for another share or an older value schema."""
    tables = TableRig(rig, tmp_path / "local")
    with tables.open(**shape) as table:
        ends = _ends(rig)
        table[b"n"] = value
        table.commit({"n": 1})
        table.commit({"n": 2})
    _go_back(rig, ends)
    options = change(rig)
    if commits:
        with TableRig(rig, None).open() as other:
            for n in range(commits):
                other.commit({"n": 100 + n})
    for _ in range(2):
        with pytest.raises(error, match="move the directory away"):
            tables.open(**options)


@pytest.mark.parametrize(("grow", "error"), [(_quiet, BeyondEnd), (_regrown, AnchorMismatch)])
def test_a_standbys(rig: TwinRig, tmp_path: Path, grow: Callable[[TwinRig], None], error: type[DataLoss]) -> None:
    """The directory of a standby is a proof as well."""
    tables = TableRig(rig, tmp_path / "local")
    _elsewhere(rig, 1)
    ends = _ends(rig)
    _elsewhere(rig, 4)
    with tables.standby() as standby:
        assert standby.progress == {"n": 103}
    _go_back(rig, ends)
    grow(rig)
    for _ in range(2):
        with pytest.raises(error, match="move the directory away"):
            tables.standby()
    assert (tmp_path / "standby" / "log" / "table" / "db").is_dir()


def test_truncated_right_up_to_its_place(rig: TwinRig, tmp_path: Path) -> None:
    """After a truncation right up to the directory's position, the snapshot there knows the record below."""
    tables = TableRig(rig, tmp_path / "local")
    _written(rig, tables)
    place = 7
    with TableRig(rig, None).open() as table:
        for n in range(place - table.position):
            table[b"other"] = b"%d" % n
            table.commit({"n": 100 + n})
        for n in (1, 2):
            tables.roll_up(tmp_path)
            table[b"other"] = b"behind %d" % n
            table.commit({"n": 200 + n})
    with rig.open() as log:
        assert log.ledger.range().start == place
    with pytest.raises(AnchorMismatch, match="another record"):
        tables.open()


def test_a_last_commit_that_was_settled(tmp_path: Path) -> None:
    """A directory whose last commit was resolved by an Open knows the record below its position, too."""
    faults = Unanswered()
    rig = twin_rig("log", cluster=MemoryCluster(faults=faults))
    tables = TableRig(rig, tmp_path / "local")
    with tables.open() as table:
        table[b"n"] = b"1"
        table.commit({"n": 1})
        ends = _ends(rig)
        faults.is_next = True
        table[b"n"] = b"2"
        table.commit({"n": 2})
        assert not faults.is_next
    _go_back(rig, ends)
    _elsewhere(rig, 4)
    with pytest.raises(AnchorMismatch, match="another record"):
        tables.open()


def test_once_it_is_accepted(rig: TwinRig, tmp_path: Path) -> None:
    """An accepted proof is quarantined where nothing deletes it, however many directories are quarantined later."""
    tables = TableRig(rig, tmp_path / "local")
    _written(rig, tables)
    with rig.open() as log:
        record = Restart(digest=log.descriptor.digest, position=0, reason="a backup was put back", operator="me")
        append_restarts(log, record, log.ledger.end() + 20)
    home = tmp_path / "local" / "log" / "table"
    with told("a person has accepted"), tables.open() as table:
        assert table[b"n"] == b"2"
        kept = _kept_as_lost(table)
    for _ in range(4):
        (home / "damaged").write_text("it was", "utf-8")
        with told("found damaged"), tables.open() as table:
            assert table[b"n"] == b"2"
    assert kept.is_dir()
    assert len(list(home.glob("aside-*"))) == 2


@pytest.mark.usefixtures("busy_ledger")
def test_a_loss_that_is_accepted_while_it_is_open(rig: TwinRig, tmp_path: Path) -> None:
    """A table that was open while a loss was accepted holds lost changes, so its directory is quarantined.

    Nothing deletes it.
    """
    tables = TableRig(rig, tmp_path / "local")
    with tables.open() as table, rig.open() as log:
        table.update(dict.fromkeys(map(b"k%d".__mod__, range(50)), b"v"))
        table.commit({"n": 1})
        accept_data_loss(log, [LossRange(0, 0, 1)], reason="a disk is gone", operator="me")
        table[b"k0"] = b"x"
        table.commit({"n": 2})
    with told("a loss was accepted since"), tables.open() as table:
        assert dict(table) == rig.state()
        assert table.progress == {"n": 2}
        _kept_as_lost(table)


def test_accepted_and_truncated_past_it(rig: TwinRig, tmp_path: Path) -> None:
    """After an acceptance and a truncation past it, a directory proves nothing, but may hold lost changes.

    It is quarantined.
    """
    tables = TableRig(rig, tmp_path / "local")
    _written(rig, tables)
    with rig.open() as log:
        record = Restart(digest=log.descriptor.digest, position=0, reason="a backup was put back", operator="me")
        end = append_restarts(log, record, log.ledger.end() + 20) + 1
    _truncate_past(rig, tables, tmp_path, end, commits=1)
    _open_in_place_of_what_is_lost(tables)


def test_accepted_below_its_place_and_truncated_past_it(rig: TwinRig, tmp_path: Path) -> None:
    """A Restart below the directory's position is noticed by the Restarts that the directory knows.

    The brokers' backup is older than the newest snapshot, and that is older than the directory, which alone has the
    commits behind it.
    """
    tables = TableRig(rig, tmp_path / "local")
    with tables.open() as table:
        table.commit({"n": 1})
        ends = _ends(rig)
        table.commit({"n": 2})
        tables.roll_up(tmp_path)
        table[b"n"] = b"5"
        for n in (3, 4, 5):
            table.commit({"n": n})
        place = table.position
    _go_back(rig, ends)
    with rig.open() as log:
        assert accept_ledger_loss(log, reason="a backup was put back", operator="me") < place - 1
    _truncate_past(rig, tables, tmp_path, place, commits=2)
    _open_in_place_of_what_is_lost(tables)


@pytest.mark.parametrize(("restarted", "may_have_lost"), [(-1, False), (5, False), (6, True), (9, True)])
def test_a_place_of_an_older_version(restarted: int, may_have_lost: bool) -> None:
    """A position of an older version does not record known Restarts. One right below it, or above, counts as new."""
    noted = json.loads(place_to_json(StatePlace(Place(7, LastRecord(6, 1)), 2)))
    del noted["restarted"]
    older = place_from_json(json.dumps(noted).encode())
    assert older == StatePlace(Place(7, LastRecord(6, 1)), 2, None)
    assert older.may_have_lost(StatePlace(Place(20), 2, restarted)) is may_have_lost
    assert older.may_have_lost(StatePlace(Place(20), 3, -1))


def test_accepted_while_its_owner_went_on(rig: TwinRig, tmp_path: Path) -> None:
    """Commits of an owner that the lost part of the ledger had fenced are quarantined after an acceptance.

    A snapshot knows the fencing Open. The record below the directory's position is there, above the snapshot's
    position.
    """
    tables = TableRig(rig, tmp_path / "local")
    with tables.open() as table:
        table[b"n"] = b"1"
        table.commit({"n": 1})
        end = _ends(rig)["log.ledger", 0]
        _elsewhere(rig, 0)
        tables.roll_up(tmp_path)
        rig.cluster.lose_tail("log.ledger", 0, end)
        for n in (2, 3):
            table[b"n"] = b"%d" % n
            table.commit({"n": n})
        place = table.position
    with rig.open() as log:
        assert accept_ledger_loss(log, reason="a disk is gone", operator="me") == place
    with told("a loss was accepted since"), tables.open() as table:
        assert (dict(table), table.progress) == (rig.state(), {"n": 1})
        assert dict(table) == {b"n": b"1"}
        _kept_as_lost(table)


def test_of_topics_that_are_gone(tmp_path: Path) -> None:
    """A directory of topics that release 0.1 replaced is retained: it alone has their last commits."""
    twin = made(tmp_path)
    tables = TableRig(twin_rig("log", cluster=twin.cluster, disk=twin.disk), tmp_path / "local")
    shape = {"partitions": twin.partitions, "key_groups": 8}
    with tables.open(**shape) as table:
        table[b"n"] = b"1"
        table.commit({"n": 1})
    move(twin, *BOTH)
    with told("its topics were lost"), tables.open(**shape) as table:
        assert b"n" not in table
        _kept_as_lost(table)


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_standby_that_stood_still(rig: TwinRig, tmp_path: Path, is_promoted: bool, is_kept: bool) -> None:
    """A delayed standby at the ledger's beginning, with no record below, is re-created after an accepted loss."""
    tables = TableRig(rig, tmp_path / "local" if is_kept else None)
    _elsewhere(rig, 1)
    end = _ends(rig)["log.ledger", 0]
    _elsewhere(rig, 4)
    with tables.standby() as standby:
        assert standby.progress == {"n": 103}
        rig.cluster.lose_tail("log.ledger", 0, end)
        with rig.open() as log:
            accept_ledger_loss(log, reason="a disk is gone", operator="me")
        for _ in range(3):
            _elsewhere(rig, 1)
            tables.roll_up(tmp_path)
        _age(rig, standby.position)
        with told("rebuilt: a loss was accepted"):
            if is_promoted:
                followed: Any = standby.promote()
            else:
                assert standby.refresh()
                followed = standby
        assert (dict(followed), followed.progress) == (rig.state(), {"n": 100})
        kept = followed.opening.set_aside
        assert kept is None or kept.name.startswith("lost-")
        assert (kept is not None) is is_kept
        followed.close()


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_standby_that_stood_still_over_a_loss(rig: TwinRig, tmp_path: Path, is_promoted: bool) -> None:
    """A delayed standby compares its position with the snapshot where a ledger with an unaccepted loss begins.

    A store that does not answer is asked again, and nothing is presented as the newest state.
    """
    faults = list[Fault]()
    disk = MemoryDisk(lambda: 0.0)

    def away(_method: str, _path: str) -> Fault | None:
        return faults[0] if faults else None

    store = MemoryStore(disk, "log", faults=away)
    rig = replace(rig, disk=disk, store=lambda: MemoryStore(disk, "log"))
    tables = TableRig(rig, None)
    _elsewhere(rig, 1)
    ends = _ends(rig)
    _elsewhere(rig, 4)
    with tables.standby(root=store) as standby:
        assert standby.progress == {"n": 103}
        _go_back(rig, ends)
        with TableRig(rig, None).open() as table:
            for n in range(standby.position - table.position):
                table.commit({"n": 200 + n})
            for n in (1, 2):
                tables.roll_up(tmp_path)
                table.commit({"n": 300 + n})
        _age(rig, standby.position)
        if is_promoted:
            with pytest.raises(AnchorMismatch):
                standby.promote()
        else:
            faults.append(Fault.BEFORE)
            assert not standby.refresh()
            faults.clear()
            with told("the standby of log has failed"), pytest.raises(AnchorMismatch):
                standby.refresh()


def test_what_a_standbys_lease_alone_holds(rig: TwinRig, tmp_path: Path) -> None:
    """A standby's lease that alone holds a position has the record below it, so a loss is noticed there."""
    tables = TableRig(rig, None)
    _elsewhere(rig, 2)
    ends = _ends(rig)
    _elsewhere(rig, 0)
    with tables.standby() as standby:
        _go_back(rig, ends)
        for n in range(3):
            _elsewhere(rig, 1 + n)
            tables.roll_up(tmp_path)
        with rig.open() as log:
            assert log.ledger.range().start == standby.position - 1
            assert log.manifests.at(standby.position) is None
        with told("the standby of log has failed"), pytest.raises(AnchorMismatch):
            standby.refresh()
