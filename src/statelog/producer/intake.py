"""`take_in`: a caller's Arrow table as valid pieces that no caller can change behind the writer's back.

Arrow trusts its buffers, and validates nothing by itself: text may not be UTF-8, and an offset may point anywhere.
Readers validate every chunk, so one such cell would block the whole log. No I/O.

Invariants:
- A piece that may be retained beyond the call is a copy, made before it is validated or hashed.
- Any other piece is the caller's memory, and has to be sent within the call.
- Nothing is computed from a column before it is validated: a bad offset would kill the process.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import InvalidChange
from statelog.schemas.values.arrow import is_list

_MOST_PIECE_BYTES = 64 << 20
_OWN_NAMES = ("key", "op", "due", "key_group", "value")
_HINT = "Decode text with its own encoding, or keep it as bytes; make columns with Arrow's own builders"


def take_in(table: pa.Table | pa.RecordBatch, piece_bytes: int) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield the rows in order, in pieces of at most about `piece_bytes`, none of them empty; and with each whether its
    memory is ours alone.

    Raises InvalidChange with the field's path and the row, from 0, of the first cell that is not valid.
    """
    first_row = 0
    for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
        try:
            batch.validate()
            held = batch.get_total_buffer_size()
            size = held if held < piece_bytes // 2 else batch.nbytes  # `nbytes` takes some microseconds.
            is_slice = held > 2 * size and any(kind.num_fields for kind in batch.schema.types)
            rows, is_ours = _validated(batch, size < piece_bytes // 2 or is_slice)
        except pa.ArrowException as error:
            raise _refused(batch, first_row, error) from error
        for piece in _cut(rows, piece_bytes, size):
            yield piece, is_ours
        first_row += batch.num_rows


def _validated(batch: pa.RecordBatch, is_copied: bool) -> tuple[pa.RecordBatch, bool]:
    rows = copied(batch) if is_copied else batch
    try:
        rows.validate(full=True)
    except pa.ArrowException:
        if is_copied:
            raise
        return _validated(batch, True)  # A slice still has all nested values; those of its own rows may be valid.
    return rows, is_copied


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a deep copy; of a slice, only its own rows."""
    if not any("dictionary<" in str(kind) for kind in batch.schema.types):
        return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def _cut(batch: pa.RecordBatch, piece_bytes: int, size: int) -> Iterator[pa.RecordBatch]:
    """Cut the batch into equal pieces, without copying.

    Larger pieces cost a writer more: their results exceed what the allocator retains. Where large values are close
    together, a piece is halved until it is far from Arrow's 2 GiB.
    """
    if size <= piece_bytes and batch.num_rows:
        yield batch
        return
    rows = max(1, -(-batch.num_rows // -(-size // piece_bytes))) if size else 1
    for start in range(0, batch.num_rows, rows):
        yield from _halved(batch.slice(start, rows), max(piece_bytes, _MOST_PIECE_BYTES))


def _halved(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    # A slice counts its whole dictionary.
    shared = any(isinstance(kind, pa.DictionaryType) for kind in batch.schema.types)
    if shared or batch.num_rows < 2 or batch.nbytes <= most_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _halved(batch.slice(0, half), most_bytes)
    yield from _halved(batch.slice(half), most_bytes)


# ---- what is wrong, and where


def _refused(batch: pa.RecordBatch, first_row: int, error: pa.ArrowException) -> InvalidChange:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if _problem(column):
            row = _first_bad(column)
            path, text = _located(column.slice(row, 1), name if name in _OWN_NAMES else f"value.{name}")
            what = "a text is not UTF-8" if "UTF8" in text else f"a column is not valid Arrow: {text}"
            return InvalidChange(what, hint=_HINT, field=path, row=first_row + row)
    return InvalidChange(f"the table is not valid Arrow: {error}", hint=_HINT, row=first_row)


def _problem(column: pa.Array) -> str:
    """Return why the column's rows are not valid; empty if they are."""
    try:
        _alone(column).validate(full=True)
    except pa.ArrowException as error:
        return str(error)
    return ""


def _alone(column: pa.Array) -> pa.Array:
    """Return a copy without the data of other rows. Raises pa.ArrowException."""
    column.validate()
    return copied(pa.RecordBatch.from_arrays([column], names=["column"])).column(0)


def _first_bad(column: pa.Array) -> int:
    """Return the first row that is not valid; 0 if none is found."""
    if isinstance(column, pa.DictionaryArray) and _problem(column.dictionary):
        bad = pa.scalar(_first_bad(column.dictionary), column.indices.type)
        return max(0, cast("int", pc.index(column.indices, bad).as_py()))
    row, end = 0, len(column)
    while end - row > 1:
        middle = (row + end) // 2
        if _problem(column.slice(row, middle - row)):
            end = middle
        else:
            row = middle
    return row


def _located(row: pa.Array, path: str) -> tuple[str, str]:
    """Return the path of the innermost part of a row that is not valid, and why it is not."""
    with suppress(pa.ArrowException):
        for end, part in _parts(_alone(row)):
            if _problem(part):
                return _located(part, path + end)
    return path, _problem(row)


def _parts(column: pa.Array) -> list[tuple[str, pa.Array]]:
    """Return the parts of a nested column, each with its step of the path."""
    if isinstance(column, pa.StructArray):
        names = cast("pa.StructType", column.type).names
        return [(f".{name}", column.field(number)) for number, name in enumerate(names)]
    if isinstance(column, pa.MapArray):
        return [("{}", column.keys), ("{}", column.items)]
    return [("[]", cast("pa.ListArray", column).values)] if is_list(column.type) else []
