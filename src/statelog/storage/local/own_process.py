"""`OwnProcess`: the process that an object belongs to. Threads, locks and local files are of no use in a fork.

A fork copies objects, and none of the threads that they count on: a lock that a thread held stays locked, and
what the copy would clean up still belongs to the parent. So in a fork such an object does nothing and says so.
"""

import os

from statelog.errors import ClosedError

__all__ = ["OwnProcess"]


class OwnProcess:
    """The process that makes this; `what` names in messages the thing that belongs to it."""

    __slots__ = ("_what", "pid")

    def __init__(self, what: str) -> None:
        self._what = what
        self.pid = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is another one: a fork."""
        return self.pid != os.getpid()

    def check(self) -> None:
        """Raise ClosedError in a fork."""
        if self.is_foreign:
            raise ClosedError(
                f"{self._what} was made in another process",
                hint="Make it after the fork, in the process that uses it",
                made_in_pid=self.pid,
                used_in_pid=os.getpid(),
            )
