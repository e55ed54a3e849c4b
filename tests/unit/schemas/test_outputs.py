"""Messages: what can be sent, and the bytes of output chunks."""

import struct
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from statelog.errors import CorruptChunk, InvalidChange, UnknownFormat
from statelog.schemas.avro import RecordCodec
from statelog.schemas.changes.chunk import decode_head
from statelog.schemas.outputs.batch import OUTPUT_SCHEMA, output_bytes_max, serialize_outputs
from statelog.schemas.outputs.chunk import decode_output_head
from statelog.schemas.outputs.output import Output, is_topic, make_output, mark_of
from tests.support.samples.chunks import KEY, NONCE, chunk_of, mutations, rows_batch
from tests.support.samples.outputs import OUTPUTS, output_chunk_of, outputs_in


class Topics(StrEnum):
    """Names of topics, as a program may keep them."""

    ORDERS = "orders"


class Tagged(bytes):
    """Bytes of a caller's own class."""


# ---- what can be sent


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (("t", b"v"), Output("t", b"v")),
        (("t", "é", "k"), Output("t", "é".encode(), b"k")),
        (("t", None, b"k"), Output("t", None, b"k")),
        (("t", b"", b"", dict[str, bytes](), 0), Output("t", b"", b"", (), 0)),
        (("t", b"v", None, {"a": "1", "b": None}), Output("t", b"v", None, (("a", b"1"), ("b", None)))),
        (("t", b"v", None, [("a", b"1"), ["a", "2"]]), Output("t", b"v", None, (("a", b"1"), ("a", b"2")))),
    ],
)  # fmt: skip
def test_what_a_caller_gives_becomes_a_message(given: tuple[Any, ...], made: Output) -> None:
    """Text becomes UTF-8, headers become pairs in their order, and None stays."""
    assert make_output(*given) == made
    assert make_output(*made) == made


def test_a_message_holds_nothing_of_a_callers_classes() -> None:
    """A name of an enum and bytes of another class become plain ones, and what is done to a list later is too late."""
    headers = [("a", b"1")]
    made = make_output(Topics.ORDERS, Tagged(b"v"), Tagged(b"k"), headers)
    headers.append(("b", b"2"))
    assert made == Output("orders", b"v", b"k", (("a", b"1"),))
    assert (type(made.topic), type(made.value), type(made.key)) == (str, bytes, bytes)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "ä", "a b", "x" * 250, "a\n", b"t", None, 1])
def test_a_wrong_topic_is_refused(topic: Any) -> None:
    """Only names that Kafka allows are topics."""
    with pytest.raises(InvalidChange, match="topic"):
        make_output(topic, b"v")


def test_a_topic_of_the_longest_name_is_taken() -> None:
    """Kafka's longest name, and all of its characters, are taken."""
    assert is_topic("a.B_9-" + "x" * 243)


@pytest.mark.parametrize("data", [1, 1.5, {"a": 1}, [1], bytearray(b"v"), memoryview(b"v"), "\ud800", object()])
def test_wrong_data_is_refused(data: Any) -> None:
    """Value, key and header are bytes, text or nothing; what could change later is refused, too."""
    with pytest.raises(InvalidChange, match="value"):
        make_output("t", data)
    with pytest.raises(InvalidChange, match="key"):
        make_output("t", b"v", data)
    with pytest.raises(InvalidChange, match="value of a header"):
        make_output("t", b"v", headers={"a": data})


@pytest.mark.parametrize(
    "headers", ["ab", b"ab", 1, ["ab"], [("a",)], [("a", b"1", b"2")], [(b"a", b"1")], [(None, b"1")], {1: b"1"}]
)
def test_wrong_headers_are_refused(headers: Any) -> None:
    """Headers are names with values, and nothing else."""
    with pytest.raises(InvalidChange, match="headers"):
        make_output("t", b"v", headers=headers)


def test_the_own_header_is_refused() -> None:
    """A caller cannot set the header by which repeats are known, nor one whose name is no text."""
    with pytest.raises(InvalidChange, match="own"):
        make_output("t", b"v", headers={"statelog": b"x"})
    with pytest.raises(InvalidChange, match="UTF-8"):
        make_output("t", b"v", headers={"\ud800": b"x"})


@pytest.mark.parametrize("partition", [-1, 1 << 31, 1.0, "1", True])
def test_a_wrong_partition_is_refused(partition: Any) -> None:
    """A partition is a whole number of 32 bits."""
    with pytest.raises(InvalidChange, match="partition"):
        make_output("t", b"v", partition=partition)


def test_a_mark_names_where_a_message_left() -> None:
    """The header names log, writer, position and number: commits of two writers may share a position."""
    assert mark_of("visits", "web", 7, 0) == b"visits/web/7/0"


# ---- bytes


def _arrow(outputs: list[Output]) -> pa.RecordBatch:
    rows = [
        {**one._asdict(), "headers": [{"name": name, "value": value} for name, value in one.headers]} for one in outputs
    ]
    return pa.RecordBatch.from_pylist(rows, schema=OUTPUT_SCHEMA)


@pytest.mark.parametrize(
    "outputs", [OUTPUTS, OUTPUTS[:1], OUTPUTS[2:3], OUTPUTS * 40, [Output("t", b"v", b"k", (), 1)]]
)
def test_messages_survive_a_chunk(outputs: list[Output]) -> None:
    """Messages of every kind, few and many, come out as they went in; Arrow reads what plain Python wrote."""
    assert outputs_in(output_chunk_of(outputs).value) == outputs
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(serialize_outputs(outputs)), OUTPUT_SCHEMA)
    batch.validate(full=True)
    assert batch.equals(_arrow(outputs))


def test_the_head_says_where_messages_belong() -> None:
    """The head names the change set and the place of its writer, and its messages begin at a multiple of 8."""
    chunk = output_chunk_of(OUTPUTS, sqn=5, index=2)
    found = decode_output_head(chunk.value)
    assert found is not None
    head, at = found
    assert (head.epoch, head.nonce, head.sqn, head.index, head.messages) == (7, NONCE, 5, 2, 4)
    assert (head.checksum, head.place.position, at % 8) == (chunk.checksum, 11, 0)
    assert head.is_sealed(KEY)
    assert not head.is_sealed(bytes(16))


def test_an_output_chunk_is_foreign_to_readers_of_changes() -> None:
    """A reader of changes takes it for a stranger's record, and so does a reader of messages a chunk of changes."""
    assert decode_head(output_chunk_of(OUTPUTS).value) is None
    assert decode_output_head(chunk_of(rows_batch([(1, 0, b"k", b"v")])).value) is None
    assert decode_output_head(b"") is None


def test_every_changed_byte_is_detected() -> None:
    """A changed, missing or added byte makes a record foreign, of a newer version, or corrupt; never other messages."""
    value = output_chunk_of(OUTPUTS[:3]).value
    for damaged in mutations(value):
        try:
            assert decode_output_head(damaged) is None
        except (CorruptChunk, UnknownFormat):
            continue
        assert damaged[:4] != b"SLOU"


def _sealed(rest: bytes, version: int = 1) -> bytes:
    return b"SLOU" + bytes([version, 0, 0, 0]) + struct.pack("<Q", xxhash.xxh3_64_intdigest(rest)) + rest


def _with_batch(batch: bytes, messages: int) -> bytes:
    names = ("epoch", "sqn", "index", "witness", "witness_offset")
    datum = {
        "nonce": NONCE,
        "seal": bytes(8),
        "witness_hash": bytes(8),
        "messages": messages,
        **dict.fromkeys(names, 0),
    }
    head = RecordCodec("output_head").encode(datum)
    return _sealed(head + bytes(-(16 + len(head)) % 8) + batch)


def test_a_newer_version_stops_the_reader() -> None:
    """A newer version is an unknown format, and not damage."""
    with pytest.raises(UnknownFormat):
        decode_output_head(_sealed(b"whatever", version=2))


def test_a_right_checksum_over_garbage_is_corrupt() -> None:
    """A head of another schema, or none, is corrupt."""
    for rest in (b"", b"\xc3\x01" + bytes(60), chunk_of(rows_batch([(1, 0, b"k", b"v")])).value[16:]):
        with pytest.raises(CorruptChunk):
            decode_output_head(_sealed(rest))


@pytest.mark.parametrize("messages", [0, 3, 5])
def test_another_number_of_messages_is_corrupt(messages: int) -> None:
    """A head with another number than its messages is corrupt, and so is a chunk without any."""
    with pytest.raises(CorruptChunk, match="number"):
        outputs_in(_with_batch(serialize_outputs(OUTPUTS), messages))


@pytest.mark.parametrize(
    "row",
    [
        {"topic": None, "headers": []},
        {"topic": "a/b", "headers": []},
        {"topic": "t", "partition": -1, "headers": []},
        {"topic": "t", "headers": None},
        {"topic": "t", "headers": [None]},
        {"topic": "t", "headers": [{"name": None, "value": b"v"}]},
    ],
)
def test_impossible_messages_are_corrupt(row: dict[str, object]) -> None:
    """What `make_output` would refuse is refused in a chunk, too."""
    batch = pa.RecordBatch.from_pylist([row], schema=OUTPUT_SCHEMA)
    with pytest.raises(CorruptChunk):
        outputs_in(_with_batch(batch.serialize().to_pybytes(), 1))


def test_damaged_offsets_are_refused() -> None:
    """An offset outside of the record is an error, and no foreign memory is read."""
    batch, ends = serialize_outputs([Output("t", b"v", b"key")] * 3), struct.pack("<iiii", 0, 3, 6, 9)
    assert batch.count(ends) == 1
    with pytest.raises(CorruptChunk):
        outputs_in(_with_batch(batch.replace(ends, struct.pack("<iiii", 0, 1 << 30, 6, 9)), 3))


def test_compressed_messages_are_refused() -> None:
    """Compressed messages are refused before they are expanded, whatever their checksum."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, OUTPUT_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(_arrow([Output("t", bytes(64 << 20))]))
    source = pa.BufferReader(stream.getvalue())
    pa.ipc.read_message(source)  # the schema
    compressed = pa.ipc.read_message(source).serialize().to_pybytes()
    with pytest.raises(CorruptChunk, match="compressed"):
        outputs_in(_with_batch(compressed, 1))


@pytest.mark.parametrize("record_bytes_max", [1 << 20, 16 << 20])
def test_the_largest_message_fits_in_a_record(record_bytes_max: int) -> None:
    """A message of the largest size fits in a record with Kafka's framing, whatever it consists of."""
    most = output_bytes_max(record_bytes_max)
    small = Output("t", b"", b"k", (("name", b"v"),) * 9)
    large = small._replace(value=bytes(most - small.size_bytes))
    assert large.size_bytes == most
    assert len(output_chunk_of([large]).value) <= record_bytes_max - 512


def test_a_size_is_an_upper_bound() -> None:
    """The size by which a buffer counts is no less than what more messages of the kind add."""
    for one in OUTPUTS:
        grown = len(serialize_outputs([one] * 1_000)) - len(serialize_outputs([one] * 200))
        assert grown <= one.size_bytes * 800
