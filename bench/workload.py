"""Workload W: 5,000,000 puts over 1,000,000 keys; 16-byte keys, 100-byte values, half of which compresses.

Made from a seed, in Arrow batches, before any clock runs. Keys are `key-` and twelve digits; at most eight bytes
differ, which makes them the fastest to sort. `KINDS` has others.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["KINDS", "USUAL_KEYS", "Keys", "Pairs", "batches", "binary", "every_key", "keys_of", "pairs"]

Pairs = list[tuple[bytes, bytes]]
"""Keys and values as bytes."""
Keys = Callable[[NDArray[np.int64]], pa.Array]
"""Makes the keys of these numbers."""
USUAL_KEYS = "`key-` and 12 digits"
_KEY_BYTES, _VALUE_BYTES = 16, 100
_SEED = 20260717
_CONSTANT = np.frombuffer(b"abcdefghij" * 5, np.uint8)


def batches(
    changes: int, keys: int, batch_rows: int = 100_000, seed: int = _SEED, *, kind: str = USUAL_KEYS
) -> list[pa.RecordBatch]:
    """Return the workload as batches with columns `key` and `value`; `kind` is one of `KINDS`."""
    return list(_generate(changes, keys, batch_rows, seed, KINDS[kind]))


def every_key(keys: int, batch_rows: int = 100_000) -> list[pa.RecordBatch]:
    """Return one put for every key, in random order, in two batches or more."""
    batch_rows = min(batch_rows, (keys + 1) // 2)
    rng = np.random.default_rng(_SEED + 1)
    ids = rng.permutation(keys)
    return [_batch(ids[start : start + batch_rows], rng, keys_of) for start in range(0, keys, batch_rows)]


def pairs(found: list[pa.RecordBatch]) -> Pairs:
    """Return the same changes as Python objects."""
    return [
        pair
        for batch in found
        for pair in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    ]


def _generate(changes: int, keys: int, batch_rows: int, seed: int, of: Keys) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(seed)
    for start in range(0, changes, batch_rows):
        rows = min(batch_rows, changes - start)
        yield _batch(rng.integers(0, keys, rows), rng, of)


def _batch(ids: NDArray[np.int64], rng: np.random.Generator, of: Keys) -> pa.RecordBatch:
    values = np.empty((len(ids), _VALUE_BYTES), np.uint8)
    values[:, :50] = rng.integers(0, 256, (len(ids), 50), dtype=np.uint8)
    values[:, 50:] = _CONSTANT
    return pa.RecordBatch.from_arrays([of(ids), binary(values)], names=["key", "value"])


def keys_of(ids: NDArray[np.int64]) -> pa.Array:
    """Return the keys of these numbers."""
    return binary(_key_matrix(ids))


def _key_matrix(ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return `key-` and twelve decimal digits for each number, as a matrix of bytes."""
    matrix = np.empty((len(ids), _KEY_BYTES), np.uint8)
    matrix[:, :4] = np.frombuffer(b"key-", np.uint8)
    rest = ids.copy()
    for column in range(_KEY_BYTES - 1, 3, -1):
        matrix[:, column] = 48 + rest % 10
        rest //= 10
    return matrix


def _random_matrix(ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return sixteen pseudo-random bytes for each number: two words of SplitMix64."""
    word = np.stack([2 * ids, 2 * ids + 1], axis=1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    return (word ^ (word >> np.uint64(31))).view(np.uint8).reshape(len(ids), 16)


def _hex_matrix(ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the same bytes as 32 hexadecimal digits."""
    data, digits = _random_matrix(ids), np.frombuffer(b"0123456789abcdef", np.uint8)
    return digits[np.stack([data >> 4, data & 15], axis=2)].reshape(len(ids), 32)


def _random_keys(ids: NDArray[np.int64]) -> pa.Array:
    return binary(_random_matrix(ids))


def _uuid_keys(ids: NDArray[np.int64]) -> pa.Array:
    return binary(np.insert(_hex_matrix(ids), [8, 12, 16, 20], ord("-"), axis=1))


def _url_keys(ids: NDArray[np.int64]) -> pa.Array:
    digits = _hex_matrix(ids)
    parts = [
        _repeated(b"https://example.com/catalogue/", ids),
        digits[:, :8],
        _repeated(b"/item?session=", ids),
        digits,
    ]
    return binary(np.concatenate(parts, axis=1))


def _repeated(text: bytes, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.broadcast_to(np.frombuffer(text, np.uint8), (len(ids), len(text)))


def binary(matrix: NDArray[np.uint8]) -> pa.Array:
    """Return each row of a matrix of bytes as one value."""
    rows, width = matrix.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    data = pa.py_buffer(matrix.tobytes())
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets.tobytes()), data])


KINDS: Mapping[str, Keys] = {
    USUAL_KEYS: keys_of,
    "16 random bytes": _random_keys,
    "UUIDs as text": _uuid_keys,
    "URLs of 84 bytes": _url_keys,
}
"""Kinds of keys, by name."""
