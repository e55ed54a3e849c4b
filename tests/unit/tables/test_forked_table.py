"""A forked child of a process that has a table ends normally, and does not harm its parent."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import gc, os, signal, sys, threading, warnings
from pathlib import Path
from tests.support.rigs.log import twin_rig
from tests.support.rigs.table import TableRig

directory, end = sys.argv[1:]
tables = TableRig(twin_rig("log"), Path(directory) if directory else None)
table = tables.open()
table[b"j"] = table[b"k"] = b"v"
table.commit()
scan = table.range()
next(scan)
for _ in range(16):  # Of so many threads the child keeps no memory: who joins one of them falls over it.
    threading.Thread(target=threading.Event().wait, daemon=True).start()
child = os.fork()
if child == 0:
    signal.alarm(20)
    warnings.simplefilter("ignore")
    if end == "close":
        table.close()
    if end != "exit":
        del scan, table
        gc.collect()
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
scan.close()
table[b"k"] = b"parent"
table.commit()
table.close()
with tables.open() as table:
    assert dict(table.items()) == {b"j": b"v", b"k": b"parent"}
"""


_OPENING = """
import os, signal, sys
from pathlib import Path
from statelog.errors import ConfigError
from tests.support.rigs.log import twin_rig
from tests.support.rigs.table import TableRig

directory = Path(sys.argv[1])
rig = twin_rig("log")
with TableRig(rig, directory / "parent").open() as table:
    table[b"k"] = b"v"
    table.commit()
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        TableRig(rig, directory / "child").open()
    except ConfigError as error:
        os._exit("spawn" in str(error))
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
with TableRig(rig, directory / "parent").open() as table:
    assert dict(table.items()) == {b"k": b"v"}
"""


def test_a_forked_child_opens_none(tmp_path: Path) -> None:
    """A forked child that opens a table is told to be spawned: RocksDB's threads exist only in the parent."""
    subprocess.run([sys.executable, "-c", _OPENING, str(tmp_path)], check=True, timeout=60)


@pytest.mark.parametrize("end", ["exit", "drop", "close"])
@pytest.mark.parametrize("kind", ["dict", "rocksdb"])
def test_a_forked_child_ends(kind: str, end: str, tmp_path: Path) -> None:
    """A forked child ends without freeing RocksDB's objects, which would wait for the parent's threads."""
    directory = str(tmp_path / "local") if kind == "rocksdb" else ""
    subprocess.run([sys.executable, "-c", _PROGRAM, directory, end], check=True, timeout=60)
