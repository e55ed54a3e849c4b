"""`PendingHandle`: a checkpoint on its way to becoming durable, as a small future of the writer's own thread.

    pending = writer.persist()       # sent; nothing was waited for
    ...                              # more appends, even more checkpoints
    handle = pending.result()        # durable

Nothing runs behind the caller's back: delivery reports are taken while the writer appends or persists, or while
somebody asks here. Invariant: it ends once, with a handle or with an error, and stays so.
"""

from collections.abc import Callable

from statelog.errors import PersistFailed, Unavailable
from statelog.schemas.ledger.handle import Handle

__all__ = ["PendingHandle"]


class PendingHandle:
    """What `Writer.persist` returns. Belongs to the writer's thread.

    `wait` waits at most so long for the change sets and says whether they are durable; `make` makes the handle then.
    """

    __slots__ = ("_error", "_handle", "_make", "_wait", "checkpoint_id")

    def __init__(self, checkpoint_id: int, wait: Callable[[float | None], bool], make: Callable[[], Handle]) -> None:
        self.checkpoint_id = checkpoint_id
        self._wait = wait
        self._make = make
        self._handle: Handle | None = None
        self._error: PersistFailed | None = None

    def done(self) -> bool:
        """Whether `result` would return or fail at once. Takes the delivery reports that are due; never waits."""
        if self._handle is None and self._error is None:
            self._look(0.0)
        return self._handle is not None or self._error is not None

    def result(self, timeout_s: float | None = None) -> Handle:
        """The handle, once everything is durable.

        Raises PersistFailed if it cannot be, also because the writer was closed before, and then every time;
        Unavailable if `timeout_s` are over, and asking again is fine.
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
        state = "failed" if self._error is not None else "durable" if self._handle is not None else "under way"
        return f"PendingHandle({self.checkpoint_id}, {state})"

    def _look(self, timeout_s: float | None) -> None:
        try:
            if self._wait(timeout_s):
                self._handle = self._make()
        except PersistFailed as error:
            self._error = error
