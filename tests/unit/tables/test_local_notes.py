"""The files beside a table's local database: its lock, and what the life before has noted, whatever is left of that."""

import errno
import fcntl
import gc
import os
from pathlib import Path

import pytest

from statelog.errors import StoreUnavailable
from tests.support.rigs.log import twin_rig
from tests.support.rigs.table import STATE, TableRig, content, home, kept_table
from tests.support.told import told


@pytest.fixture
def kept(tmp_path: Path) -> TableRig:
    """A table with a directory that holds STATE."""
    return kept_table(twin_rig("log"), tmp_path / "local")


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00"])
def test_a_note_that_a_full_or_damaged_disk_has_left(kept: TableRig, data: bytes) -> None:
    """That the database was found damaged is said by the file, whatever is in it."""
    (home(kept) / "damaged").write_bytes(data)
    with told("it was found damaged: "), kept.open() as table:
        assert content(table) == STATE
        assert table.opening.set_aside is not None


def test_a_boot_that_cannot_be_read(kept: TableRig) -> None:
    """It is another one, and the files count."""
    (home(kept) / "boot").write_bytes(b"\xff\xfe\x00")
    with kept.open() as table:
        assert content(table) == STATE
        assert table.opening.from_position is not None


def test_a_table_that_was_dropped_holds_no_lock(kept: TableRig) -> None:
    """As a file that was dropped is closed: the same process may open it again."""
    with pytest.warns(ResourceWarning, match="unclosed"):
        kept.open().put(b"lost", b"1")
        gc.collect()
    with kept.open() as table:
        assert content(table) == STATE


def test_a_disk_that_takes_no_locks(kept: TableRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has the directory: who waits for it to be free would wait in vain."""

    def refusing(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refusing)
        with pytest.raises(StoreUnavailable, match="No locks available"):
            kept.open()
    with kept.open() as table:
        assert content(table) == STATE
