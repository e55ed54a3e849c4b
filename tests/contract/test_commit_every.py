"""`Table.commit_every`, on both backends, on the in-memory twins and on a real broker alike."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from statelog.environment import Environment
from statelog.errors import ConfigError, InvalidChange, Misuse, NotCommitted
from statelog.producer import Writer
from statelog.producer.guard import Life
from statelog.tables import Table, TableSettings
from tests.support.rigs.table import TableRig, content

TEXT = '{"type": "record", "name": "V", "fields": [{"name": "text", "type": "string"}]}'


def test_commit_every(tables: TableRig) -> None:
    """Early calls are deferred, a late call or one with too many keys commits, and the block's end commits the rest."""
    now_s = [0.0]
    environment, settings = Environment(clock=lambda: now_s[0]), TableSettings(uncommitted_bytes_max=5 << 10)
    with tables.open(environment=environment, settings=settings) as table:
        for i in range(25):
            table[b"k%d" % (i % 3)] = b"%d" % i
            table.commit_every(1.0, {"offset": i})
            now_s[0] += 0.1
        for i in range(25, 30):
            table[b"k%d" % i] = b"x"
            table.commit_every(1e9, {"offset": i})
        with pytest.raises(Misuse, match="transaction"), table.transaction():
            table.commit_every(1e9, {"offset": 0})
        table[b"last"] = b"x"
        table.commit_every(1e9, {"offset": 30})
    with tables.open() as table:
        assert table.progress == {"offset": 30}
        assert len(table) == 3 + 5 + 1
        assert table.last_commit is not None
        assert table.last_commit.checkpoint.id == 4, "at 1.0 s, at 2.0 s, at five keys, and at the end"


def test_bytes_are_bounded(tables: TableRig) -> None:
    """A call that finds too many bytes put since the last commit commits, however few the keys are; also typed ones."""
    settings = TableSettings(uncommitted_bytes_max=10_000)
    with tables.open(settings=settings, value_schema=TEXT) as table:
        for i in range(12):
            table[b"k"] = {"text": "x" * 2_500}
            table.commit_every(1e9, {"offset": i})
        assert table.commit_async({"offset": 12}).result().checkpoint.id == 4, "behind 4, 8 and 12 puts, and at the end"
    with pytest.raises(ConfigError, match="uncommitted_bytes_max"):
        TableSettings(uncommitted_bytes_max=0)


def test_commit_every_in_a_transaction(tables: TableRig) -> None:
    """A call in a transaction is refused as soon as there are changes to commit, however early it is."""
    with tables.open() as table:
        table.commit({"offset": 0})
        table.commit_every(1e9, {"offset": 0})
        with pytest.raises(Misuse, match="transaction"), table.transaction():
            table.commit_every(1e9, {"offset": 0})
            table[b"k"] = b"v"
            table.commit_every(1e9, {"offset": 0})
        assert content(table) == {}


@pytest.mark.parametrize("named", [{"offset": 2}, {}])
@pytest.mark.parametrize("is_changed_first", [False, True])
def test_a_progress_refused_in_a_transaction_was_never_named(
    tables: TableRig, named: dict[str, int], is_changed_first: bool
) -> None:
    """A refused call in a transaction is undone, and the changes before it are not the state of its progress."""
    with pytest.raises(NotCommitted), tables.open() as table:
        table.commit({"offset": 1})
        table[b"k"] = b"1"
        with suppress(ZeroDivisionError), table.transaction():
            if is_changed_first:
                table[b"k"] = b"2"
            with pytest.raises(Misuse, match="transaction"):
                table.commit_every(0.0, named)
            raise ZeroDivisionError
        assert content(table) == {b"k": b"1"}
    with tables.open() as table:
        assert (table.progress, content(table)) == ({"offset": 1}, {})


def _put_summary(table: Table[Any, Any]) -> None:
    table[b"b"] = b"2"


def _put_and_delete(table: Table[Any, Any]) -> None:
    table.delete(b"z")
    with table.transaction():
        table[b"b"] = b"2"


def _replace(table: Table[Any, Any]) -> None:
    table[b"b"] = b"2"
    table[b"a"] = b"2"


def _undo_and_put(table: Table[Any, Any]) -> None:
    with suppress(ZeroDivisionError), table.transaction():
        table[b"c"] = b"2"
        raise ZeroDivisionError
    table[b"b"] = b"2"


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("change", "lost", "is_kept"),
    [(_put_summary, 1, True), (_put_and_delete, 2, True), (_undo_and_put, 1, True), (_replace, 2, False)],
)
def test_changes_behind_what_was_put_off(
    tables: TableRig, change: Callable[[Table[Any, Any]], None], lost: int, *, is_kept: bool, every: bool
) -> None:
    """Changes after a deferred commit are discarded, and raise; the deferred ones are committed without them.

    If a change replaced a deferred value, nothing deferred is committed.
    """
    settings = TableSettings(every_change=every)
    with pytest.raises(NotCommitted, match="`commit`") as told, tables.open(settings=settings) as table:
        table.commit({"offset": 1})
        table[b"a"] = b"0"
        table[b"a"] = b"1"
        table.commit_every(1e9, {"offset": 2})
        change(table)
    assert told.value.facts == {"log": tables.rig.name, "writer": "table", "changed_keys": lost}
    assert table.life is Life.CLOSED
    with tables.open() as table:
        assert (table.progress, content(table)) == (({"offset": 2}, {b"a": b"1"}) if is_kept else ({"offset": 1}, {}))


def test_changes_behind_an_early_and_a_late_call(tables: TableRig) -> None:
    """A call that commits at once is a boundary, too, whatever later changes replace."""
    with pytest.raises(NotCommitted), tables.open() as table:
        table[b"a"] = b"1"
        table.commit_every(0.0, {"offset": 1})
        table[b"a"] = b"2"
    with tables.open() as table:
        assert (table.progress, content(table)) == ({"offset": 1}, {b"a": b"1"})


def test_a_transaction_that_is_rolled_back_changes_nothing(tables: TableRig) -> None:
    """A transaction that is rolled back leaves the state of the progress that was named before it, however it ends."""
    with tables.open() as table:
        table[b"k"] = b"1"
        table.commit_every(1e9, {"offset": 1})
        with table.transaction():
            table[b"k"] = b"2"
            with table.transaction():
                table[b"l"] = b"2"
            table.rollback()
    with tables.open() as table:
        assert (table.progress, content(table)) == ({"offset": 1}, {b"k": b"1"})
        with table.transaction():
            table.rollback()
            table[b"k"] = b"3"
        with pytest.raises(Misuse, match="changed since"):
            table.commit()
        table.rollback()


def test_an_error_in_the_block_commits_nothing(tables: TableRig) -> None:
    """An error in the block commits neither deferred nor later changes; the error comes out unchanged."""
    with pytest.raises(RuntimeError, match="mine"), tables.open() as table:
        table[b"k"] = b"v"
        table.commit_every(1e9, {"offset": 1})
        raise RuntimeError("mine")
    with tables.open() as table:
        assert (table.progress, content(table)) == ({}, {})


def test_without_progress_the_end_of_the_block_commits(tables: TableRig) -> None:
    """Without progress the end of the block commits all changes, also later ones, as shelve and sqlite3 do.

    If nothing changed it commits nothing.
    """
    with tables.open() as table:
        table[b"a"] = b"1"
    with tables.open() as table:
        assert (content(table), table.progress) == ({b"a": b"1"}, {})
        table[b"b"] = b"2"
        table.commit()
        table[b"c"] = b"3"
        table.commit_every(1e9)
        del table[b"a"]
    with tables.open() as table:
        assert content(table) == {b"b": b"2", b"c": b"3"}
        last = table.last_commit
        assert last is not None
        assert last.checkpoint.id == 3
    with tables.open() as table:
        assert table.last_commit == last, "a block that changes nothing commits nothing"


def test_without_progress_an_error_in_the_block_commits_nothing(tables: TableRig) -> None:
    """Without progress an error in the block commits nothing.

    The end of a table inside of a transaction commits nothing either: its changes may still be undone.
    """
    with pytest.raises(ZeroDivisionError), tables.open() as table:
        table[b"a"] = b"1"
        raise ZeroDivisionError
    table = tables.open()
    with pytest.raises(NotCommitted), table.transaction():
        table[b"b"] = b"2"
        table.close()
    with tables.open() as table:
        assert (content(table), table.last_commit) == ({}, None)


def test_with_progress_the_end_of_the_block_discards_what_came_behind_it(tables: TableRig) -> None:
    """With progress the end of the block discards later changes with an error.

    It does so whichever incarnation named the progress, and by whichever call.
    """
    with pytest.raises(NotCommitted), tables.open() as table:
        table[b"a"] = b"1"
        table.commit({"offset": 1})
        table[b"a"] = b"2"
    with pytest.raises(NotCommitted), tables.open() as table:
        table[b"a"] = b"3"
    with tables.open() as table:
        assert (content(table), table.progress) == ({b"a": b"1"}, {"offset": 1})


def test_the_end_of_the_block_raises_what_a_commit_raises(tables: TableRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the block raises the error of its commit; the table is released, without the uncommitted changes."""
    with monkeypatch.context() as patched, pytest.raises(InvalidChange), tables.open() as table:
        table[b"a"] = b"1"
        for name in ("append_batch", "put"):
            patched.setattr(Writer, name, Mock(side_effect=InvalidChange("no")))
    assert table.life is Life.CLOSED
    with tables.open() as table:
        assert content(table) == {}
