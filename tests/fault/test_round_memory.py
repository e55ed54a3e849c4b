"""The memory of a whole process that folds a tail far larger than its limit, as the kernel counts it."""

import pytest

from tests.support.processes.memory import VALUE_BYTES
from tests.support.processes.parts import output


@pytest.mark.parametrize(
    ("mib", "fold_mib"), [(64, 2), pytest.param(2300, 64, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
def test_a_fold_takes_a_few_limits_whatever_it_folds(mib: int, fold_mib: int) -> None:
    """Values of 16 KiB, thirty-two times the limit; and at real size more than a column of Arrow's holds, 2 GiB."""
    printed = output("fold_memory", mib, fold_mib, timeout_s=900.0)
    rows, grown_bytes = (int(number) for number in printed.split())
    assert rows == mib * (1 << 20) // VALUE_BYTES
    assert grown_bytes < max(8 * fold_mib, 32) << 20
