"""`PendingHandle`: a future for a checkpoint's handle, in the writer's own thread.

    pending = writer.persist()       # sends, and waits for nothing
    ...                              # more appends, even more checkpoints
    handle = pending.result()        # durable

There is no background thread: delivery reports are processed while the writer appends or persists, and when this is
asked.

Invariant: it completes once, with a handle or an error, and keeps it.
"""

from collections.abc import Callable

from statelog.errors import PersistFailed, Unavailable
from statelog.schemas.ledger.handle import Handle

__all__ = ["PendingHandle"]


class PendingHandle:
    """The handle of a pending checkpoint. Belongs to the writer's thread; made by `Writer.persist`.

        >>> pending = writer.persist()              # sends, and waits for nothing
        >>> handle = pending.result()               # durable now
        >>> offset = writer.confirm(handle).offset  # and part of history

    `wait` waits up to a timeout and returns whether the change sets are durable; `make` then makes the handle.
    """

    __slots__ = ("_error", "_handle", "_make", "_wait", "checkpoint_id")

    def __init__(self, checkpoint_id: int, wait: Callable[[float | None], bool], make: Callable[[], Handle]) -> None:
        self.checkpoint_id = checkpoint_id
        self._wait = wait
        self._make = make
        self._handle: Handle | None = None
        self._error: PersistFailed | None = None

    def done(self) -> bool:
        """Whether `result` would return or raise at once. Processes the reports that are due; never waits."""
        if self._handle is None and self._error is None:
            self._look(0.0)
        return self._handle is not None or self._error is not None

    def result(self, timeout_s: float | None = None) -> Handle:
        """Wait until everything is durable, and return the handle.

        Raises PersistFailed if it cannot become durable, for example because the writer was closed, and then every
        time; Unavailable after `timeout_s`, when asking again is fine.
        """
        if self._handle is None and self._error is None:
            self._look(timeout_s)
        if self._error is not None:
            raise self._error
        if self._handle is None:
            raise Unavailable(
                "the checkpoint is not durable yet",
                checkpoint=self.checkpoint_id,
                hint="Ask again",
                timeout_s=timeout_s,
            )
        return self._handle

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "durable" if self._handle is not None else "pending"
        return f"PendingHandle({self.checkpoint_id}, {state})"

    def _look(self, timeout_s: float | None) -> None:
        try:
            if self._wait(timeout_s):
                self._handle = self._make()
        except PersistFailed as error:
            self._error = error
