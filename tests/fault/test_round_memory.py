"""The memory of a whole process that folds a tail far larger than its limit, as the kernel counts it."""

import os
import subprocess
import sys

import pytest

from tests.support.processes.folded_memory import VALUE_BYTES


@pytest.mark.parametrize(
    ("mib", "fold_mib"), [(64, 2), pytest.param(2300, 64, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
def test_a_fold_takes_a_few_limits_whatever_it_folds(mib: int, fold_mib: int) -> None:
    """Values of 16 KiB, thirty-two times the limit; and at real size more than a column of Arrow's holds, 2 GiB."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.folded_memory", str(mib), str(fold_mib)],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    rows, grown_bytes = (int(number) for number in done.stdout.split())
    assert rows == mib * (1 << 20) // VALUE_BYTES
    assert grown_bytes < max(8 * fold_mib, 32) << 20
