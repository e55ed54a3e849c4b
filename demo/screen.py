"""What a person sees. Every number is one that was measured; nothing here computes more than a rate or a sum.

On a terminal with a bar, elsewhere with a line now and then.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.driver import Killed, Orphans
from statelog.schemas.manifest import Manifest
from statelog.storage.kafka import OffsetRange

__all__ = ["Screen", "kib", "rate"]

_LINES = 8


def kib(size_bytes: int) -> str:
    """A size for people."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def rate(count: int, seconds: float) -> str:
    """So many a second."""
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "-"


class Screen:
    """The console, with the bar of the batches while there is one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._shown = 0
        self._bar: Progress | None = None

    def title(self, text: str) -> None:
        """What this is."""
        self._console.print(Panel(text, title="statelog demo", expand=False, border_style="cyan", padding=(0, 1)))

    def act(self, text: str) -> None:
        """A new part begins."""
        self._console.print()
        self._console.rule(f"[bold]{text}", align="left", style="cyan")

    def event(self, text: str) -> None:
        """Something happened, with the seconds since the start."""
        self._console.print(f"[dim]{time.monotonic() - self._started_s:6.1f} s[/dim]  {text}", highlight=False)

    def table(self, title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        """A table; all columns but the first are numbers."""
        made = Table(title=title or None, title_justify="left", header_style="bold")
        for number, name in enumerate(columns):
            made.add_column(name, justify="right" if number else "left")
        for row in rows:
            made.add_row(*row)
        self._console.print(made)

    # ---- while the job runs

    def batches(self, done: int, total: int) -> None:
        """How many batches are committed."""
        if done == self._shown:
            return
        step = max(1, total // _LINES)
        if self._console.is_terminal:
            self._show_bar(done, total)
        elif done // step > self._shown // step or done == total:
            self.event(f"{done} of {total} batches committed")
        self._shown = done

    def end_bar(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def snapshot(self, manifest: Manifest, offsets: Mapping[int, OffsetRange]) -> None:
        """A new snapshot stands, and the log was truncated behind it."""
        start = sum(found.start for found in offsets.values())
        end = sum(found.end for found in offsets.values())
        rows = sum(run.rows for run in manifest.runs)
        self.event(
            f"[green]snapshot {manifest.number}[/green] at ledger position {manifest.state.position}:"
            f" {len(manifest.runs)} runs, {rows:,} rows, {kib(sum(run.size_bytes for run in manifest.runs))};"
            f" truncated {start} of {end} chunks"
        )

    def killed(self, killed: Killed) -> None:
        """The driver is dead."""
        python, *java = killed.driver_pids
        self.event(
            f"[red]SIGKILL[/red] to the Spark driver (Python {python}, JVM {_ids(java)}) in the middle of batch"
            f" {killed.commits}: {killed.left.chunks} chunks with {killed.left.changes:,} changes are in the log, but no"
            f" commit"
        )
        self.event(f"Python workers {_ids(killed.orphan_pids)} are orphans now, and asleep (SIGSTOP)")
        self.event("starting the Spark job again on its checkpoint")

    def woken(self, orphans: Orphans) -> None:
        """The orphans were woken and are gone."""
        self.event(
            f"[yellow]SIGCONT[/yellow] to the orphans {_ids(orphans.pids)}, {orphans.asleep_s:.1f} s and"
            f" {orphans.commits_meanwhile} commits after their driver died: they lived on for"
            f" {orphans.lived_s:.2f} s and wrote {orphans.wrote.chunks} chunks and {orphans.void_commits} commits, void under their old epoch"
        )

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
