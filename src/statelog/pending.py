"""`Pending`: what becomes of something that was sent, in the thread of its owner: a checkpoint, a commit, a record.

There is no background thread: delivery reports are processed while the owner works, and when this is asked.

Invariant: it is over once, with a result or an error, and keeps it.
"""

from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from statelog.errors import Misuse, StatelogError, Unavailable

T = TypeVar("T")


class Pending(Generic[T]):
    """A result that is still to come. Belongs to its owner's thread. Made by `Writer.persist`, `Writer.confirm_async`
    and `Table.commit_async`.

        >>> pending = writer.persist()              # sends, and waits for nothing
        >>> handle = pending.result()               # durable now
        >>> offset = writer.confirm(handle).offset  # and part of history

    `ask` takes what has come in, waits for it so many seconds, and returns whether `take` would hardly wait. `take`
    waits for the result, and is asked until it returns one, or raises an error of ours that is no misuse.
    """

    __slots__ = ("_ask", "_error", "_result", "_take", "_what", "checkpoint_id")

    def __init__(self, what: str, checkpoint_id: int, ask: Callable[[float], bool], take: Callable[[], T]) -> None:
        self.checkpoint_id = checkpoint_id
        """Which checkpoint it belongs to."""
        self._what = what
        self._ask = ask
        self._take = take
        self._result: list[T] = []
        self._error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether its outcome was taken. Asks nobody."""
        return bool(self._result) or self._error is not None

    def done(self) -> bool:
        """Whether `result` would hardly wait. Processes the reports that are due; never waits.

        A table's commit raises its error here, too, and that of an earlier one that failed.
        """
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """As `done`, once so many seconds have passed or it is True."""
        return self.is_over or self._ask(timeout_s)

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the result. Raises Unavailable after `timeout_s`, when asking again is fine; Misuse in another
        thread, or inside of another call of its owner.

        Any other error is the outcome, and raised every time: PersistFailed for a checkpoint, what `Writer.confirm` or
        `Table.commit` raises for a commit.
        """
        if timeout_s is not None and not self.wait(timeout_s):
            raise Unavailable(
                f"{self._what} is not over yet",
                checkpoint=self.checkpoint_id,
                timeout_s=timeout_s,
                hint="Ask again",
            )
        if not self.is_over:
            try:
                self.end(self._take())
            except StatelogError as error:
                if isinstance(error, Misuse):
                    raise  # Who asks at the wrong place, or of what is closed, is told, and changes nothing.
                self.fail(error)
        if self._error is not None:
            raise self._error
        return self._result[0]

    def end(self, result: T) -> None:
        """It has come. For the owner."""
        if not self.is_over:
            self._result.append(result)
            self._ask = self._take = _over

    def fail(self, error: BaseException) -> None:
        """It will not come. For the owner."""
        if not self.is_over:
            self._error = error
            self._ask = self._take = _over

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "done" if self.is_over else "pending"
        return f"Pending({self._what}, {state})"


def _over(*_: object) -> NoReturn:
    """In place of what refers to the owner: what is kept for its result must not keep clients alive."""
    raise AssertionError("it is over")
