"""Ownership of a log: whether a query or a plain write may open, which fences its rivals. Pure.

An Open ends every rival, so this is checked first. A rival blocks the way for as long as it may be alive: a query that
opened or committed not long ago, a plain write that began not long ago and has neither committed nor been given up.
What no job of Spark's opened is not judged here: who opens last owns the log.

Invariants:
- The same query, started again, takes over at once, from another session too.
- Another query, and a plain write beside a query, fence nothing without the option takeOver or takeOverFrom.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from statelog.errors import LogInUse
from statelog.schemas.key_groups import ranges_text
from statelog.schemas.ledger.state import LastCommit
from statelog.spark.options.write import WriteOptions
from statelog.spark.sink.decision import NO_QUERY, check_take_over, owner_of
from statelog.spark.sink.query_run import is_plain, is_query, query_of

__all__ = ["RECENT_S", "Rival", "check_ownership"]

RECENT_S = 2 * 3600.0
"""A rival that neither opened nor committed for so long is taken for dead: above the interval of an hourly trigger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A live epoch that our Open would fence. `age_s` is the time since its last sign of life; None if that is gone.

    `has_committed`: under this epoch, and began nothing since. `last` is its writer's last commit, under any epoch.
    """

    writer: str
    nonce: bytes
    partitions: frozenset[int]
    age_s: float | None
    has_committed: bool
    last: LastCommit | None


def check_ownership(
    options: WriteOptions, query_id: str | None, tag: bytes, last: LastCommit | None, rivals: Sequence[Rival]
) -> None:
    """Raise CheckpointMismatch if the writer is another query's, LogInUse if an Open would end a rival that may live.

    `query_id` is this query's if it is known before its tasks run, `tag` what its nonces begin with, `last` its
    writer's last commit.
    """
    ours = query_id if options.serves_query else NO_QUERY
    if last is not None and ours and owner_of(last) != ours:
        check_take_over(last, options.writer, ours, options.take_over_from)
    if options.take_over:
        return
    for rival in rivals:
        if _may_live(rival) and not _is_ours(rival, options, ours, tag):
            raise LogInUse(
                "another Spark job writes to this log",
                writer=rival.writer,
                partitions=ranges_text(rival.partitions),
                query_id=owner_of(rival.last) if rival.last is not None else None,
                last_seen_s=None if rival.age_s is None else round(rival.age_s),
                hint="A partition has one writing job at a time: give each job its own, by the option partitions or"
                " share; or stop that one and set takeOver=true",
            )


def _may_live(rival: Rival) -> bool:
    if rival.age_s is None or rival.age_s > RECENT_S:
        return False
    return is_query(rival.nonce) or (is_plain(rival.nonce) and not rival.has_committed)


def _is_ours(rival: Rival, options: WriteOptions, ours: str | None, tag: bytes) -> bool:
    """Whether the rival is an earlier life of ours, or one that takeOverFrom names."""
    if rival.writer != options.writer:
        return False
    owner = owner_of(rival.last) if rival.last is not None else None
    if owner is not None and owner == options.take_over_from:
        return True
    if owner is not None and ours and rival.has_committed:
        return owner == ours
    return query_of(rival.nonce) == query_of(tag)
