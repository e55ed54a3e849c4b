"""`Pending`: the future outcome of a checkpoint, commit or record that was sent, in the thread of its owner.

There is no background thread: delivery reports are processed while the owner works, and when this is asked.

Invariant: it completes once, with a result or an error, which never changes.
"""

from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from statelog.errors import Misuse, StatelogError, Unavailable

T = TypeVar("T")


class Pending(Generic[T]):
    """A future result. Belongs to its owner's thread. Made by `Writer.persist`, `Writer.confirm_async` and
    `Table.commit_async`.

        >>> pending = writer.persist()              # sends, and waits for nothing
        >>> handle = pending.result()               # durable now
        >>> offset = writer.confirm(handle).offset  # and part of history

    `ask` processes due reports, waits so many seconds, and returns whether `take` would hardly wait. `take` waits for
    the result, and is called until it returns one, or raises a StatelogError other than Misuse.
    """

    __slots__ = ("_ask", "_error", "_result", "_take", "_what", "checkpoint_id")

    def __init__(self, what: str, checkpoint_id: int, ask: Callable[[float], bool], take: Callable[[], T]) -> None:
        self.checkpoint_id = checkpoint_id
        """The id of its checkpoint."""
        self._what = what
        self._ask = ask
        self._take = take
        self._result: list[T] = []
        self._error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether its outcome was taken. Processes no reports."""
        return bool(self._result) or self._error is not None

    def done(self) -> bool:
        """Return whether `result` would hardly wait. Processes due reports; never waits.

        A table's commit raises its error here, too, and that of an earlier failed commit.
        """
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait until `done` is True, or so many seconds have passed. Return `done`."""
        return self.is_over or self._ask(timeout_s)

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the result. Raises Unavailable after `timeout_s` (ask again), and Misuse in another thread, or
        inside of another call of its owner.

        Any other error is the outcome, and is raised every time: PersistFailed for a checkpoint, and the errors of
        `Writer.confirm` or `Table.commit` for a commit.
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
                    raise  # A call from a wrong thread, or of a closed owner, does not change the outcome.
                self.fail(error)
        if self._error is not None:
            raise self._error
        return self._result[0]

    def end(self, result: T) -> None:
        """Complete it with a result. For the owner."""
        if not self.is_over:
            self._result.append(result)
            self._ask = self._take = _over

    def fail(self, error: BaseException) -> None:
        """Complete it with an error. For the owner."""
        if not self.is_over:
            self._error = error
            self._ask = self._take = _over

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "done" if self.is_over else "pending"
        return f"Pending({self._what}, {state})"


def _over(*_: object) -> NoReturn:
    """Replace the callbacks of the owner, so that a completed result does not keep clients alive."""
    raise AssertionError("it is over")
