"""The page of figures: every measure of a run with its baseline, as tables and one plot, with machine and date.

    python -m bench --page docs/figures.md

Owns `figures.md` and its plot; nothing else writes them. A benchmark that was left out, or that the run did not reach,
keeps the rows of the previous page, with the name of their run.
"""

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast

from bench.figures import Figure

__all__ = ["write_page"]

_FEW = 1e-9
_LEFT_OUT = "Left out of this run. An earlier one had:"
_HOW_TO_READ = """Each row is beside its baseline in the same run, in turns: only ratios count, for machines differ, and
one machine differs from hour to hour. Values are medians, with the lowest and the highest of all turns. *CPU* is what
one turn cost this process, its threads included, and *peak* the most memory that it had: where nothing stands, a
measure does not tell. *One record per change* is a tuned program on confluent-kafka: idempotent, acknowledged by all,
compressed by lz4, in batches by `produce_batch`; its consumer rests for 2 ms where its queue is full, not for a second.
Keys are `key-` and twelve digits, which are sorted fastest, except where a row names others."""


def write_page(path: Path, figures: Mapping[str, Sequence[Figure]], size: str) -> None:
    """Write the page of these figures, by benchmark, and its plot; `size`: the amount of work in words.

    A benchmark without figures was left out.
    """
    text = "\n".join(_lines(path, figures, size)) + "\n"
    _plot(path.with_suffix(".svg"), [one for found in figures.values() for one in found])
    path.write_text(text, encoding="utf-8")


def _lines(path: Path, figures: Mapping[str, Sequence[Figure]], size: str) -> Iterator[str]:
    yield "# Figures"
    yield ""
    yield f"Written by `make bench`: {size}; {_machine()}; {_commit()}; {datetime.now(UTC):%Y-%m-%d}."
    yield ""
    yield _HOW_TO_READ
    yield ""
    yield f"![How many times better each measure is than its baseline]({path.with_suffix('.svg').name})"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    for name, found in figures.items():
        yield ""
        yield f"## {name}"
        if not found:
            yield from _kept(before, name)
            continue
        yield ""
        yield f"    python -m bench {name}"
        yield ""
        yield "| what | statelog | CPU | peak | baseline | | CPU | better by |"
        yield "|---|---|---|---|---|---|---|---|"
        yield from map(_row, found)


def _kept(before: str, name: str) -> Iterator[str]:
    """Yield the rows of a benchmark on the previous page, and the name of their run."""
    section = before.partition(f"\n## {name}\n")[2].partition("\n## ")[0].strip("\n")
    if section and not section.startswith(_LEFT_OUT):
        told = re.search(r"^Written by `make bench`: (.*)\.$", before, re.MULTILINE)
        section = f"{_LEFT_OUT} {told[1] if told else 'before'}.\n\n{section}"
    yield ""
    yield section or "Left out of this run."


def _row(one: Figure) -> str:
    value = f"{_short(one.value)} ({_short(one.lowest)} to {_short(one.highest)}) {one.unit}"
    baseline = "" if one.baseline is None else _short(one.baseline)
    better = "" if one.better is None else f"{one.better:.2g}x"
    cells = (one.name, value, _seconds(one.cpu_s), _memory(one.peak_bytes), one.baseline_name, baseline)
    return f"| {' | '.join((*cells, _seconds(one.baseline_cpu_s), better))} |"


def _short(value: float) -> str:
    """Return three digits of a number, or all digits before the point of a large one."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def _seconds(cpu_s: float | None) -> str:
    return "" if cpu_s is None else f"{cpu_s:.3g} s"


def _memory(peak_bytes: int | None) -> str:
    return "" if peak_bytes is None else f"{peak_bytes / 2**30:.2f} GiB"


def _machine() -> str:
    cpu = next((line.split(":", 1)[1].strip() for line in _proc("cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) >> 20 for line in _proc("meminfo") if line.startswith("MemTotal")), 0)
    told = [f"{os.cpu_count()} cores of {cpu or platform.machine()}", *([f"{memory} GiB"] if memory else [])]
    return ", ".join([*told, f"{platform.system()} {platform.release()}", f"Python {platform.python_version()}"])


def _proc(name: str) -> list[str]:
    try:
        return Path("/proc", name).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


@cache  # The state before the page is written, which may be part of it.
def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    try:
        return f"commit {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}"  # noqa: S603 - the command above
    except (OSError, subprocess.CalledProcessError):
        return "no commit"


def _plot(path: Path, figures: Sequence[Figure]) -> None:
    """Plot a bar for each measure with a baseline: from 1, the baseline, to the ratio by which it is better."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "statelog"  # Equal figures make equal files.
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    shown = [(f"{one.name} / {one.baseline_name}", max(_FEW, one.better)) for one in figures if one.better][::-1]
    figure, drawn = pyplot.subplots(figsize=(10, 1 + 0.24 * len(shown)), layout="constrained")
    axes: Any = drawn  # Its stubs are incomplete.
    labels, ratios = [label for label, _ in shown], [ratio for _, ratio in shown]
    bars = axes.barh(
        labels, [ratio - 1 for ratio in ratios], left=1, color=["#4a7fb5" if one >= 1 else "#d98a1f" for one in ratios]
    )
    axes.bar_label(bars, [f"{ratio:.2g}x" for ratio in ratios], padding=3, fontsize=8, color="#7d8590")
    axes.set_xscale("log")
    axes.axvline(1, color="#7d8590", linewidth=1)
    axes.set_xlabel("times better than the baseline", color="#7d8590")
    axes.tick_params(colors="#7d8590", labelsize=8)
    axes.margins(x=0.12, y=0.01)
    for spine in axes.spines.values():
        spine.set_visible(False)
    cast("Any", figure).savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
