"""A stranger: writes batches to a broker that no client of Kafka's makes, byte by byte, past every client's checks.

It owns the bytes of a record batch (format 2) and one Produce request over a plain connection. It knows nothing of
logs.
"""

import gzip
import socket
import struct
import time
from functools import cache

import pyarrow as pa

__all__ = ["CODECS", "batch", "bomb", "cut_gzip", "junk_behind_a_frame", "send"]

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_TIMEOUT_S = 120.0
_CRC = [0] * 256
for _i in range(256):
    _c = _i
    for _ in range(8):
        _c = _c >> 1 ^ (0x82F63B78 if _c & 1 else 0)
    _CRC[_i] = _c


def bomb(count: int, size_bytes: int) -> bytes:
    """Return a batch of so many records of `size_bytes` zeros each, which zstd packs into a few kilobytes."""
    return batch(_zeros(count, size_bytes), count, "zstd")


@cache
def _zeros(count: int, size_bytes: int) -> bytes:
    """Pack the zeros once: it takes a third of a second."""
    return _packed("zstd", b"".join(_record(i, bytes(size_bytes)) for i in range(count)))


def junk_behind_a_frame(value: bytes) -> bytes:
    """Return a batch that the broker takes for sound and the client for broken: bytes lie behind its frame."""
    return batch(_packed("lz4", _record(0, value)) + b"junk", 1, "lz4")


def cut_gzip(value: bytes) -> bytes:
    """Return a batch in two pieces of gzip, both of which the broker unpacks.

    The client unpacks the first, finds half a record there, and raises no error.
    """
    record = _record(0, value)
    half = len(record) // 2
    return batch(gzip.compress(record[:half]) + gzip.compress(record[half:]), 1, "gzip")


def batch(payload: bytes, count: int, codec: str) -> bytes:
    """Return a batch of `count` records, whose bytes are packed already."""
    now_ms = int(time.time() * 1000)
    body = struct.pack(">hiqqqhii", CODECS[codec], count - 1, now_ms, now_ms, -1, -1, -1, count) + payload
    return struct.pack(">qiibI", 0, 9 + len(body), -1, 2, _crc32c(body)) + body


def send(bootstrap: str, topic: str, partition: int, records: bytes) -> int:
    """Append a batch; return the offset of its first record."""
    host, _, port = bootstrap.rpartition(":")
    name = topic.encode()
    request = struct.pack(">hhihhhi", 0, 7, 1, -1, -1, -1, int(_TIMEOUT_S * 1000))
    request += struct.pack(f">ih{len(name)}siii", 1, len(name), name, 1, partition, len(records)) + records
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    error, base = struct.unpack_from(">hq", answer, 18 + len(name))
    assert error == 0, f"the broker refuses the batch with error {error}"
    return int(base)


def _record(number: int, value: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(value)) + value + b"\0"
    return _varint(len(body)) + body


def _packed(codec: str, data: bytes) -> bytes:
    return pa.Codec(codec).compress(data, asbytes=True)


def _varint(number: int) -> bytes:
    left, out = number << 1 ^ number >> 63, b""
    while left > 0x7F:
        out, left = out + bytes([left & 0x7F | 0x80]), left >> 7
    return out + bytes([left])


def _crc32c(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found = _CRC[(found ^ byte) & 0xFF] ^ found >> 8
    return found ^ 0xFFFFFFFF
