"""`Look`: what a standby says of a key, and how far it was when it said so."""

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Look"]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Look(Generic[V]):
    """A value, None if the key is not there; the ledger position of the state that it was read from; and how many
    seconds ago that state was last known to be level with the ledger's end.
    """

    value: V | None
    position: int
    age_s: float
