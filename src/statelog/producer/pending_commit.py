"""`PendingCommit`: a commit that was sent to the ledger, and its outcome, in the writer's own thread.

There is no background thread: delivery reports are processed while the writer appends, and when this is asked.

Invariant: it is over once, with a commit or an error, and keeps it.
"""

from collections.abc import Callable

from statelog.errors import NestedCall
from statelog.schemas.ledger.state import LastCommit

__all__ = ["PendingCommit"]


class PendingCommit:
    """The outcome of a commit. Belongs to the writer's thread; made by `Writer.confirm_async`.

    `is_answered` says whether `finish` would not wait; `finish` is asked once.
    """

    __slots__ = ("_error", "_finish", "_is_answered", "_last", "checkpoint_id")

    def __init__(self, checkpoint_id: int, is_answered: Callable[[], bool], finish: Callable[[], LastCommit]) -> None:
        self.checkpoint_id = checkpoint_id
        self._is_answered = is_answered
        self._finish = finish
        self._last: LastCommit | None = None
        self._error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether its outcome was taken."""
        return self._last is not None or self._error is not None

    def done(self) -> bool:
        """Whether `result` would hardly wait. Processes the reports that are due."""
        return self.is_over or self._is_answered()

    def result(self) -> LastCommit:
        """Wait until the ledger shows the commit valid. Raises as `Writer.confirm`, and then every time."""
        if self._error is not None:
            raise self._error
        if self._last is None:
            try:
                self._last = self._finish()
            except NestedCall:
                raise  # Who comes when that call is over is told.
            except BaseException as error:
                self._error = error
                raise
        return self._last

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "committed" if self._last is not None else "under way"
        return f"PendingCommit({self.checkpoint_id}, {state})"
