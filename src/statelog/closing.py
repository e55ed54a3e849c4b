"""Closing: `Closing` makes a class with `close` a context manager, `undone_by_errors` undoes a failed block, and
`OwnProcess` is the process that an object belongs to.

Invariants: leaving the block closes, however it ends, and never hides its exception. A fork closes nothing of its
parent.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import ParamSpec, Self

from statelog.errors import ClosedError

P = ParamSpec("P")


class Closing(ABC):
    """A mixin: a context manager that closes itself."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()


@contextmanager
def undone_by_errors(undo: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Generator[None]:
    """Call `undo` with these arguments if the block raises anything."""
    try:
        yield
    except BaseException:
        undo(*args, **kwargs)
        raise


class OwnProcess:
    """The process that an object belongs to; `what` names the object in messages.

    A fork copies objects but not their threads: a lock that a thread held stays locked, and the files to clean up still
    belong to the parent. So in a fork such an object does nothing, and raises ClosedError when it is used.
    """

    __slots__ = ("_what", "pid")

    def __init__(self, what: str) -> None:
        self._what = what
        self.pid = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the object's own."""
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
