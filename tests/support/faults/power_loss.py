"""A partition's log after a power failure: the files of a broker that is down, cut at a record batch.

Kafka acknowledges records that lie in the page cache only, so a machine that loses power comes up with an older end.
The restarted broker finds a log that ends below what it acknowledged, and no trace of the rest.
"""

import struct
from pathlib import Path

__all__ = ["cut_tail", "ends"]

_BATCH = struct.Struct(">qi11xi")  # Base offset, length of the rest, and the last offset's distance from the base.
_LENGTH_ENDS_AT = 12


def ends(data: Path, topic: str, partition: int) -> list[tuple[int, int]]:
    """Return the end offset of every batch of the first segment, and where in the file it ends."""
    raw, at, found = _segment(data, topic, partition).read_bytes(), 0, list[tuple[int, int]]()
    while at + _BATCH.size <= len(raw):
        base, length, last = _BATCH.unpack_from(raw, at)
        if length <= 0:
            break  # A segment that was allocated ahead ends with zeros.
        at += _LENGTH_ENDS_AT + length
        found.append((base + last + 1, at))
    return found


def cut_tail(data: Path, topic: str, partition: int, end: int) -> None:
    """Cut the partition's only segment so that it ends at `end`, which must be the end of a batch; 0 empties it.

    A broker does not trust indexes and producer snapshots after a crash: it rebuilds them.
    """
    size = 0 if end == 0 else next(size for found, size in ends(data, topic, partition) if found == end)
    segment = _segment(data, topic, partition)
    with segment.open("r+b") as file:
        file.truncate(size)
    for made in [
        *segment.parent.glob("*.snapshot"),
        *segment.parent.glob("*.index"),
        *segment.parent.glob("*.timeindex"),
    ]:
        made.unlink()


def _segment(data: Path, topic: str, partition: int) -> Path:
    (found,) = (data / f"{topic}-{partition}").glob("*.log")
    return found
