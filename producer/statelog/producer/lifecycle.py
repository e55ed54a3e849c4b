"""The life of a writer, as an enum that owns its legal transitions.

    OPEN ──────► FAILED ──────► CLOSED
      └────────────────────────────▲

A failed writer accepts nothing but close: something that it sent is lost or unknown, and only a new life,
resumed from the ledger, can tell what counts.
"""

from enum import Enum

__all__ = ["Life"]


class Life(Enum):
    """Where a writer is."""

    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"

    def may_become(self, other: "Life") -> bool:
        """Whether the step is legal; staying is."""
        return self is other or other in _STEPS[self]


_STEPS = {Life.OPEN: {Life.FAILED, Life.CLOSED}, Life.FAILED: {Life.CLOSED}, Life.CLOSED: set[Life]()}
