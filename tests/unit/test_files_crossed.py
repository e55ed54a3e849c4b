"""The number of our files that each entry point runs through, on the twins, as a measure of how hard it is to follow.

A figure may only fall; a change that raises one says why.
"""

import gc
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import statelog
from statelog.errors import UncommittedChanges
from statelog.materializer import run_round
from statelog.producer import Writer
from statelog.recovery import recover
from statelog.testing import StillClock, environment
from tests.support.rigs.log import TwinLog, key_in, settings_for, twin_rig
from tests.support.rigs.table import TableRig

_HOUSE = str(Path(statelog.__file__).parent)
_TWINS = str(Path(_HOUSE, "testing"))


@contextmanager
def _crossed() -> Generator[set[str]]:
    """Record the files in which something was called by the end of the block, on any thread started in it.

    Garbage of other tests is not collected meanwhile, since it may call our code.
    """
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(_HOUSE) and not name.startswith(_TWINS):
            files.add(name.removeprefix(_HOUSE))

    before = sys.getprofile()
    gc.collect()
    gc.disable()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
        gc.enable()


@pytest.fixture(autouse=True)
def _standing_clock() -> Generator[None]:
    """Stop the clock, so that nothing is repeated because of its age on a slow machine."""
    with environment(clock=StillClock()):
        yield


def _files(way: Callable[[], object]) -> list[str]:
    with _crossed() as files:
        way()
    return sorted(files)


def test_a_writer_and_a_recovery(tmp_path: Path) -> None:
    """Opening a writer and a recovery, of a log with a snapshot and a tail, runs through few files."""
    twin = TwinLog()
    twin.write({b"a": b"1"})
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    twin.write({b"c": b"3"})

    def commit() -> None:
        writer.put(b"k", b"v")
        writer.commit()

    def to_dict() -> None:
        with recover(log) as recovery:
            assert recovery.to_dict() == {b"a": b"1", b"c": b"3", b"k": b"v"}

    with twin.open() as log:
        with Writer(log, "w") as writer:
            assert len(_files(lambda: writer.put(b"k", b"v"))) == 1
            assert len(found := _files(commit)) <= 29, found
        with pytest.warns(UncommittedChanges), Writer(log, "w", partitions=[0]) as part:
            key = key_in(log, 0)
            assert len(_files(lambda: part.put(key, b"v"))) == 1
        opened = _files(lambda: Writer(log, "w").close())
        assert len(opened) <= 42, opened  # Two know what a due and a message are
        assert len(found := _files(to_dict)) <= 52, found  # Two know what a ledger record carries, one what a due is


def test_a_table(tmp_path: Path) -> None:
    """Opening a table with a snapshot runs through few files."""
    tables = TableRig(twin_rig("table"), None)
    with tables.open() as table:
        table[b"a"] = b"1"
        table.commit()
    tables.roll_up(tmp_path)
    assert len(found := _files(lambda: tables.open().close())) <= 82, found  # Five know what a due and a message are
