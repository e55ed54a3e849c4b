"""The memory of a whole process that recovers a state far larger than its budget, as the kernel counts it."""

import pytest

from tests.support.processes.memory import BUDGET_BYTES, STATE_BYTES
from tests.support.processes.parts import output


@pytest.mark.parametrize("how", ["stream", "parquet", "table"])
def test_a_stream_takes_a_few_budgets_and_a_table_takes_the_state(how: str) -> None:
    """A stream into a slow reader, or a file, takes less than half of a state of sixteen budgets; a table all."""
    printed = output("stream_memory", how)
    size_bytes, grown_bytes = (int(number) for number in printed.split())
    assert size_bytes >= STATE_BYTES >= 16 * BUDGET_BYTES
    assert (grown_bytes < STATE_BYTES // 2) == (how != "table")
