"""The files next to a table's database: its lock, and the notes of the previous incarnation in any condition."""

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
    """Return a table with a directory that holds STATE."""
    return kept_table(twin_rig("log"), tmp_path / "local")


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00"])
def test_a_note_that_a_full_or_damaged_disk_has_left(kept: TableRig, data: bytes) -> None:
    """A file with any contents notes that the database was found damaged."""
    (home(kept) / "damaged").write_bytes(data)
    with told("it was found damaged: "), kept.open() as table:
        assert content(table) == STATE
        assert table.opening.set_aside is not None


def test_a_boot_that_cannot_be_read(kept: TableRig) -> None:
    """An unreadable note of the boot counts as another boot, so only files are trusted."""
    (home(kept) / "boot").write_bytes(b"\xff\xfe\x00")
    with kept.open() as table:
        assert content(table) == STATE
        assert table.opening.from_position is not None


def test_a_table_that_was_dropped_holds_no_lock(kept: TableRig) -> None:
    """A dropped table releases its lock like a dropped file, so the same process may open it again."""
    with pytest.warns(ResourceWarning, match="unclosed"):
        kept.open().put(b"lost", b"1")
        gc.collect()
    with kept.open() as table:
        assert content(table) == STATE


def test_a_disk_that_takes_no_locks(kept: TableRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without locks is an error at once, since waiting for the lock would be in vain."""

    def refusing(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refusing)
        with pytest.raises(StoreUnavailable, match="No locks available"):
            kept.open()
    with kept.open() as table:
        assert content(table) == STATE
