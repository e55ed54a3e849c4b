"""Progress of a long command: a bar on a terminal, an occasional line elsewhere, nothing for programs.

Everything goes to standard error, so that results can be piped.
"""

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from statelog.cli.streams import tell
from statelog.closing import Closing


class PlainBar(Closing):
    """Progress as lines, at most one in `interval_s` seconds; `fraction` is from 0 to 1, or None if unknown."""

    def __init__(
        self,
        what: str,
        *,
        interval_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        echo: Callable[[str], None] = tell,
    ) -> None:
        self._what = what
        self._interval_s = interval_s
        self._clock = clock
        self._echo = echo
        self._shown_s = clock()

    def update(self, fraction: float | None, text: str) -> None:
        """Show the current state, if a line is due."""
        now_s = self._clock()
        if now_s - self._shown_s >= self._interval_s:
            self._shown_s = now_s
            share = "" if fraction is None else f"{fraction:.0%}, "
            self._echo(f"{self._what}: {share}{text}")

    def close(self) -> None:
        """Remove the bar."""


class Bar(PlainBar):
    """Progress as a bar of rich, which disappears at the end."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}", markup=False))
        self._progress = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
        )
        self._task = self._progress.add_task(what, total=None, text="")
        self._progress.start()

    def update(self, fraction: float | None, text: str) -> None:
        """Move the bar."""
        total = None if fraction is None else 1.0
        self._progress.update(self._task, total=total, completed=fraction or 0.0, text=text)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        self._progress.stop()


def open_bar(what: str, *, as_json: bool) -> PlainBar:
    """Return the progress bar that suits standard error."""
    if as_json:
        return PlainBar(what, interval_s=float("inf"))
    return Bar(what) if sys.stderr.isatty() else PlainBar(what)
