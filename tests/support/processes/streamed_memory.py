"""How much memory a recovery takes, measured in a process of its own.

`python -m tests.support.processes.streamed_memory HOW`, where HOW is `stream`, `parquet` or `table`. Prints two
numbers: the bytes of the state, and by how much the process grew at its peak. Linux only, as it asks the kernel for the
peak.
"""

import random
import sys
import tempfile
from pathlib import Path

from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from tests.support.rigs.history import HistoryRig, history_rig

__all__ = ["BUDGET_BYTES", "STATE_BYTES"]

BUDGET_BYTES = 4 << 20
STATE_BYTES = 64 << 20
_VALUE_BYTES = 4096


def _filled() -> HistoryRig:
    """The whole state is in the log, which the twin holds in memory before the measurement begins."""
    rig, rng = history_rig(), random.Random(0)
    with Writer(rig.log, "w") as writer:
        for number in range(1, 9):
            for key in range(STATE_BYTES // _VALUE_BYTES // 8):
                writer.put(b"%d-%d" % (number, key), rng.randbytes(_VALUE_BYTES))
            writer.commit(number)
    return rig


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def main(how: str) -> None:
    """Recover, and print the numbers."""
    rig = _filled()
    settings = RecoverySettings(memory_bytes=BUDGET_BYTES, fold_bytes=BUDGET_BYTES)
    Path("/proc/self/clear_refs").write_text("5")  # The peak starts anew from here.
    before = _peak_bytes()
    if how == "stream":
        with recover(rig.log, settings=settings).stream() as stream:
            size_bytes = 0
            for portion in stream:
                stream.wait_fetched()  # As slow as a reader can be: everything is fetched before the second portion.
                size_bytes += portion.changes.nbytes
    elif how == "parquet":
        with tempfile.TemporaryDirectory() as directory:
            rows = recover(rig.log, settings=settings).to_parquet(Path(directory) / "state.parquet")
            size_bytes = rows * _VALUE_BYTES
    else:
        size_bytes = recover(rig.log).to_arrow(ordered=True).nbytes
    sys.stdout.write(f"{size_bytes} {_peak_bytes() - before}\n")


if __name__ == "__main__":
    main(sys.argv[1])
