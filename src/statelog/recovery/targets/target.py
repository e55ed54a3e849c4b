"""`Target`: the protocol that all targets of a recovery share."""

from typing import Generic, NamedTuple, Protocol, TypeVar

from statelog.recovery.reading.plan_reader import PlanReader

__all__ = ["Filled", "Target"]

T = TypeVar("T")


class Filled(NamedTuple, Generic[T]):
    """A target that is complete: what its caller gets, and how many rows it has."""

    result: T
    rows: int


class Target(Protocol[T]):
    """Takes one state. Knows nothing of plans and leases; whatever reading raises passes through it."""

    def check(self) -> None:
        """Raise, before anything is read, for a target that cannot be filled."""
        ...

    def fill(self, reader: PlanReader) -> Filled[T]:
        """Take the state; nothing is handed out before the end. Called again, it starts anew."""
        ...
