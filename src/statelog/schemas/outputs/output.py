"""`Output`: a message that leaves with a commit, to any topic of the log's cluster. Valid, and a value. Pure.

`mark_of` makes the header by which a consumer knows a message again. It names the writer, too: the commits of several
writers may lie in one ledger record, and then share a position.

Invariants:
- An Output holds text and bytes of its own, and nothing that the caller could change.
- A message that cannot be sent is refused before it is made, with the argument that is wrong.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import NamedTuple, TypeAlias, cast

from statelog.errors import InvalidChange

Text: TypeAlias = bytes | str
"""Bytes, or text, which is sent in UTF-8."""
Headers: TypeAlias = Mapping[str, Text | None] | Sequence[tuple[str, Text | None]]
"""Headers by name, or in an order, where a name may come twice."""

HEADER = "statelog"
"""The header that names the origin of a message. A caller's own must have another name."""
SENDER = "statelog.outputs"
"""The meta record of a writer that ever sent. Its value is the id of the reading that held truncation first."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_MOST_PARTITION = (1 << 31) - 1
_ROW_BYTES = 21
"""The size of a message without its data: five numbers of four bytes, and three bits."""
_HEADER_BYTES = 9


class Output(NamedTuple):
    """A message. A value of None is a tombstone; a partition of None is chosen by the key. See `make_output`."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None

    @property
    def size_bytes(self) -> int:
        """About the size in a chunk, rather too large."""
        size = _ROW_BYTES + len(self.topic) + len(self.value or b"") + len(self.key or b"")
        if self.headers:
            size += sum(_HEADER_BYTES + len(name.encode()) + len(value or b"") for name, value in self.headers)
        return size


def make_output(
    topic: str,
    value: Text | None,
    key: Text | None = None,
    headers: Headers | None = None,
    partition: int | None = None,
) -> Output:
    """Make a message of what a caller gives. Raises InvalidChange."""
    if not isinstance(cast("object", topic), str) or not is_topic(topic):
        raise InvalidChange(
            f"{topic!r:.100} is not the name of a topic", hint="Use letters, digits, '.', '_' and '-', at most 249"
        )
    return Output(
        str.__str__(topic),
        _data("value", value),
        _data("key", key),
        () if headers is None else _headers(headers),
        None if partition is None else _partition(partition),
    )


def is_topic(name: str) -> bool:
    """Return whether Kafka allows a topic of this name."""
    return _TOPIC.match(name) is not None and name not in (".", "..")


def mark_of(log: str, writer: str, position: int, number: int) -> bytes:
    """Return the value of a message's header: its commit's log, writer and position, and its number in the commit.

    Between the messages of one log and writer, position and number ascend.
    """
    return f"{log}/{writer}/{position}/{number}".encode()


def _data(what: str, data: object) -> bytes | None:
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, bytes):
        return bytes(data)
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise InvalidChange(f"the {what} of a message is not UTF-8: {error}") from error
    raise InvalidChange(
        f"the {what} of a message is bytes, text or None, not {type(data).__name__}",
        hint="Encode it: json.dumps(...), text.encode(), b'%d' % number",
    )


def _headers(headers: object) -> tuple[tuple[str, bytes | None], ...]:
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise _wrong_headers(type(headers).__name__)
    pairs = cast("Iterable[Sequence[object]]", headers.items() if isinstance(headers, Mapping) else headers)
    found: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _wrong_headers(f"an item of {type(pair).__name__}")
        name, value = pair
        if not isinstance(name, str):
            raise _wrong_headers(f"a name of {type(name).__name__}")
        if name == HEADER:
            raise InvalidChange(f"the header {HEADER} is statelog's own", hint="Give it another name")
        _data("name of a header", name)
        found.append((str.__str__(name), _data("value of a header", value)))
    return tuple(found)


def _wrong_headers(what: str) -> InvalidChange:
    hint = "Give a dict of names and values, or a list of such pairs: {'kind': b'order'}"
    return InvalidChange(f"the headers of a message are names with bytes, text or None, not {what}", hint=hint)


def _partition(partition: object) -> int:
    is_whole = not isinstance(partition, bool) and isinstance(partition, Integral)
    if not is_whole or not 0 <= int(cast("int", partition)) <= _MOST_PARTITION:
        hint = "Give a whole number from 0 on, or None: then the key decides, as with Java's producers"
        raise InvalidChange(f"{partition!r:.100} is not a partition", hint=hint)
    return int(cast("int", partition))
