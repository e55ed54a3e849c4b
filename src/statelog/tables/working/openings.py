"""`Openings`: the tables that are being opened: several at once, each on a thread of its own.

Keeps no table: one that is open is adopted by the worker's thread, in the order in which they were begun, or closed.

Invariants:
- At most `AT_ONCE` are under way.
- What was begun is adopted once, or closed once it is open, also if nobody waits for it any more.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import ExitStack

from statelog.environment import Start, begin
from statelog.tables.working.tenure import Tenure

__all__ = ["AT_ONCE", "Openings"]

AT_ONCE = 4
"""Most of an opening is waiting for answers; but each may recover a state, so there are not more."""
_Opened = tuple[Tenure, Callable[[], None]]
"""And what adopts its table."""


class Openings:
    """Those of one worker, by partition. `start` begins one."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._under_way: dict[int, Future[_Opened]] = {}

    @property
    def partitions(self) -> list[int]:
        """Whose tables are being opened."""
        return list(self._under_way)

    @property
    def has_room(self) -> bool:
        """Whether one more may begin."""
        return len(self._under_way) < AT_ONCE

    def begin(self, partition: int, opened: Callable[[], Tenure]) -> None:
        """Begin to open a table, which `opened` does."""

        def work() -> _Opened:
            tenure = opened()
            return tenure, tenure.table.hand_over()

        self._under_way[partition] = begin(self._start, work)

    def over(self) -> int | None:
        """The partition that was begun first, if its table is open, or did not open."""
        first = next(iter(self._under_way), None)
        return first if first is not None and self._under_way[first].done() else None

    def take(self, partition: int) -> Tenure:
        """The one that is over; its table is the caller's thread's. Raises what opening it raised."""
        tenure, adopt = self._under_way.pop(partition).result()
        adopt()
        return tenure

    def drop(self, partitions: Iterable[int]) -> None:
        """Wait for those of these partitions, and close their tables."""
        gone = [self._under_way.pop(one) for one in partitions if one in self._under_way]
        with ExitStack() as closing:
            for future in gone:
                closing.callback(future.add_done_callback, _close)  # Later, if whoever waits was interrupted.
            wait(gone)


def _close(future: "Future[_Opened]") -> None:
    if future.exception() is None:
        future.result()[0].abandon()
