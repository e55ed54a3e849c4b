"""A ledger record that is appended while its answer is lost: its writer has to resolve the outcome."""

from statelog.testing.faults import Fate, SendAttempt

__all__ = ["Unanswered"]


class Unanswered:
    """A fault that loses the answer to the next ledger record, once armed."""

    is_next = False

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the fate of a record."""
        is_lost = self.is_next and attempt.topic.endswith(".ledger")
        self.is_next = self.is_next and not is_lost
        return Fate.APPEND_UNANSWERED if is_lost else Fate.DELIVER
