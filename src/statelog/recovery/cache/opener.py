"""How a run is opened for reading: the protocol, and the opener without a cache.

Invariants:
- What an opener hands out reads the bytes of that run and nothing else; who decodes them verifies them.
- `hold` and `close` are idempotent, and after `close` an opener can be held again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from statelog.closing import Closing
from statelog.schemas.snapshot.runs import RunFile
from statelog.storage.log.log import Log
from statelog.storage.store import Store

__all__ = ["DirectOpener", "NoCache", "OneRun", "OpenerSettings", "RunOpener"]


class RunOpener(Protocol):
    """Opens the runs of one log, on behalf of one recovery. Held by `hold` or `with`, until `close`."""

    def hold(self) -> None:
        """Take what opening needs, beforehand. Raises ConfigError, StoreUnavailable."""
        ...

    def open(self, run: RunFile) -> AbstractContextManager[BinaryIO]:
        """A seekable reader. Raises NotFound, StoreUnavailable, and what `hold` raises."""
        ...

    def distrust(self, run: RunFile) -> bool:
        """What was handed out of this run did not verify. Tells whether it was a copy; it is handed out no more."""
        ...

    def close(self) -> None:
        """Give back what `hold` took. What is open stays readable."""
        ...

    def __enter__(self) -> Self:
        """Hold it."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        ...


class OpenerSettings(Protocol):
    """A choice of opener, made before the log is known."""

    def opener(self, log: Log) -> RunOpener:
        """A new opener for one recovery of this log; nothing is taken yet."""
        ...


@dataclass(frozen=True, slots=True)
class NoCache:
    """Runs are read from the log's store, by every recovery anew."""

    def opener(self, log: Log) -> "DirectOpener":
        """The opener on the log's store."""
        return DirectOpener(log.store)


class DirectOpener(Closing):
    """Opens runs on a store. Holds nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def hold(self) -> None:
        """Nothing is needed."""

    def open(self, run: RunFile) -> AbstractContextManager[BinaryIO]:
        """A reader of ranges of the file in the store. Raises NotFound, StoreUnavailable."""
        return self._store.open(run.path)

    def distrust(self, run: RunFile) -> bool:  # noqa: ARG002 - whatever the run, it was read where it lies
        """It was the store's own file."""
        return False

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class OneRun:
    """One run as the source that a RunReader asks for, opened by `opening`."""

    run: RunFile
    opening: Callable[[RunFile], AbstractContextManager[BinaryIO]]

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open the run, which has this path. Raises as `opening` does."""
        assert path == self.run.path, "this source has one run only"
        return self.opening(self.run)
