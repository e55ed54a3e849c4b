"""The two uses of Avro: one record inside a Kafka record, and one record as a file.

- In Kafka: Avro's single-object encoding (`C3 01`, the schema's CRC-64-AVRO fingerprint, the datum).
- As a file: an ordinary Avro object container with exactly one record, which any Avro tool opens. Its sync marker is
  the xxh3-128 of the record's bytes, so that damage is detected.

Invariants:
- Bytes are decoded only after their checksum was verified, and only with our own schema of their format version. The
  schema text inside a file is for other tools; statelog never interprets it.
- A decoder consumes its input to the last byte.
"""

import io
import json
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar, cast

import xxhash
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form

from statelog.errors import Corrupt, Misuse, UnknownFormat

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Datum = Mapping[str, Any]
"""One record as Avro's reader and writer take it. The schema defines names and types."""
T = TypeVar("T")

_SINGLE_OBJECT = b"\xc3\x01"
_SINGLE_OBJECT_BYTES = 10
_CONTAINER_MAGIC = b"Obj\x01"
_FORMAT_KEY = "statelog.format"
_META_KEYS = {"avro.schema", "avro.codec", _FORMAT_KEY}
_CONTAINER_HEADER = parse_schema(
    {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
        ],
    }
)
_DECODING_ERRORS = (EOFError, ValueError, TypeError, LookupError, OverflowError, MemoryError, struct.error)
_LONG = parse_schema({"type": "long"})
_BYTES_OF = tuple(bytes((one,)) for one in range(256))
_BYTES = parse_schema({"type": "bytes"})


def datum_of(value: "DataclassInstance", **others: object) -> dict[str, Any]:
    """Return a dataclass as a datum: its fields by name, replaced by `others` where Avro has another form."""
    return {name: getattr(value, name) for name in _names(type(value))} | others


@cache
def _names(kind: "type[DataclassInstance]") -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def long_bytes(number: int) -> bytes:
    """Encode an `int` or a `long`: zigzag, seven bits to a byte."""
    left = number << 1 if number >= 0 else ~number << 1 | 1
    if left < 0x80:
        return _BYTES_OF[left]
    if left < 0x4000:
        return _BYTES_OF[left & 0x7F | 0x80] + _BYTES_OF[left >> 7]
    if left < 0x200000:
        return bytes((left & 0x7F | 0x80, left >> 7 & 0x7F | 0x80, left >> 14))
    found = bytearray()
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def blob(data: bytes) -> bytes:
    """Encode a `bytes`, or a `string` in UTF-8."""
    return long_bytes(len(data)) + data


def block(items: Sequence[bytes]) -> bytes:
    """Encode an `array` of encoded items, or a `map` of encoded pairs."""
    return b"".join((long_bytes(len(items)), *items, b"\0")) if items else b"\0"


def _load(avsc: str) -> dict[str, object]:
    text = resources.files("statelog.schemas").joinpath("avsc").joinpath(f"{avsc}.avsc").read_text("utf-8")
    return cast("dict[str, object]", json.loads(text))


class RecordCodec:
    """Encodes and decodes one kind of record, whose schema is `avsc/<name>.avsc`.

    `earlier` names older schemas that are still read; their records lack fields.
    """

    def __init__(self, avsc: str, *, earlier: Collection[str] = ()) -> None:
        raw = _load(avsc)
        self.text = json.dumps(raw, separators=(",", ":"))
        self._schema = parse_schema(raw)
        checksum = fingerprint(to_parsing_canonical_form(self._schema), "CRC-64-AVRO")
        self.prefix = _SINGLE_OBJECT + bytes.fromhex(checksum)
        """The first bytes of its single-object encoding: a marker and the schema's fingerprint."""
        self._earlier = {codec.prefix: codec for codec in map(RecordCodec, earlier)}

    def encode_datum(self, record: Datum) -> bytes:
        """Encode the bare datum, without any header."""
        out = io.BytesIO()
        schemaless_writer(out, self._schema, record)
        return out.getvalue()

    def encode(self, record: Datum) -> bytes:
        """Encode the record in Avro's single-object encoding."""
        return self.prefix + self.encode_datum(record)

    def decode_datum(self, data: bytes) -> tuple[dict[str, Any], int]:
        """Decode one datum at the start of `data`. Return it with its size in bytes. Raises Corrupt."""
        source = io.BytesIO(data)
        try:
            record = schemaless_reader(source, self._schema, None)
        except _DECODING_ERRORS as error:
            raise Corrupt(f"an Avro datum does not decode: {error}", bytes=len(data)) from error
        return cast("dict[str, Any]", record), source.tell()

    def decode_whole(self, data: bytes) -> dict[str, Any]:
        """Decode `data` as one single-object record. Raises Corrupt if it is not exactly one of this kind."""
        record, size = self.decode(data)
        if size != len(data):
            raise Corrupt("there are bytes after an Avro record", size_bytes=len(data), follow=len(data) - size)
        return record

    def decode(self, data: bytes) -> tuple[dict[str, Any], int]:
        """Decode one single-object record at the start of `data`. Return it with its size in bytes.

        Raises Corrupt if it is not this kind of record. The caller checks the bytes that follow.
        """
        if data[:_SINGLE_OBJECT_BYTES] != self.prefix:
            older = self._earlier.get(data[:_SINGLE_OBJECT_BYTES])
            if older is not None:
                return older.decode(data)
            raise Corrupt(
                "an Avro record carries another schema's fingerprint", found=data[:_SINGLE_OBJECT_BYTES].hex()
            )
        record, size = self.decode_datum(data[_SINGLE_OBJECT_BYTES:])
        return record, _SINGLE_OBJECT_BYTES + size


class FileCodec:
    """Encodes and decodes a file that holds one record: an Avro object container, format version `version`.

    `earlier` names the schemas of older versions that are still read; their records may lack fields.
    """

    def __init__(self, avsc: str, version: int, error: type[Corrupt], earlier: Mapping[int, str] | None = None) -> None:
        self._codec = RecordCodec(avsc)
        self._readers = {version: self._codec, **{v: RecordCodec(name) for v, name in (earlier or {}).items()}}
        self._version = version
        self._error = error

    def encode(self, record: Datum) -> bytes:
        """Return the content of the file."""
        datum = self._codec.encode_datum(record)
        sync = xxhash.xxh3_128_digest(datum)
        meta = {
            "avro.schema": self._codec.text.encode(),
            "avro.codec": b"null",
            _FORMAT_KEY: str(self._version).encode(),
        }
        out = io.BytesIO()
        schemaless_writer(out, _CONTAINER_HEADER, {"magic": _CONTAINER_MAGIC, "meta": meta, "sync": sync})
        schemaless_writer(out, _LONG, 1)
        schemaless_writer(out, _BYTES, datum)
        out.write(sync)
        return out.getvalue()

    def decode(self, data: bytes, path: str, make: Callable[[Datum], T]) -> T:
        """Decode the file at `path`, and return what `make` builds of its record.

        `make` checks the record like any caller's input. Raises this codec's Corrupt class, or UnknownFormat for a
        newer format version.
        """
        try:
            datum = self._decode(data)
        except (Corrupt, *_DECODING_ERRORS) as error:
            raise self._error(f"{path} is damaged: {error}", path=path, size_bytes=len(data)) from error
        try:
            return make(datum)
        except self._error:
            raise
        except (Corrupt, Misuse, ValueError) as error:
            raise self._error(f"{path} holds impossible values: {error}", path=path) from error

    def _decode(self, data: bytes) -> dict[str, Any]:
        source = io.BytesIO(data)
        header = cast("dict[str, object]", schemaless_reader(source, _CONTAINER_HEADER, None))
        if header["magic"] != _CONTAINER_MAGIC:
            raise Corrupt("it is not an Avro file")
        meta = cast("dict[str, bytes]", header["meta"])
        if meta.keys() != _META_KEYS:
            raise Corrupt("its header has unexpected keys")
        version = int(meta[_FORMAT_KEY])
        if version > self._version:
            raise UnknownFormat("a file has a newer format version", found=version, known=self._version)
        if version not in self._readers or meta["avro.codec"] != b"null":
            raise Corrupt(f"it has format version {version}, codec {meta['avro.codec']!r}")
        count = schemaless_reader(source, _LONG, None)
        datum = cast("bytes", schemaless_reader(source, _BYTES, None))
        if count != 1 or not data[source.tell() :] == header["sync"] == xxhash.xxh3_128_digest(datum):
            raise Corrupt("its checksum differs")
        record, size = self._readers[version].decode_datum(datum)
        if size != len(datum):
            raise Corrupt(f"{len(datum) - size} bytes follow its record")
        return record
