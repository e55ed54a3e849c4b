"""`TableCommit`: what becomes of one commit of a table, told in the table's own thread.

Invariant: it is over once, with a commit or an error, and keeps it.
"""

from collections.abc import Callable

from statelog.schemas.ledger.state import LastCommit

__all__ = ["TableCommit"]


class TableCommit:
    """A commit that is under way. Belongs to the table's thread; made by `Table.commit_async`.

        >>> commit = table.commit_async({"offset": 42})  # sends, and waits for nothing
        >>> commit.result().metadata                     # once it is history
        {'offset': 42}

    `advance` takes what has come in, or with True waits for the next step.
    """

    __slots__ = ("_advance", "_error", "_last")

    def __init__(self, advance: Callable[[bool], None]) -> None:
        self._advance = advance
        self._last: LastCommit | None = None
        self._error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether its outcome is known here. Asks nobody."""
        return self._last is not None or self._error is not None

    def done(self) -> bool:
        """Whether its outcome is known, once what has come in by now is taken. Never waits. Raises as `result`, also
        for an earlier commit that failed.
        """
        if not self.is_over:
            self._advance(False)
        return self.is_over

    def result(self) -> LastCommit:
        """Wait until it is history. A later commit of the table may have made it so: that one is returned then.

        Raises PersistFailed, Fenced, CommitRefused, OutcomeUnknown, Unavailable, Damaged, and then every time; each
        ends the table.
        """
        while not self.is_over:
            self._advance(True)
        if self._error is not None:
            raise self._error
        assert self._last is not None
        return self._last

    def end(self, last: LastCommit | None, error: BaseException | None = None) -> None:
        """It is over. For the table."""
        self._last, self._error = last, error

    def __repr__(self) -> str:
        return f"TableCommit({'failed' if self._error else 'committed' if self._last else 'under way'})"
