"""Chunks under Hypothesis: decoded changes equal the encoded ones, and no changed byte goes unnoticed."""

import io

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import CorruptChunk, UnknownFormat
from statelog.schemas.avro import RecordCodec, long_bytes
from statelog.schemas.changes.changes import DELETE, PUT, chunk_slices, row_sizes, split
from statelog.schemas.changes.chunk import VerifiedChunks, around, decode_batches, decode_head
from statelog.schemas.changes.due import DUE_MS_MAX, only_used, without_due
from statelog.schemas.changes.few import Dues, FewChanges
from statelog.schemas.key_groups import KeyType, key_group_of
from statelog.schemas.ledger.place import LastRecord, Place
from tests.support.samples.chunks import chunk_of, rows_batch
from tests.support.samples.folds import Row

MAGIC_BYTES = 4
KEYS: dict[KeyType, st.SearchStrategy[object]] = {
    KeyType.BYTES: st.binary(max_size=80),
    KeyType.STRING: st.text(max_size=20),
    KeyType.LONG: st.integers(-(1 << 63), (1 << 63) - 1),
}


Log = tuple[KeyType, list[Row], Dues | None]
DUES = st.none() | st.integers(0, DUE_MS_MAX)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Draw a key type, at least one change with keys of it, and the dues of the puts, if there are any."""
    key_type = draw(st.sampled_from(KeyType))
    group, key = st.integers(0, 65535), KEYS[key_type]
    put = st.tuples(group, st.just(PUT), key, st.binary(max_size=60))
    delete = st.tuples(group, st.just(DELETE), key, st.none())
    rows = draw(st.lists(st.one_of(put, delete), min_size=1, max_size=30))
    dues = draw(st.none() | st.lists(DUES, min_size=len(rows), max_size=len(rows)))
    return key_type, rows, dues and [due if row[1] == PUT else None for row, due in zip(rows, dues, strict=True)]


@settings(deadline=None)
@given(log=logs(), sqn=st.integers(0, (1 << 63) - 1), index=st.integers(0, (1 << 31) - 1), size=st.integers(1, 500))
def test_what_goes_in_comes_out(log: Log, sqn: int, index: int, size: int) -> None:
    """Changes cut into slices of any size, encoded and decoded, are the same in the same order."""
    key_type, rows, dues = log
    batch = rows_batch(rows, key_type, dues=dues)
    found = list[pa.RecordBatch]()
    for piece in chunk_slices(batch, size, 15 << 20):
        value = chunk_of(piece, sqn=sqn, index=index).value
        head_at = decode_head(value)
        assert head_at is not None
        head, at = head_at
        assert (head.sqn, head.index, head.changes) == (sqn, index, piece.num_rows)
        assert head.has_due is (dues is not None)
        found.append(decode_batches(VerifiedChunks.of(value, head, at), without_due(batch.schema)))
    assert pa.Table.from_batches(found).to_pylist() == batch.to_pylist()


@settings(deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=20), DUES), min_size=1, max_size=60
    ),
    is_timed=st.booleans(),
    partitions=st.integers(1, 64),
    prefix_bytes=st.none() | st.integers(1, 8),
    index=st.integers(0, (1 << 31) - 1),
)
def test_few_changes_are_as_arrow_has_them(
    changes: list[tuple[bytes, bytes | None, int | None]],
    is_timed: bool,
    partitions: int,
    prefix_bytes: int | None,
    index: int,
) -> None:
    """Few changes make the same chunks, byte for byte, as the same changes in Arrow."""
    keys, values = [key for key, _, _ in changes], [value for _, value, _ in changes]
    dues = [None if value is None else due for _, value, due in changes] if is_timed else None
    ops = [int(value is None) for value in values]
    groups = [key_group_of(key, KeyType.BYTES, 64, prefix_bytes) for key in keys]
    whole = rows_batch(list(zip(groups, ops, keys, values, strict=True)), dues=dues)
    parts = [(number, _rebuilt(only_used(part))) for number, part in split(whole, partitions, 64)]
    few = FewChanges.of(keys, values, 64, prefix_bytes, dues)
    assert few.nbytes == sum(int(row_sizes(column).sum()) for column in whole.columns)
    found = few.split(partitions, 64)
    assert [number for number, _ in found] == [number for number, _ in parts]
    for (_, mine), (_, theirs) in zip(found, parts, strict=True):
        assert chunk_of(mine, index=index) == chunk_of(theirs, index=index)


def _rebuilt(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch as Arrow makes it of plain rows: without what its buffers have of other batches."""
    columns = [pa.array(column.to_pylist(), column.type) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


@given(number=st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_are_as_avro_has_them(number: int) -> None:
    """A number put into a head by itself has the bytes that a codec writes."""
    found = io.BytesIO()
    schemaless_writer(found, parse_schema({"type": "long"}), number)
    assert long_bytes(number) == found.getvalue()


@settings(deadline=None)
@given(numbers=st.tuples(*[st.integers(0, (1 << 31) - 1)] * 5), longs=st.tuples(*[st.integers(0, (1 << 63) - 2)] * 3))
def test_a_head_is_as_a_codec_has_it(numbers: tuple[int, ...], longs: tuple[int, ...]) -> None:
    """A head that is put together of parts is the record that the codec writes."""
    index, first, last, changes, value_schema_id = numbers
    epoch, sqn, position = longs
    witness = Place(position + 1, LastRecord(position, 77))
    before, behind = around(epoch, bytes(16), sqn, index, value_schema_id, witness, b"key")
    head = {"epoch": epoch, "nonce": bytes(16), "sqn": sqn, "index": index, "first_key_group": first}
    head |= {"last_key_group": last, "changes": changes, "value_schema_id": value_schema_id}
    head |= {**witness.to_fields("witness"), "seal": behind[-8:]}
    middle = b"".join(map(long_bytes, (first, last, changes)))
    assert before + middle + behind == RecordCodec("chunk_head").encode(head)


@settings(deadline=None, max_examples=30)
@given(log=logs(), mask=st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(log: Log, mask: int) -> None:
    """With any one byte changed a chunk is a stranger's, of an unknown format, or corrupt: never another value."""
    key_type, rows, dues = log
    value = chunk_of(rows_batch(rows, key_type, dues=dues)).value
    for place in range(len(value)):
        changed = bytearray(value)
        changed[place] ^= mask
        try:
            found = decode_head(bytes(changed))
        except (CorruptChunk, UnknownFormat):
            continue
        assert found is None and place < MAGIC_BYTES, place


@settings(deadline=None, max_examples=200)
@given(log=logs(), cut=st.floats(0, 1, exclude_max=True), tail=st.binary(min_size=1, max_size=16))
def test_cut_or_longer_chunks_are_noticed(log: Log, cut: float, tail: bytes) -> None:
    """A chunk that lost its end or gained one is never taken for another."""
    key_type, rows, dues = log
    value = chunk_of(rows_batch(rows, key_type, dues=dues)).value
    for damaged in (value[: int(len(value) * cut)], value + tail):
        try:
            found = decode_head(damaged)
        except CorruptChunk:
            continue
        assert found is None and len(damaged) < MAGIC_BYTES
