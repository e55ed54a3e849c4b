"""The demo's output for people. Every number was measured; only rates and sums are computed here.

Progress is a bar on a terminal, and an occasional line elsewhere.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.driver import Killed, Orphans
from statelog.kafka.port import OffsetRange
from statelog.schemas.snapshot.manifest import Manifest

__all__ = ["Screen", "kib", "rate"]

_LINES = 8
_WIDTH = 120


def kib(size_bytes: int) -> str:
    """Format a size for people."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def rate(count: int, seconds: float) -> str:
    """Format a rate per second."""
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "-"


class Screen:
    """The console, with the bar of the batches."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        # A file has no width, and the default of 80 columns breaks the tables.
        self._console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
        self._started_s = time.monotonic()
        self._shown = 0
        self._bar: Progress | None = None

    def title(self, text: str) -> None:
        """Print the title."""
        self._console.print(Panel(text, title="statelog demo", expand=False, border_style="cyan", padding=(0, 1)))

    def act(self, text: str) -> None:
        """Begin a new part."""
        self._console.print()
        self._console.rule(f"[bold]{text}", align="left", style="cyan")

    def event(self, text: str) -> None:
        """Print an event with the seconds since the start."""
        line = Table.grid(padding=(0, 2))
        line.add_column(justify="right", width=7, style="dim")
        line.add_column()
        line.add_row(f"{time.monotonic() - self._started_s:.1f} s", text)
        self._console.print(line)

    def table(self, columns: Iterable[str], rows: Iterable[Iterable[str]], *, title: str | None = None) -> None:
        """Print a table; all columns but the first are numbers."""
        made = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
        for number, name in enumerate(columns):
            made.add_column(name, justify="right" if number else "left")
        for row in rows:
            made.add_row(*row)
        self._console.print(made)

    def done(self, summary: str) -> None:
        """Print the last line of a successful run."""
        self._console.print()
        self._console.print(f"demo: OK {summary}", style="bold green", soft_wrap=True)

    def failed(self, text: str) -> None:
        """Print the last line of a failed run."""
        self.end_bar()
        self._console.print(f"demo: FAILED {text}", style="bold red", markup=False, soft_wrap=True)

    # ---- while the job runs

    def batches(self, done: int, total: int) -> None:
        """Show the number of committed batches."""
        if done == self._shown:
            return
        step = max(1, total // _LINES)
        if self._console.is_terminal:
            self._show_bar(done, total)
        elif done // step > self._shown // step or done == total:
            self.event(f"{done} of {total} batches committed")
        self._shown = done

    def end_bar(self) -> None:
        """Stop updating the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def snapshot(self, manifest: Manifest, offsets: Mapping[int, OffsetRange]) -> None:
        """Print that there is a new snapshot, and the log was truncated below it."""
        start = sum(found.start for found in offsets.values())
        end = sum(found.end for found in offsets.values())
        rows = sum(run.rows for run in manifest.runs)
        size_bytes = sum(run.size_bytes for run in manifest.runs)
        self.event(
            f"[green]snapshot {manifest.number}[/green] at ledger position {manifest.state.position}: {rows:,} rows,"
            f" {kib(size_bytes)} in {len(manifest.runs)} runs; {start} of {end} chunks are truncated"
        )

    def killed(self, killed: Killed) -> None:
        """Print that the driver is dead."""
        python, *java = killed.driver_pids
        self.event(
            f"[red]SIGKILL[/red] to the Spark driver (Python {python}, JVM {_ids(java)}) in the middle of batch"
            f" {killed.commits}: {killed.left.chunks} of its chunks, {killed.left.changes:,} changes, are in the log,"
            " its commit is not"
        )
        self.event(f"its Python workers {_ids(killed.orphan_pids)} are orphans now, and asleep (SIGSTOP)")

    def follows(self, begin_position: int) -> None:
        """Print that the second query has its first micro-batch."""
        self.event(f"[cyan]the second query[/cyan] has the state at ledger position {begin_position}, and follows")

    def caught_up(self, commits: int, took_s: float) -> None:
        """Print that the second query has all commits of the killed job."""
        self.event(
            f"[cyan]the second query[/cyan] lives: {took_s:.1f} s later it has all of the {commits} commits, and"
            " nothing of the open batch"
        )

    def restarting(self) -> None:
        """Print that the job is restarting."""
        self.event("starting the Spark job again on its checkpoint")

    def woken(self, orphans: Orphans) -> None:
        """Print that the orphans were woken and have ended."""
        self.event(
            f"[yellow]SIGCONT[/yellow] to the orphans {_ids(orphans.pids)}, {orphans.asleep_s:.1f} s and"
            f" {orphans.commits_meanwhile} commits after their driver died: they lived on for {orphans.lived_s:.2f} s"
            f" and wrote {orphans.wrote.chunks} more chunks ({orphans.wrote.changes:,} changes) and"
            f" {orphans.void_commits} commits under their fenced epoch; nothing of it counts"
        )

    def daemon_stopped(self, snapshots: int) -> None:
        """Print that the materializer has ended."""
        self.event(f"SIGTERM to the materializer: it ended well after {snapshots} snapshots; the rest stays in the log")

    def _show_bar(self, done: int, total: int) -> None:
        if self._bar is None:
            columns = (TextColumn("  batches"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console)
            self._bar.add_task("batches", total=total)
            self._bar.start()
        with suppress(IndexError):
            self._bar.update(self._bar.tasks[0].id, completed=done)


def _ids(pids: Iterable[int]) -> str:
    return ", ".join(str(pid) for pid in pids) or "none"
