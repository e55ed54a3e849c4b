"""Kafka's requests and answers as values, and as bytes again. The types are kio's, of all requests in all versions.

A body is whatever dataclass kio has for it; what a version lacks is no field of it. Pure. Raises kio's errors for bytes
that are none.
"""

import struct
from io import BytesIO
from typing import Any, NamedTuple

from statelog.errors import ConfigError

try:
    from kio.index import load_request_schema, load_response_schema
    from kio.schema.index import api_key_map, schema_name_map
    from kio.serial import entity_reader, entity_writer
except ImportError as absent:
    raise ConfigError(
        "kio, which knows Kafka's protocol, is not installed", hint="Install it: pip install 'kio>=0.6.5'"
    ) from absent

API_KEYS = {"".join(part.title() for part in name.split("_")): key for key, name in api_key_map.items()}
"""Kafka's own names of requests, such as DeleteRecords."""
NEWEST = {key: max(schema_name_map[name]) for key, name in api_key_map.items()}
"""The newest version of each request that can be read here."""
_HEAD = struct.Struct(">ihhi")


class Head(NamedTuple):
    """What stands at the beginning of every request."""

    api_key: int
    version: int
    correlation_id: int


def head_of(frame: bytes) -> Head:
    """The head of a request."""
    return Head(*_HEAD.unpack_from(frame)[1:])


def correlation_of(frame: bytes) -> int:
    """Which request an answer is for."""
    return int.from_bytes(frame[4:8], "big")


def read_request(frame: bytes) -> Any:
    """The body of a request."""
    head = head_of(frame)
    return _read(load_request_schema(head.api_key, head.version), frame)[1]


def with_body(frame: bytes, body: Any) -> bytes:
    """The request with another body."""
    return _written(_read(body.__class__, frame)[0], body)


def read_answer(head: Head, frame: bytes) -> Any:
    """The body of the answer to a request."""
    return _read(load_response_schema(head.api_key, head.version), frame)[1]


def written_answer(head: Head, body: Any) -> bytes:
    """The answer with this body."""
    return _written(body.__header_schema__(correlation_id=head.correlation_id), body)


def _read(kind: Any, frame: bytes) -> tuple[Any, Any]:
    header, size = entity_reader(kind.__header_schema__)(frame, 4)
    body, _ = entity_reader(kind)(frame, 4 + size)
    return header, body


def _written(header: Any, body: Any) -> bytes:
    buffer = BytesIO()
    for part in (header, body):
        entity_writer(part.__class__)(buffer, part)
    return struct.pack(">i", buffer.tell()) + buffer.getvalue()
