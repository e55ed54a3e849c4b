"""How much memory a fold takes, measured in a process of its own.

`python -m tests.support.processes.folded_memory MIB LIMIT` folds one partition's changes of MIB together, values of 16
KiB, with a LIMIT in MiB, after a smaller fold. Prints the rows that came out, and by how many bytes the process grew at
its peak. Linux only, as it asks the kernel for that.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import pyarrow as pa

from statelog.materializer.engine.delta import fold
from statelog.schemas.values.schema import OPAQUE
from statelog.storage.log.log import Log
from statelog.storage.replay import CommittedChunk

__all__ = ["VALUE_BYTES"]

VALUE_BYTES = 16 << 10
_ROWS = (1 << 20) // VALUE_BYTES


def _chunks(mib: int) -> Iterator[CommittedChunk]:
    """Chunks of 1 MiB whose keys are spread over the whole range, as hashing does."""
    random = np.random.default_rng(1)
    data = random.integers(0, 256, _ROWS * VALUE_BYTES, dtype=np.uint8).tobytes()
    offsets = np.arange(0, (_ROWS + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32).tobytes()
    values = pa.Array.from_buffers(pa.binary(), _ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    for number in range(mib):
        keys = pa.array(sorted(b"%016d" % key for key in random.integers(0, 10**15, _ROWS)))
        groups, ops = pa.array(np.zeros(_ROWS, np.uint16)), pa.array(np.zeros(_ROWS, np.uint8))
        changes = pa.RecordBatch.from_arrays([groups, ops, keys, values], names=["key_group", "op", "key", "value"])
        yield CommittedChunk(0, number, OPAQUE.id, _ROWS * VALUE_BYTES, changes)


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def _fold(mib: int, fold_mib: int) -> int:
    with TemporaryDirectory() as scratch:
        # All values have the newest schema, so the log is never asked.
        tables = fold(cast("Log", None), _chunks(mib), OPAQUE, Path(scratch), fold_mib << 20)
        return sum(table.num_rows for table in tables)


def main(mib: int, fold_mib: int) -> None:
    """Fold, and print the numbers."""
    _fold(4 * fold_mib, fold_mib)  # What is loaded and kept at the first time is not what a fold takes.
    Path("/proc/self/clear_refs").write_text("5")  # The peak starts anew from here.
    before = _peak_bytes()
    rows = _fold(mib, fold_mib)
    sys.stdout.write(f"{rows} {_peak_bytes() - before}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
