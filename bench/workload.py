"""Workload W: 5,000,000 puts over 1,000,000 keys; 16-byte keys, 100-byte values of which half compresses.

Made from a seed, in Arrow batches, before any clock runs.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["Pairs", "batches", "binary", "every_key", "keys_of", "pairs"]

Pairs = list[tuple[bytes, bytes]]
"""Keys and values, of bytes."""
_KEY_BYTES, _VALUE_BYTES = 16, 100
_SEED = 20260717
_CONSTANT = np.frombuffer(b"abcdefghij" * 5, np.uint8)


def batches(changes: int, keys: int, batch_rows: int = 100_000, seed: int = _SEED) -> list[pa.RecordBatch]:
    """The workload as batches with columns `key` and `value`."""
    return list(_generate(changes, keys, batch_rows, seed))


def every_key(keys: int, batch_rows: int = 100_000) -> list[pa.RecordBatch]:
    """One put for every key, in random order."""
    rng = np.random.default_rng(_SEED + 1)
    ids = rng.permutation(keys)
    return [_batch(ids[start : start + batch_rows], rng) for start in range(0, keys, batch_rows)]


def pairs(found: list[pa.RecordBatch]) -> Pairs:
    """The same as Python objects, for what works change by change."""
    return [
        pair
        for batch in found
        for pair in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    ]


def _generate(changes: int, keys: int, batch_rows: int, seed: int) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(seed)
    for start in range(0, changes, batch_rows):
        rows = min(batch_rows, changes - start)
        yield _batch(rng.integers(0, keys, rows), rng)


def _batch(ids: NDArray[np.int64], rng: np.random.Generator) -> pa.RecordBatch:
    values = np.empty((len(ids), _VALUE_BYTES), np.uint8)
    values[:, :50] = rng.integers(0, 256, (len(ids), 50), dtype=np.uint8)
    values[:, 50:] = _CONSTANT
    return pa.RecordBatch.from_arrays([keys_of(ids), binary(values)], names=["key", "value"])


def keys_of(ids: NDArray[np.int64]) -> pa.Array:
    """The keys of these numbers."""
    return binary(_key_matrix(ids))


def _key_matrix(ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    """`key-` and twelve decimal digits, as a matrix of bytes."""
    matrix = np.empty((len(ids), _KEY_BYTES), np.uint8)
    matrix[:, :4] = np.frombuffer(b"key-", np.uint8)
    rest = ids.copy()
    for column in range(_KEY_BYTES - 1, 3, -1):
        matrix[:, column] = 48 + rest % 10
        rest //= 10
    return matrix


def binary(matrix: NDArray[np.uint8]) -> pa.Array:
    """Each row of a matrix of bytes as one value."""
    rows, width = matrix.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    data = pa.py_buffer(matrix.tobytes())
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets.tobytes()), data])
