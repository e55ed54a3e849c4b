"""The cost of some work: seconds on the clock, and CPU seconds of this process and all its descendants.

The descendants include Spark's JVM and Python, and the broker if it is the run's own.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

from bench.figures import Figure, medians, rate
from bench.processors import TICK_S, family_cpu_s
from bench.setting import Setting

__all__ = ["Cost", "costed", "figures_of", "figures_of_cost", "in_turns", "take_turns"]

_Take = TypeVar("_Take")
_SEED = 5
_WARM, _TURNS_EACH = 3, 4
"""Warm-up turns, and turns of each round: takes on Spark vary by half, because the JVM compiles and collects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one take of some work: seconds on the clock, and CPU seconds."""

    wall_s: float
    cpu_s: float


def costed(work: Callable[[], object]) -> Cost:
    """Return the cost of one take of `work`; the CPU time is at least a tick, its resolution."""
    cpu_s, started_s = family_cpu_s(), time.perf_counter()
    work()
    wall_s = time.perf_counter() - started_s
    return Cost(wall_s=wall_s, cpu_s=max(TICK_S, family_cpu_s() - cpu_s))


def take_turns(setting: Setting, works: dict[str, Callable[[], object]]) -> dict[str, list[Cost]]:
    """Return the cost of each take of each work, measured `in_turns`."""
    takes = {name: partial(costed, work) for name, work in works.items()}
    return in_turns(takes, warm=_WARM, turns=setting.rounds * _TURNS_EACH)


def in_turns(works: Mapping[str, Callable[[], _Take]], *, warm: int, turns: int) -> dict[str, list[_Take]]:
    """Return the result of each take of each work, without the first `warm` turns.

    Every turn has another order, because a take leaves garbage and uncompiled code to the next one.
    """
    found: dict[str, list[_Take]] = {name: [] for name in works}
    orders = Random(_SEED)
    for turn in range(warm + turns):
        for name in orders.sample(list(works), len(works)):
            take = works[name]()
            if turn >= warm:
                found[name].append(take)
    return found


def figures_of(
    name: str,
    count: int,
    ours: list[Cost],
    baseline_name: str,
    baseline: list[Cost],
    baseline_count: int | None = None,
    *,
    noun: str = "rows",
) -> list[Figure]:
    """Return rows per second on the clock and per CPU second, with their baseline."""
    return [
        _rate(f"{name}{label}", unit, count, baseline_count or count, mine, baseline_name, others)
        for label, unit, mine, others in (
            ("", f"M {noun}/s", [one.wall_s for one in ours], [one.wall_s for one in baseline]),
            (", by CPU", f"M {noun}/CPU s", [one.cpu_s for one in ours], [one.cpu_s for one in baseline]),
        )
    ]


def figures_of_cost(name: str, ours: list[Cost], baseline_name: str, baseline: list[Cost]) -> list[Figure]:
    """Return seconds on the clock and CPU seconds, with their baseline."""
    return [
        medians(f"{name}{label}", unit, mine, baseline_name, others)
        for label, unit, mine, others in (
            ("", "s", [one.wall_s for one in ours], [one.wall_s for one in baseline]),
            (", by CPU", "CPU s", [one.cpu_s for one in ours], [one.cpu_s for one in baseline]),
        )
    ]


def _rate(
    name: str, unit: str, count: int, other_count: int, mine: list[float], baseline_name: str, others: list[float]
) -> Figure:
    return replace(rate(name, count, mine, baseline_name, [(other_count, one) for one in others]), unit=unit)
