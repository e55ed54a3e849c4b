"""Figures: measures with their baselines, and the table for people."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["Figure", "Took", "latency", "medians", "percentile", "rate", "show", "summed", "timed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measure. `value` and `baseline` are medians over the rounds; `better` is statelog's advantage as a ratio."""

    name: str
    unit: str
    value: float
    lowest: float
    highest: float
    baseline_name: str = ""
    baseline: float | None = None
    higher_is_better: bool = True
    cpu_s: float | None = None
    peak_bytes: int | None = None
    baseline_cpu_s: float | None = None

    @property
    def better(self) -> float | None:
        """The ratio, above 1 if statelog is better."""
        if not self.baseline or not self.value:
            return None
        return self.value / self.baseline if self.higher_is_better else self.baseline / self.value


class Took(float):
    """Seconds on the clock, with the CPU seconds of all threads of this process, and its peak of memory."""

    cpu_s: float
    peak_bytes: int | None


def timed(work: Callable[[], object]) -> Took:
    """Return the time that `work` took."""
    _forget_peak()
    cpu_s, started_s = time.process_time(), time.perf_counter()
    work()
    took = Took(time.perf_counter() - started_s)
    took.cpu_s, took.peak_bytes = time.process_time() - cpu_s, _peak_bytes()
    return took


def summed(*takes: Took) -> Took:
    """Return the sum of consecutive takes."""
    whole = Took(sum(takes))
    whole.cpu_s = sum(one.cpu_s for one in takes)
    whole.peak_bytes = max((one.peak_bytes or 0 for one in takes), default=0) or None
    return whole


def _forget_peak() -> None:
    with suppress(OSError):  # Only on Linux.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int | None:
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
    return None


def _cpu_s(takes: Iterable[float]) -> float | None:
    told = [one.cpu_s for one in takes if isinstance(one, Took)]
    return statistics.median(told) if told else None


def rate(
    name: str,
    count: int,
    seconds: Sequence[float],
    baseline_name: str = "",
    baseline: Sequence[tuple[int, float]] | None = None,
) -> Figure:
    """Return a throughput in million changes per second; `baseline` has (count, seconds) for each round."""
    rates = [count / second / 1e6 for second in seconds]
    other = [n / second / 1e6 for n, second in baseline] if baseline else []
    return Figure(
        name=name,
        unit="M changes/s",
        value=statistics.median(rates),
        lowest=min(rates),
        highest=max(rates),
        baseline_name=baseline_name,
        baseline=statistics.median(other) if other else None,
        cpu_s=_cpu_s(seconds),
        peak_bytes=max((one.peak_bytes or 0 for one in seconds if isinstance(one, Took)), default=0) or None,
        baseline_cpu_s=_cpu_s([second for _, second in baseline or ()]),
    )


def latency(
    name: str, share: float, seconds: list[float], baseline_name: str = "", baseline: list[float] | None = None
) -> Figure:
    """Return the milliseconds below which a share of some work lies, with the baseline's."""
    return Figure(
        name=name,
        unit="ms",
        value=percentile(seconds, share) * 1e3,
        lowest=min(seconds) * 1e3,
        highest=max(seconds) * 1e3,
        baseline_name=baseline_name,
        baseline=percentile(baseline, share) * 1e3 if baseline else None,
        higher_is_better=False,
    )


def medians(name: str, unit: str, ours: Sequence[float], baseline_name: str, baseline: Sequence[float]) -> Figure:
    """Return the median cost of some work, where less is better, with the baseline's."""
    return Figure(
        name=name,
        unit=unit,
        value=statistics.median(ours),
        lowest=min(ours),
        highest=max(ours),
        baseline_name=baseline_name,
        baseline=statistics.median(baseline),
        higher_is_better=False,
        cpu_s=_cpu_s(ours),
        baseline_cpu_s=_cpu_s(baseline),
    )


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(figures: list[Figure], console: Console) -> None:
    """Print the table."""
    table = Table(title="statelog beside its baseline, same run", title_justify="left")
    table.add_column("what")
    for column in ("median", "lowest", "highest"):
        table.add_column(column, justify="right")
    table.add_column("unit")
    table.add_column("baseline")
    table.add_column("median", justify="right")
    table.add_column("better by", justify="right")
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.value:.2f}",
            f"{figure.lowest:.2f}",
            f"{figure.highest:.2f}",
            figure.unit,
            figure.baseline_name,
            "" if figure.baseline is None else f"{figure.baseline:.2f}",
            "" if figure.better is None else f"{figure.better:.1f}x",
        )
    console.print(table)
