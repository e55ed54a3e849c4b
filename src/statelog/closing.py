"""`Closing`: makes a class with a `close` a context manager; `undone_by_errors`: what a failed block takes back;
`OwnProcess`: the process that an object belongs to.

Invariants: leaving the block closes, however it ends, and never hides its exception. In a fork nothing is closed that
is the parent's.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import ParamSpec, Self

from statelog.errors import ClosedError

P = ParamSpec("P")


class Closing(ABC):
    """A mixin: the context manager that closes itself."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what is held. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()


@contextmanager
def undone_by_errors(undo: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Generator[None]:
    """A block after which, if it fails in whatever way, `undo` is called with these arguments."""
    try:
        yield
    except BaseException:
        undo(*args, **kwargs)
        raise


class OwnProcess:
    """The process that makes this; `what` names in messages the thing that belongs to it.

    A fork copies objects, and none of the threads that they count on: a lock that a thread held stays locked, and what
    the copy would clean up still belongs to the parent. So in a fork such an object does nothing and says so.
    """

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
