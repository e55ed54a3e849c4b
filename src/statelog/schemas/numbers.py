"""Numbers: columns of numbers as numpy arrays, and back, without a copy. Pure.

pyarrow's own conversions do the same, and import pandas at the first of them if it is installed: 0.2 s in every process
of a job that has no use for it. Where pandas is loaded already, they are a few microseconds faster than ours.
"""

import sys
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["column_of", "numbers_of"]


def numbers_of(column: pa.Array) -> NDArray[Any]:
    """A column of integers or floats as an array that may not be written to. Raises pa.ArrowInvalid for a null."""
    if "pandas" in sys.modules or column.null_count or column.type.bit_width < 8:
        return column.to_numpy()
    _, data = column.buffers()
    if data is None:
        return np.zeros(0, column.type.to_pandas_dtype())
    # Counted, because a buffer that came from elsewhere may end with a part of a number.
    return np.frombuffer(memoryview(data), column.type.to_pandas_dtype(), column.offset + len(column))[column.offset :]


def column_of(numbers: NDArray[Any]) -> pa.Array:
    """An array of integers or floats as a column, which keeps it alive: it is not to be written to from then on."""
    if "pandas" in sys.modules:
        return pa.array(numbers)
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers).data)])
