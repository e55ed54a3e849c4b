"""`StandbyPool`: standbys of partitions that are another process's now, so that this one may take over soon.

    not ours ─► opened on a thread of its own, which follows ─► assigned ─► promoted, as any table opens ─────► a table
        ▲                                                                                                        │
        └──────────────────────────────────────── revoked, lost ◄────────────────────────────────────────────────┘

Invariants:
- A partition of this process has a table or none, and no standby beside it.
- A standby that fails is logged, and made again after a while; it never ends the worker.
- While one is promoted, in whatever thread, nobody asks to `keep` them.
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

from statelog.producer.guard import Life
from statelog.tables.standbys.standby import Standby
from statelog.tables.table import Table

_LOG = logging.getLogger("statelog.tables")
_SETTLE_S = 2.0
"""How long after the last decision of the group nothing is made: it may be about to decide again."""
_AGAIN_S = 10.0


class StandbyPool:
    """The standbys of one worker, for those of the `wanted` partitions that it does not hold."""

    def __init__(
        self, wanted: Collection[int], open_standby: Callable[[int], Standby[Any, Any]], clock: Callable[[], float]
    ) -> None:
        self._wanted = frozenset(wanted)
        self._open_one = open_standby
        self._clock = clock
        self._due_s = math.inf
        self._made: dict[int, Future[Standby[Any, Any]]] = {}
        self._maker = ThreadPoolExecutor(1, "statelog-standbys") if self._wanted else None

    @property
    def open(self) -> Mapping[int, Standby[Any, Any]]:
        """Those that are open and follow."""
        return MappingProxyType(
            {one: future.result() for one, future in sorted(self._made.items()) if _follows(future)}
        )

    def decided(self) -> None:
        """The group has decided something: wait a little."""
        if self._wanted:
            self._due_s = self._clock() + _SETTLE_S

    def keep(self, held: Callable[[int], bool]) -> None:
        """Make those that are missing, unless the partition is `held`. Waits for nothing."""
        if self._maker is None or self._clock() < self._due_s:
            return
        self._due_s = self._clock() + _AGAIN_S
        for partition in self._wanted:
            future = self._made.get(partition)
            if future is not None and future.done() and not _follows(future):
                self._drop(partition, future, future.exception())
            if partition not in self._made and not held(partition):
                self._made[partition] = self._maker.submit(self._open_one, partition)

    def promote(self, partition: int) -> Table[Any, Any] | None:
        """The table of a partition, from its standby; None if there is none.

        Raises ConfigError, Fenced, OutcomeUnknown, Unavailable, Damaged.
        """
        future = self._made.get(partition)
        if future is None or future.cancel():
            self._made.pop(partition, None)
            return None
        error = future.exception()  # What is being made has read a part of it already: wait for the rest.
        if error is not None or future.result().life is not Life.OPEN:
            self._drop(partition, future, error)
            return None
        standby = future.result()
        try:
            return standby.promote()
        finally:
            if standby.life is not Life.OPEN:  # Promoted, or closed by what went wrong behind its Open.
                del self._made[partition]

    def close(self) -> None:
        """Close all, the one that is being made once it is made."""
        made, self._made = self._made, {}
        with ExitStack() as closing:
            for future in made.values():
                closing.callback(future.add_done_callback, _close)  # Later, if whoever waits was interrupted.
            if self._maker is not None:
                self._maker.shutdown(cancel_futures=True)

    def _drop(self, partition: int, future: "Future[Standby[Any, Any]]", error: BaseException | None) -> None:
        _LOG.warning("the standby of partition %d ended: %s", partition, error or "it follows no more")
        del self._made[partition]
        _close(future)


def _is_ready(future: "Future[Standby[Any, Any]]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _follows(future: "Future[Standby[Any, Any]]") -> bool:
    return _is_ready(future) and future.result().life is Life.OPEN


def _close(future: "Future[Standby[Any, Any]]") -> None:
    if _is_ready(future):
        future.result().close()
