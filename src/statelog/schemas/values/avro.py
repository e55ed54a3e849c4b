"""Values in Avro's binary form: a value column as one datum per row, for consumers of bytes without Arrow. Pure.

It works by column: every type becomes an array of its encoded bytes, and records, lists and unions join the arrays of
their parts with Arrow's kernels. `fastavro.schemaless_reader` reads the result with the schema's text.

Invariants:
- No row may be null: a delete has no value.
- One call makes at most 2 GiB, the limit of an Arrow array; callers cut their tables.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.errors import InvalidChange
from statelog.schemas.arrays import column_of, column_of_rows, numbers_of, numbers_or_zeros, scalar_of
from statelog.schemas.values.arrow import MAP_KEY, Nested, struct_children
from statelog.schemas.values.schema import ValueSchema
from statelog.schemas.values.types import ValueType

_DECIMAL_BYTES = 16
_NOTHING, _ZERO, _ONE = (scalar_of(data, pa.binary()) for data in (b"", b"\0", b"\2"))


def avro_values(column: pa.Array, schema: ValueSchema) -> pa.Array:
    """Return a value column as binary: in Avro's plain binary form (no header), or as it is in an opaque log.

    Raises InvalidChange if a row is null, or a decimal is larger than its fixed.
    """
    if column.null_count:
        raise InvalidChange("a delete has no value", hint="Leave deletes out first")
    return column if schema.root is None else _encoded(column, schema.root)


def _encoded(column: pa.Array, kind: ValueType) -> pa.Array:
    """Encode every row. A null row of a type without null belongs to a null parent, so its bytes do not matter."""
    if not kind.nullable:
        return _ENCODERS[kind.kind](column, kind)
    null, present = (_ONE, _ZERO) if kind.null_last else (_ZERO, _ONE)
    return pc.if_else(column.is_valid(), _joined(present, _ENCODERS[kind.kind](column, kind)), null)


def _boolean(column: pa.Array, _: ValueType) -> pa.Array:
    return _fixed_bytes(numbers_or_zeros(column).view(np.uint8))


def _integer(column: pa.Array, kind: ValueType) -> pa.Array:
    width = pa.int32() if kind.kind == "int" else pa.int64()
    return _varints(numbers_or_zeros(column.view(width)).astype(np.int64))


def _float(column: pa.Array, kind: ValueType) -> pa.Array:
    return _fixed_bytes(numbers_or_zeros(column).astype("<f4" if kind.kind == "float" else "<f8"))


def _bytes(column: pa.Array, kind: ValueType) -> pa.Array:
    data = _decimals(column) if kind.logical == "decimal" else column.cast(pa.binary())
    lengths = numbers_or_zeros(pc.binary_length(data)).astype(np.int64)
    return _joined(_varints(lengths), data)


def _fixed(column: pa.Array, kind: ValueType) -> pa.Array:
    if kind.logical != "decimal":
        return column.cast(pa.binary())
    digits = _decimal_digits(column)
    wide = np.repeat(_sign_bytes(digits)[:, None], max(0, kind.size - _DECIMAL_BYTES), axis=1)
    cut, kept = np.split(np.hstack([wide, digits]), [-kind.size], axis=1)
    if (cut != _sign_bytes(kept)[:, None]).any(axis=1)[numbers_of(column.is_valid())].any():
        hint = "Write such numbers into a new field, of a larger size"
        raise InvalidChange(f"a number that the {kind.size} bytes of {kind} cannot hold", hint=hint)
    return _fixed_bytes(kept)


def _enum(column: pa.Array, kind: ValueType) -> pa.Array:
    numbers = pc.index_in(column, column_of_rows(kind.symbols, pa.string()))
    return _varints(numbers_or_zeros(numbers).astype(np.int64))


def _array(column: pa.Array, kind: ValueType) -> pa.Array:
    offsets, _, items = Nested.of(column)
    return _blocks(pa.ListArray.from_arrays(offsets, _encoded(items, kind.inner)))


def _map(column: pa.Array, kind: ValueType) -> pa.Array:
    offsets, keys, items = Nested.of(column)
    assert keys is not None, "a map has keys"
    entries = _joined(_encoded(keys, MAP_KEY), _encoded(items, kind.inner))
    return _blocks(pa.ListArray.from_arrays(offsets, entries))


def _record(column: pa.Array, kind: ValueType) -> pa.Array:
    children = struct_children(column)
    return _joined(*(_encoded(child, one.type) for child, one in zip(children, kind.fields, strict=True)))


_ENCODERS: Mapping[str, Callable[[pa.Array, ValueType], pa.Array]] = {
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "string": _bytes,
    "bytes": _bytes,
    "fixed": _fixed,
    "enum": _enum,
    "array": _array,
    "map": _map,
    "record": _record,
}


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Join the bytes of several columns row by row; null where one is null."""
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _blocks(lists: pa.Array) -> pa.Array:
    """Encode each list of encoded items as a block: the count, the items, the end. An empty list is only the end."""
    lengths = numbers_or_zeros(pc.list_value_length(lists)).astype(np.int64)
    counts = pc.if_else(column_of(lengths > 0), _varints(lengths), _NOTHING)
    return _joined(counts, pc.binary_join(lists, _NOTHING), _ZERO)


def _varints(numbers: NDArray[np.int64]) -> pa.Array:
    """Encode numbers as zigzag varints: seven bits a byte, the lowest first."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    lengths = np.ones(len(zigzag), np.int32)
    for bits in range(7, 64, 7):
        lengths += zigzag >= np.uint64(1 << bits)
    places = np.arange(int(lengths.max(initial=1)), dtype=np.int32)
    digits = (zigzag[:, None] >> (7 * places).astype(np.uint64)).astype(np.uint8) & np.uint8(0x7F)
    digits |= np.where(places < lengths[:, None] - 1, np.uint8(0x80), np.uint8(0))
    return _binary(digits[places < lengths[:, None]], lengths)


def _decimals(column: pa.Array) -> pa.Array:
    """Encode unscaled numbers in big-endian two's complement, in as few bytes as hold the sign."""
    digits = _decimal_digits(column)
    repeats = (digits[:, :-1] == _sign_bytes(digits)[:, None]) & ((digits[:, 1:] ^ digits[:, :-1]) < 0x80)
    spare = np.cumprod(repeats, axis=1, dtype=np.int32).sum(axis=1, dtype=np.int32)
    keep = np.arange(_DECIMAL_BYTES, dtype=np.int32) >= spare[:, None]
    return _binary(digits[keep], np.int32(_DECIMAL_BYTES) - spare)


def _decimal_digits(column: pa.Array) -> NDArray[np.uint8]:
    data = column.buffers()[1]
    if data is None:
        return np.zeros((len(column), _DECIMAL_BYTES), np.uint8)
    held = np.frombuffer(memoryview(data), np.uint8)[: (column.offset + len(column)) * _DECIMAL_BYTES]
    return held.reshape(-1, _DECIMAL_BYTES)[column.offset :, ::-1]


def _sign_bytes(digits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.where(digits[:, 0] >= 0x80, np.uint8(0xFF), np.uint8(0))


def _fixed_bytes(rows: NDArray[np.generic]) -> pa.Array:
    """Return the memory of every row of a numpy array."""
    width = rows.dtype.itemsize * (rows.shape[1] if rows.ndim == 2 else 1)
    return _binary(rows, np.full(len(rows), width, np.int32))


def _binary(data: NDArray[np.generic], lengths: NDArray[np.int32]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
