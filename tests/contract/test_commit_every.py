"""`Table.commit_every`, on both backends, on the in-memory twins and on a real broker alike."""

import pytest

from statelog.environment import Environment
from statelog.errors import ConfigError, Misuse, UncommittedChanges
from statelog.tables import TableSettings
from tests.support.rigs.table import TableRig, content

TEXT = '{"type": "record", "name": "V", "fields": [{"name": "text", "type": "string"}]}'


def test_commit_every(tables: TableRig) -> None:
    """Early calls put off, one that is late or finds too many keys commits, and the end of the block does the rest."""
    now_s = [0.0]
    environment, settings = Environment(clock=lambda: now_s[0]), TableSettings(uncommitted_changes_max=5)
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
    """Is refused as soon as there is something to commit, however early it is."""
    with tables.open() as table:
        table.commit({"offset": 0})
        table.commit_every(1e9, {"offset": 0})
        with pytest.raises(Misuse, match="transaction"), table.transaction():
            table.commit_every(1e9, {"offset": 0})
            table[b"k"] = b"v"
            table.commit_every(1e9, {"offset": 0})
        assert content(table) == {}


def test_what_was_put_off_is_not_committed_with_later_changes(tables: TableRig) -> None:
    """The progress would be that of an earlier state: the changes are discarded, and that is said."""
    with pytest.warns(UncommittedChanges), tables.open() as table:
        table[b"a"] = b"1"
        table.commit_every(1e9, {"offset": 1})
        table[b"b"] = b"2"
    with tables.open() as table:
        assert (table.progress, content(table)) == ({}, {})


def test_an_error_in_the_block_commits_nothing(tables: TableRig) -> None:
    """Neither what was put off, nor what was changed; and the error comes out as it is."""
    with pytest.raises(RuntimeError, match="mine"), tables.open() as table:
        table[b"k"] = b"v"
        table.commit_every(1e9, {"offset": 1})
        raise RuntimeError("mine")
    with tables.open() as table:
        assert (table.progress, content(table)) == ({}, {})
