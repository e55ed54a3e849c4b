"""Steps over what Kafka's client cannot unpack, where none of it counts.

Who may write to a log's data topic can leave a batch there that unpacks to more than the client takes, or not at all.
It stops nobody who does not need what is in it. This decides nothing: who reads says what counts.

Invariants:
- What counts is never stepped over: it is the error that it was.
- Only a batch's own offsets are stepped over, and every other record of the ranges comes, once.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import cast

from statelog.errors import BrokerUnavailable, DataLoss, Unreadable
from statelog.storage.kafka import OffsetRange, Reader, Record

__all__ = ["Counts", "read_past"]

Counts = Callable[[int, OffsetRange], bool]
"""Whether anything at these offsets of a partition counts."""
_ANSWER_S = 10.0
_PLACE = ("partition", "start_offset", "end_offset")


def read_past(
    reader: Reader, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float, counts: Counts
) -> Iterator[Record]:
    """Yield every record of `ranges` but those that cannot be unpacked and do not count. Raises as `Reader.read`."""
    starts = {partition: wanted.start for partition, wanted in ranges.items()}
    while True:
        left = {p: OffsetRange(starts[p], wanted.end) for p, wanted in ranges.items() if starts[p] < wanted.end}
        try:
            for record in reader.read(left, stall_timeout_s=stall_timeout_s):
                starts[record.partition] = record.offset + 1
                yield record
        except Unreadable as error:
            partition, start, end = (cast("int", error.facts[name]) for name in _PLACE)
            if counts(partition, OffsetRange(start, end)):
                accept = f"statelog accept-loss {error.facts['topic']} --range {partition}:{start}-{end}"
                raise error.restated(hint=f"{error.hint}; what is lost for good is given up by {accept}") from error
            starts[partition] = end
        except BrokerUnavailable as error:
            partition, offset = _silent(reader, ranges, error)
            if counts(partition, OffsetRange(offset, offset + 1)):
                raise
            starts[partition] = offset + 1
        else:
            return


def _silent(reader: Reader, ranges: Mapping[int, OffsetRange], error: BrokerUnavailable) -> tuple[int, int]:
    """The offset that nothing comes for, though the broker answers for the one beside it. Else raises the error again.

    A batch that unpacks to less than its records say is dropped by the client without a word, and asked for again.
    """
    partition, offset = error.facts.get("partition"), error.facts.get("next_offset")
    if not isinstance(partition, int) or not isinstance(offset, int):
        raise error
    beside = offset + 1 if offset + 1 < ranges[partition].end else max(0, offset - 1)
    try:
        next(reader.read({partition: OffsetRange(beside, beside + 1)}, stall_timeout_s=_ANSWER_S), None)
    except Unreadable:
        pass
    except (BrokerUnavailable, DataLoss):
        raise error from None
    return partition, offset
