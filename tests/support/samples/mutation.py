"""Byte mutations of what was stored, for tests that no damage passes unseen."""

from collections.abc import Iterator

__all__ = ["mutations"]

_FLIPS = (0x01, 0x80, 0xFF)


def mutations(data: bytes, *, spare: bytes = b"") -> Iterator[bytes]:
    """Every byte flipped in three ways, every cut, and one byte more. `spare`, a part of `data`, is not flipped."""
    start = data.find(spare) if spare else 0
    assert start >= 0, "the bytes to spare are not there"
    for i in range(len(data)):
        if start <= i < start + len(spare):
            continue
        for flip in _FLIPS:
            yield data[:i] + bytes([data[i] ^ flip]) + data[i + 1 :]
    for end in range(len(data)):
        yield data[:end]
    yield data + b"\0"
