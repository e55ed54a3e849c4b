"""Chunks: the bytes of a record of the data topic."""

import struct
from dataclasses import replace

import pyarrow as pa
import pytest
import xxhash

from statelog.errors import CorruptChunk, UnknownFormat
from statelog.schemas.avro import RecordCodec
from statelog.schemas.changes.changes import DELETE, OPAQUE, PUT, change_schema
from statelog.schemas.changes.chunk import (
    VerifiedChunks,
    combine_checksums,
    decode_batches,
    decode_head,
)
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import Place
from tests.support.samples.chunks import KEY, NONCE, chunk_of, rows_batch
from tests.support.samples.folds import Row

SCHEMA = change_schema(KeyType.BYTES)
BATCH = rows_batch([(4, PUT, b"a", b"1"), (4, DELETE, b"b", None), (9, PUT, b"c", b"")])


def sealed(rest: bytes, version: int = 2, reserved: bytes = bytes(3)) -> bytes:
    """Return a record with a right checksum over any `rest`."""
    checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(rest, 3 if version == 3 else 0))
    return b"SLCK" + bytes([version]) + reserved + checksum + rest


def decoded(value: bytes, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return the changes of a chunk."""
    found = decode_head(value)
    assert found is not None
    head, at = found
    return decode_batches(VerifiedChunks.of(value, head, at), schema)


def test_round_trip() -> None:
    """A chunk decodes to the head and the changes that were encoded, and starts its changes at a multiple of 8."""
    chunk = chunk_of(BATCH, index=2, value_schema_id=5)
    found = decode_head(chunk.value)
    assert found is not None
    head, at = found
    assert head == replace(head, witness=11, witness_offset=10, checksum=chunk.checksum)
    assert (head.epoch, head.nonce, head.sqn, head.index, head.changes) == (7, NONCE, 3, 2, 3)
    assert (head.first_key_group, head.last_key_group, head.value_schema_id) == (4, 9, 5)
    assert at % 8 == 0
    assert decode_batches(VerifiedChunks.of(chunk.value, head, at), SCHEMA).equals(BATCH)


def test_largest_head() -> None:
    """Numbers at the ends of their ranges fit in the head."""
    codec = RecordCodec("chunk_head")
    names = ("index", "first_key_group", "last_key_group", "changes", "value_schema_id")
    rest = {"witness": -(1 << 63), "witness_offset": -(1 << 63), "witness_hash": bytes(8), "seal": bytes(8)}
    record = {"epoch": -(1 << 63), "nonce": NONCE, "sqn": (1 << 63) - 1, **dict.fromkeys(names, -(1 << 31)), **rest}
    found = decode_head(sealed(codec.encode(record)))
    assert found is not None
    assert (found[0].epoch, found[0].sqn, found[0].index) == (-(1 << 63), (1 << 63) - 1, -(1 << 31))


def test_decoding_does_not_copy() -> None:
    """A decoded batch points into the record."""
    chunk = chunk_of(rows_batch([(1, PUT, b"k", bytes(100_000))]))
    allocated = pa.total_allocated_bytes()
    batch = decoded(chunk.value)
    assert batch.num_rows == 1
    assert pa.total_allocated_bytes() - allocated < 10_000


def test_slices_carry_only_their_rows() -> None:
    """A chunk of a few rows of a large batch is small, and its bytes do not depend on the batch it was cut from."""
    large = rows_batch([(i % 3, PUT, b"%d" % i, bytes(100)) for i in range(1000)])
    few = chunk_of(large.slice(500, 2))
    assert len(few.value) < 1500
    assert decoded(few.value).equals(large.slice(500, 2))


@pytest.mark.parametrize(
    ("key_type", "keys"),
    [(KeyType.STRING, ["", "Zürich"]), (KeyType.LONG, [-1, 1 << 62]), (KeyType.BYTES, [b"", b"x"])],
)
def test_key_types_and_typed_values(key_type: KeyType, keys: list[object]) -> None:
    """Keys of each type and struct values survive."""
    value_type = pa.struct([("name", pa.string()), ("tags", pa.list_(pa.string()))])
    rows = [(1, PUT, keys[0], {"name": "a", "tags": ["x", None]}), (1, DELETE, keys[1], None)]
    batch = rows_batch(rows, key_type, value_type)
    assert decoded(chunk_of(batch).value, batch.schema).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("value", [b"", b"SLC", b"slck" + bytes(100), b"SLLG" + bytes(60)])
def test_strangers_are_void(value: bytes) -> None:
    """A record without the magic is no chunk, and no error."""
    assert decode_head(value) is None


@pytest.mark.parametrize("size", [4, 15, 16, 60, -1])
def test_cut_short(size: int) -> None:
    """A chunk without its end is corrupt."""
    with pytest.raises(CorruptChunk):
        decode_head(chunk_of(BATCH).value[:size])


def test_newer_version() -> None:
    """A newer version stops the reader, which cannot interpret it."""
    with pytest.raises(UnknownFormat):
        decode_head(sealed(b"whatever", version=4))


@pytest.mark.parametrize(("version", "reserved"), [(0, bytes(3)), (1, bytes(3)), (2, b"\0\0\1"), (3, b"\0\0\1")])
def test_prefix_is_checked(version: int, reserved: bytes) -> None:
    """A version that differs from the head's, and reserved bytes in use, are corrupt, even under a right checksum."""
    rest = chunk_of(BATCH).value[16:]
    with pytest.raises(CorruptChunk):
        decode_head(sealed(rest, version, reserved))


def test_right_checksum_over_garbage() -> None:
    """A head of another Avro schema, or none, is corrupt."""
    for rest in (b"", b"\xc3\x01" + bytes(60), chunk_of(BATCH).value[16:40]):
        with pytest.raises(CorruptChunk):
            decode_head(sealed(rest))


def test_empty_chunk() -> None:
    """A chunk without changes, which no writer makes, is corrupt."""
    names = (
        "epoch",
        "sqn",
        "index",
        "first_key_group",
        "last_key_group",
        "changes",
        "value_schema_id",
        "witness",
        "witness_offset",
    )
    datum = RecordCodec("chunk_head").encode(
        {"nonce": NONCE, "seal": bytes(8), "witness_hash": bytes(8), **dict.fromkeys(names, 0)}
    )
    datum += bytes(-(16 + len(datum)) % 8)
    with pytest.raises(CorruptChunk, match="number of changes"):
        decoded(sealed(datum + bytes(memoryview(rows_batch([]).serialize()))))


@pytest.mark.parametrize("changed", [{"changes": 2}, {"first_key_group": 3}, {"last_key_group": 8}, {"changes": 4}])
def test_head_that_contradicts_its_changes(changed: dict[str, int]) -> None:
    """A head with another number of changes or other key groups than its changes is corrupt."""
    head: dict[str, object] = {
        "epoch": 7, "nonce": NONCE, "sqn": 3, "index": 0,
        "first_key_group": 4, "last_key_group": 9, "changes": 3, "value_schema_id": 0, "witness": 0, "seal": bytes(8),
        "witness_offset": 0, "witness_hash": bytes(8),
    }  # fmt: skip
    datum = RecordCodec("chunk_head").encode(head | changed)
    datum += bytes(-(16 + len(datum)) % 8)
    with pytest.raises(CorruptChunk):
        decoded(sealed(datum + bytes(memoryview(BATCH.serialize()))))


def test_another_schema() -> None:
    """Changes that do not fit the log's schema are corrupt."""
    typed = change_schema(KeyType.BYTES, pa.struct([("a", pa.int64()), ("b", pa.string())]))
    with pytest.raises(CorruptChunk):
        decoded(chunk_of(BATCH).value, typed)


@pytest.mark.parametrize("row", [(None, PUT, b"k", b"v"), (1, None, b"k", b"v"), (1, PUT, None, b"v")])
def test_changes_without_key_group_op_or_key(row: tuple[int, int, object, object]) -> None:
    """A chunk that lacks key group, op or key is corrupt."""
    good = rows_batch([(1, PUT, b"k", b"v"), (1, PUT, b"k", b"v")])
    bad = rows_batch([(1, PUT, b"k", b"v"), row])
    whole = chunk_of(good).value
    found = decode_head(whole)
    assert found is not None
    with pytest.raises(CorruptChunk, match="without"):
        decoded(sealed(whole[16 : found[1]] + bytes(memoryview(bad.serialize()))))


def _resealed(batch_bytes: bytes, whole: bytes = b"") -> bytes:
    """Return a chunk with the head of BATCH's, or of another chunk, over other Arrow bytes."""
    whole = whole or chunk_of(BATCH).value
    found = decode_head(whole)
    assert found is not None
    return sealed(whole[16 : found[1]] + batch_bytes)


def test_compressed_changes_are_refused() -> None:
    """Compressed changes, 33 KB for a gigabyte, are refused before they are expanded, whatever their checksum."""
    bomb = rows_batch([(1, PUT, b"k", bytes(64 << 20))])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, bomb.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(bomb)
    source = pa.BufferReader(stream.getvalue())
    pa.ipc.read_message(source)  # the schema
    compressed = pa.ipc.read_message(source).serialize().to_pybytes()
    assert len(compressed) < 1 << 20
    whole = chunk_of(rows_batch([(1, PUT, b"k", b"")])).value
    with pytest.raises(CorruptChunk, match="compressed"):
        decoded(_resealed(compressed, whole))


def test_offsets_outside_the_record_are_refused() -> None:
    """An offset outside of the record, as of a key that claims to end far behind it, is an error.

    No foreign memory is read.
    """
    batch = bytes(memoryview(BATCH.serialize()))
    ends = struct.pack("<iiii", 0, 1, 2, 3)
    assert batch.count(ends) == 1
    with pytest.raises(CorruptChunk):
        decoded(_resealed(batch.replace(ends, struct.pack("<iiii", 0, 1 << 30, 2, 3))))


@pytest.mark.parametrize("row", [(1, 7, b"k", b"v"), (1, PUT, b"k", None), (1, DELETE, b"k", b"v")])
def test_changes_that_are_no_changes(row: tuple[int, int, object, object]) -> None:
    """A third kind of op, a put without a value and a delete with one are corrupt."""
    whole = chunk_of(rows_batch([(1, PUT, b"k", b"v")])).value
    with pytest.raises(CorruptChunk, match="neither"):
        decoded(_resealed(bytes(memoryview(rows_batch([row]).serialize())), whole))


def test_every_change_is_one_of_the_two_kinds() -> None:
    """A delete with a value does not compensate for a put without one."""
    whole = chunk_of(rows_batch([(1, PUT, b"k", b"v"), (1, DELETE, b"l", None)])).value
    bad = rows_batch([(1, PUT, b"k", None), (1, DELETE, b"l", b"v")])
    with pytest.raises(CorruptChunk, match="neither a put"):
        decoded(_resealed(bytes(memoryview(bad.serialize())), whole))


def _verified(*values: bytes) -> VerifiedChunks:
    chunks = VerifiedChunks()
    for value in values:
        found = decode_head(value)
        assert found is not None
        chunks.add(value, *found)
    return chunks


def test_several_chunks_come_out_in_order() -> None:
    """Chunks that are decoded together hold what each holds, in order."""
    others = [rows_batch([(2, PUT, b"z", b"")]), rows_batch([(3, DELETE, b"a", None), (8, PUT, b"", b"x" * 99)])]
    found = decode_batches(_verified(*(chunk_of(batch).value for batch in (BATCH, *others))), SCHEMA)
    assert pa.Table.from_batches([found]).equals(pa.Table.from_batches([BATCH, *others]).combine_chunks())


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(
    "rows",
    [
        [(1, PUT, b"k", None)],
        [(1, DELETE, b"k", b"v")],
        [(1, PUT, None, b"v")],
        [(None, PUT, b"k", b"v")],
        [(0, PUT, b"k", b"v")],
        [(2, PUT, b"k", b"v")],
        [(1, PUT, b"k", b"v")] * 2,
    ],
)
def test_one_corrupt_chunk_of_several_is_noticed(at: int, rows: list[Row]) -> None:
    """One corrupt chunk is noticed, whatever chunks are before and behind it."""
    good, put = chunk_of(BATCH).value, chunk_of(rows_batch([(1, PUT, b"k", b"v")])).value
    bad = _resealed(bytes(memoryview(rows_batch(rows).serialize())), put)
    chunks = [good, good]
    chunks.insert(at, bad)
    with pytest.raises(CorruptChunk):
        decode_batches(_verified(*chunks), SCHEMA)


def test_checksum_of_a_change_set() -> None:
    """The checksum of a change set covers every chunk's checksum, in order, and is that of their concatenated bytes."""
    checksums = [chunk_of(BATCH, index=index).checksum for index in range(3)]
    combined = combine_checksums(checksums)
    assert combined == xxhash.xxh3_64_intdigest(b"".join(one.to_bytes(8, "little") for one in checksums))
    assert combined != combine_checksums(checksums[::-1])
    assert combined != combine_checksums(checksums[:2])


def test_a_chunk_of_version_1_is_read() -> None:
    """A chunk of version 1 names a position without the record below it.

    Its seal still says whether its author knew the log.
    """
    whole = chunk_of(rows_batch([(5, PUT, b"k", b"v")])).value
    found = decode_head(whole)
    assert found is not None
    head = bytes.fromhex(
        "c301aa17d251f9a810470e000102030405060708090a0b0c0d0e0f06000a0a020016eb6ac4491d64cabc000000000000"
    )
    older = decode_head(sealed(head + whole[found[1] :], version=1))
    assert older is not None
    assert older[0].place == Place(11)
    assert older[0].is_sealed(KEY)
    assert decode_batches(VerifiedChunks.of(sealed(head + whole[found[1] :], version=1), *older), SCHEMA).num_rows == 1


def test_a_witness_is_under_the_seal() -> None:
    """The position and the record below it can be changed only by a program that knows the log."""
    found = decode_head(chunk_of(BATCH).value)
    assert found is not None
    head = found[0]
    assert head.is_sealed(KEY)
    others = [replace(head, witness=3), replace(head, witness_offset=3), replace(head, witness_hash=bytes(8))]
    assert not any(other.is_sealed(KEY) for other in others)


def test_bytes_are_pinned() -> None:
    """The worked example of docs/format-chunk.md: prefix and head, byte by byte."""
    chunk = chunk_of(rows_batch([(5, PUT, b"k", b"v")], value_type=OPAQUE))
    found = decode_head(chunk.value)
    assert found is not None
    seal = "eb03b5568ae5f1ff"
    fingerprint = "d58b37b54624852c"
    witness = "16" + "14" + "8877665544332211"
    assert chunk.value[:8].hex() == "534c434b02000000"
    assert chunk.value[8:16] == struct.pack("<Q", chunk.checksum)
    assert chunk.value[16 : found[1]].hex() == (
        "c301" + fingerprint + "0e" + NONCE.hex() + "06" + "00" + "0a" + "0a" + "02" + "00" + witness + seal + "0" * 10
    )
