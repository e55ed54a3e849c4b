"""Admission: how many commits go into a micro-batch. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from statelog.reading.plan import CommitFacts

__all__ = ["NO_LIMIT", "Limit", "admitted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most changes, and bytes of record values, of a micro-batch; `math.inf` for any number."""

    changes: float = math.inf
    size_bytes: float = math.inf


NO_LIMIT = Limit()


def admitted(commits: Iterable[CommitFacts], limit: Limit) -> int:
    """How many of these commits, the oldest first, make the next micro-batch: all within the limit, but at least one.

    A micro-batch ends at a commit, because a commit counts as a whole.
    """
    taken, changes, size_bytes = 0, 0, 0
    for commit in commits:
        changes += commit.changes
        size_bytes += commit.size_bytes
        if taken and (changes > limit.changes or size_bytes > limit.size_bytes):
            break
        taken += 1
    return taken
