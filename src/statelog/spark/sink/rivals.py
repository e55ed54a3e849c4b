"""The rivals of a query or plain write: the live epochs that its Open would fence, and when each was last active.

Reads the ledger and decides nothing: `ownership` does.
"""

from contextlib import closing, suppress

from statelog.errors import OffsetGone
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.records import VOID_VALUE
from statelog.spark.options.write import WriteOptions
from statelog.spark.sink.ownership import Rival
from statelog.spark.sink.query_run import is_plain
from statelog.storage.kafka import OffsetRange
from statelog.storage.log.log import Log

__all__ = ["rivals_of", "under_way"]

_READ_TIMEOUT_S = 10.0


def rivals_of(log: Log, fold: LedgerFold, options: WriteOptions, now_s: float) -> list[Rival]:
    """The live epochs that an Open would fence: those on a partition that it takes, and the writer's own.

    Raises ConfigError if the options take no partition that the log has.
    """
    taken = frozenset(options.taken(log.descriptor.partitions))
    found: list[Rival] = []
    for epoch in fold.freeze().live:
        if epoch.writer != options.writer and taken.isdisjoint(epoch.partitions):
            continue
        last = fold.last_commit(epoch.writer)
        committed = last.offset if last is not None and last.offset > epoch.epoch else None
        begun = _begun(log, epoch.nonce, committed, fold.position) if committed is not None else epoch.epoch
        found.append(
            Rival(
                writer=epoch.writer,
                nonce=epoch.nonce,
                partitions=epoch.partitions,
                age_s=None if options.take_over else _age_s(log, max(begun or 0, committed or 0), now_s),
                has_committed=begun is None,
                last=last,
            )
        )
    return found


def under_way(nonce: bytes) -> bytes:
    """The void record that says that another plain write of the epoch with this nonce is under way."""
    return VOID_VALUE + b"plan" + nonce


def _begun(log: Log, nonce: bytes, committed: int, end: int) -> int | None:
    """Where the ledger says that a plain write was begun since the epoch's last commit; None if it was not."""
    if not is_plain(nonce) or committed + 1 >= end:
        return None
    with closing(log.kafka.reader(log.ledger_topic)) as reader, suppress(OffsetGone):
        for record in reader.read({0: OffsetRange(committed + 1, end)}, stall_timeout_s=_READ_TIMEOUT_S):
            if record.value == under_way(nonce):
                return record.offset
    return None


def _age_s(log: Log, offset: int, now_s: float) -> float | None:
    """How long ago the ledger's record at `offset` was written; None if it is truncated.

    Where the brokers do not stamp records the age is unknown, and it counts as written now.
    """
    reader = log.kafka.reader(log.ledger_topic)
    try:
        for record in reader.read({0: OffsetRange(offset, offset + 1)}, stall_timeout_s=_READ_TIMEOUT_S):
            return now_s - record.timestamp_ms / 1000 if record.timestamp_ms >= 0 else 0.0
    except OffsetGone:
        pass
    finally:
        reader.close()
    return None
