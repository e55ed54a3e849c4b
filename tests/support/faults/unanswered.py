"""A record of the ledger that is appended, and whose answer is lost: its writer has to settle it."""

from statelog.testing.faults import Fate, SendAttempt

__all__ = ["Unanswered"]


class Unanswered:
    """The answer to the next record of the ledger is lost, once told so."""

    is_next = False

    def fate(self, attempt: SendAttempt) -> Fate:
        """Of a record."""
        is_lost = self.is_next and attempt.topic.endswith(".ledger")
        self.is_next = self.is_next and not is_lost
        return Fate.APPEND_UNANSWERED if is_lost else Fate.DELIVER
