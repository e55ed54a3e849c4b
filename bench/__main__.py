"""`python -m bench`: run benchmarks on a new broker, or on the one that STATELOG_BENCH_BROKER names."""

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from bench.figures import Figure, show
from bench.page import write_page
from bench.run import BENCHMARKS
from bench.setting import Setting
from statelog.testing import EmbeddedBroker


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--changes", default=5_000_000, show_default=True, help="Changes of workload W.")
@click.option("--keys", default=1_000_000, show_default=True, help="Distinct keys.")
@click.option("--rounds", default=3, show_default=True, help="Alternations of statelog and the baseline.")
@click.option("--page", type=click.Path(path_type=Path), help="Write the page of figures here, if all benchmarks run.")
@click.option("--commits", default=1000, show_default=True, help="Commits of the latency benchmark.")
def main(names: tuple[str, ...], changes: int, keys: int, rounds: int, commits: int, page: Path | None) -> None:
    """Measure statelog and its baselines, in one run on one machine."""
    console = Console(soft_wrap=True) if sys.stdout.isatty() else Console(width=190)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statelog-bench-")))
        bootstrap, broker_directory, broker_pid = _broker(stack, directory / "broker")
        setting = Setting(
            bootstrap=bootstrap,
            broker_directory=broker_directory,
            broker_pid=broker_pid,
            root=directory / "root",
            changes=changes,
            keys=keys,
            rounds=rounds,
            commits=commits,
        )
        console.print(f"{changes:,} changes over {keys:,} keys, {rounds} rounds, broker {setting.bootstrap}")
        figures: dict[str, list[Figure]] = {}
        size = f"{changes:,} changes over {keys:,} keys, {rounds} rounds, {commits:,} commits"
        for name in names or tuple(BENCHMARKS):
            started_s = time.perf_counter()
            with console.status(name):
                figures[name] = BENCHMARKS[name](setting)
            console.print(f"{name}: {time.perf_counter() - started_s:.0f} s")
            if page is not None and not names:  # Written after each benchmark, in case a long run breaks off.
                write_page(page, {one: figures.get(one, []) for one in BENCHMARKS}, size)
        show([one for found in figures.values() for one in found], console)


def _broker(stack: ExitStack, directory: Path) -> tuple[str, Path | None, int | None]:
    """Return the broker's address; for a broker of the run's own also its directory and process."""
    named = os.environ.get("STATELOG_BENCH_BROKER")
    if named:
        return named, None, None
    broker = EmbeddedBroker(directory, heap_mb=1024, java_options=["-XX:TieredStopAtLevel=4"])
    broker.start()
    stack.callback(broker.stop)
    return broker.bootstrap, directory, broker.process.pid


if __name__ == "__main__":
    main()
