"""Shares: which partitions each of N writers takes, and which key groups each of N readers restores. Pure.

A share is a range of neighbours. It follows from three numbers, so every process works out its own; starting with
another number of workers re-assigns everything.

Invariants, for any count and any number of workers:
- The shares are disjoint, lie in the workers' order, and together are everything.
- Their sizes differ by at most one. With more workers than things to share, some shares are empty.
"""

from collections.abc import Iterable

from statelog.errors import ConfigError

__all__ = ["ranges_text", "share"]


def share(count: int, *, worker: int, workers: int) -> range:
    """The part of `range(count)` (partitions, or key groups) that belongs to worker 0, 1, ... or `workers - 1`.

    By the rule that also lays key groups into partitions. Raises ConfigError for a worker that does not exist.
    """
    if count < 0 or not 0 <= worker < workers:
        raise ConfigError(
            f"there is no share for worker {worker} of {workers} in {count}",
            hint="Workers are numbered from 0, and there is at least one",
        )
    return range(-(-worker * count // workers), -(-(worker + 1) * count // workers))


def ranges_text(numbers: Iterable[int]) -> str:
    """Numbers as people write them: single ones and half-open ranges, such as "0:4,6"."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] += 1
        else:
            ranges.append([number, number + 1])
    return ",".join(str(start) if end == start + 1 else f"{start}:{end}" for start, end in ranges)
