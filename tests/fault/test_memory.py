"""The memory of a whole process, as the kernel counts it: of a recovery, and of a fold. Linux only.

The recovered state is far larger than its budget, the folded tail far larger than its limit. Each process prints its
result, and by how many bytes it grew at its peak.
"""

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from statelog.materializer.sorted_tables import fold
from statelog.producer.writer import Writer
from statelog.reading import CommittedChunk, Converter
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.values.schema import OPAQUE
from tests.support.processes.parts import output
from tests.support.rigs.history import HistoryRig, history_rig

BUDGET_BYTES = 4 << 20
STATE_BYTES = 128 << 20
VALUE_BYTES = 16 << 10
_STREAMED_BYTES = 4096
_ROWS = (1 << 20) // VALUE_BYTES


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def _begin() -> int:
    """Reset the peak, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def stream_memory(how: str) -> None:
    """Recover by `stream`, `parquet` or `table`, after a small state. Print the bytes of the state first."""
    _recover(_filled(2 * BUDGET_BYTES), how)  # The first recovery loads and caches memory that is not its own use.
    rig = _filled(STATE_BYTES)
    before = _begin()
    size_bytes = _recover(rig, how)
    sys.stdout.write(f"{size_bytes} {_peak_bytes() - before}\n")


def _recover(rig: HistoryRig, how: str) -> int:
    settings = RecoverySettings(memory_bytes=BUDGET_BYTES, fold_bytes=BUDGET_BYTES)
    if how == "stream":
        with recover(rig.log, settings=settings).stream() as stream:
            size_bytes = 0
            for portion in stream:
                stream.wait_fetched()  # As slow as a reader can be: everything is fetched before the second portion.
                size_bytes += portion.changes.nbytes
    elif how == "parquet":
        with tempfile.TemporaryDirectory() as directory:
            rows = recover(rig.log, settings=settings).to_parquet(Path(directory) / "state.parquet")
            size_bytes = rows * _STREAMED_BYTES
    else:
        size_bytes = recover(rig.log).to_arrow(ordered=True).nbytes
    return size_bytes


def _filled(state_bytes: int) -> HistoryRig:
    """Return a rig with the whole state in the log, which the twin holds in memory before the measurement begins."""
    rig, rng = history_rig(), random.Random(0)
    with Writer(rig.log, "w") as writer:
        for number in range(1, 9):
            for key in range(state_bytes // _STREAMED_BYTES // 8):
                writer.put(b"%d-%d" % (number, key), rng.randbytes(_STREAMED_BYTES))
            writer.commit(checkpoint_id=number)
    return rig


def fold_memory(mib: str, fold_mib: str) -> None:
    """Fold one partition's changes, with a limit, after a smaller fold. Print the number of rows first."""
    _fold(4 * int(fold_mib), int(fold_mib))  # The first fold loads and caches memory that is not its own use.
    before = _begin()
    rows = _fold(int(mib), int(fold_mib))
    sys.stdout.write(f"{rows} {_peak_bytes() - before}\n")


class _AsTheyAre:
    """A converter of values that all have the newest schema: of no log, and never called."""

    def chunk(self, chunk: CommittedChunk) -> CommittedChunk:
        return chunk


def _fold(mib: int, fold_mib: int) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        tables = fold(
            _chunks(mib),
            cast("Converter", _AsTheyAre()),
            Path(scratch),
            drop_deletes=False,
            fold_bytes=fold_mib << 20,
        )
        return sum(table.num_rows for table in tables)


def _chunks(mib: int) -> Iterator[CommittedChunk]:
    """Yield chunks of 1 MiB whose keys are spread over the whole range, as by hashing."""
    random = np.random.default_rng(1)
    data = random.integers(0, 256, _ROWS * VALUE_BYTES, dtype=np.uint8).tobytes()
    offsets = np.arange(0, (_ROWS + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32).tobytes()
    values = pa.Array.from_buffers(pa.binary(), _ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    for number in range(mib):
        keys = pa.array(sorted(b"%016d" % key for key in random.integers(0, 10**15, _ROWS)))
        groups, ops = pa.array(np.zeros(_ROWS, np.uint16)), pa.array(np.zeros(_ROWS, np.uint8))
        changes = pa.RecordBatch.from_arrays([groups, ops, keys, values], names=["key_group", "op", "key", "value"])
        yield CommittedChunk("l", 0, number, number, OPAQUE.id, _ROWS * VALUE_BYTES, changes)


@pytest.mark.parametrize("how", ["stream", "parquet", "table"])
def test_a_stream_takes_a_few_budgets_and_a_table_takes_the_state(how: str) -> None:
    """A stream to a slow reader or a file takes less than half of a state of thirty-two budgets; a table takes all."""
    printed = output(stream_memory, how)
    size_bytes, grown_bytes = (int(number) for number in printed.split())
    assert size_bytes >= STATE_BYTES >= 32 * BUDGET_BYTES
    assert (grown_bytes < STATE_BYTES // 2) == (how != "table")


@pytest.mark.parametrize(
    ("mib", "fold_mib"), [(64, 2), pytest.param(2300, 64, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
def test_a_fold_takes_a_few_limits_whatever_it_folds(mib: int, fold_mib: int) -> None:
    """A fold takes a few limits: values of 16 KiB, thirty-two limits in all; and more than an Arrow column's 2 GiB."""
    printed = output(fold_memory, mib, fold_mib, timeout_s=900.0)
    rows, grown_bytes = (int(number) for number in printed.split())
    assert rows == mib * (1 << 20) // VALUE_BYTES
    assert grown_bytes < max(8 * fold_mib, 32) << 20
