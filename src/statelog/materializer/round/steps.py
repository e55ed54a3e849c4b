"""The gaps between the steps of a round: where a test may end it, and where a round that was given up ends.

Invariant: a round is given up only before its put. After it the manifest exists, and the round finishes.
"""

from collections.abc import Callable

from statelog.errors import RoundGivenUp
from statelog.seams import CrashPoint

__all__ = ["CRASH_POINTS", "Steps"]

CRASH_POINTS = (
    "after-newest",  # the newest manifest was read, nothing written
    "after-fold",  # the target and its commits are known
    "after-delta",  # the delta run lies in the scratch directory
    "after-merge",  # so do merged runs
    "after-upload",  # the new runs lie in the store, and were read back
    "after-list",  # what will be removed is decided
    "after-put",  # the manifest exists; we do not know yet whether it counts
    "after-win",  # we know
    "after-check",  # the oldest kept snapshot was verified
    "after-cap",  # subscriptions over their cap were ended
    "after-drop",  # old manifests are gone
    "after-truncate-data",
    "after-truncate-ledger",
    "after-delete",  # files that no manifest names are gone
    "after-publish",  # the group offset is published, unless it cannot be
)
"""The names that `Seams.crash` is called with, in order: one between every two steps."""

_BEFORE_PUT = frozenset(CRASH_POINTS[: CRASH_POINTS.index("after-put")])


class Steps:
    """The gaps of one round. `is_given_up` is asked in each of those before the put, and between tables."""

    def __init__(self, crash: CrashPoint, is_given_up: Callable[[], bool]) -> None:
        self._crash = crash
        self._is_given_up = is_given_up

    def passed(self, point: str) -> None:
        """A step is done. Raises RoundGivenUp before the put, and whatever `crash` raises."""
        self._crash(point)
        if point in _BEFORE_PUT:
            self.go_on()

    def go_on(self) -> None:
        """Raise RoundGivenUp if the round was given up."""
        if self._is_given_up():
            raise RoundGivenUp("the round was given up before its put")
