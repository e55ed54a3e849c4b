"""A forked child of a process that has a table: it ends, however it does, and harms its parent nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import gc, os, signal, sys, warnings
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
child = os.fork()
if child == 0:
    signal.alarm(20)
    warnings.simplefilter("ignore")
    if end == "close":
        table.close()
    if end != "exit":
        del scan, table
        gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
scan.close()
table[b"k"] = b"parent"
table.commit()
table.close()
with tables.open() as table:
    assert dict(table.items()) == {b"j": b"v", b"k": b"parent"}
"""


@pytest.mark.parametrize("end", ["exit", "drop", "close"])
@pytest.mark.parametrize("kind", ["dict", "rocksdb"])
def test_a_forked_child_ends(kind: str, end: str, tmp_path: Path) -> None:
    """It frees nothing of RocksDB, which would wait for threads that only the parent has."""
    directory = str(tmp_path / "local") if kind == "rocksdb" else ""
    subprocess.run([sys.executable, "-c", _PROGRAM, directory, end], check=True, timeout=60)
