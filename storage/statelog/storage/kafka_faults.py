"""Faults that the in-memory Kafka plays on records that are sent.

Owns the names of what can become of one record, and the hook that decides it. It is pure and knows no log. Each fate
is one that a real broker and librdkafka can produce; what a fate does to the records behind it is written here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

__all__ = ["Fate", "Faults", "ScriptedFaults", "SendAttempt"]


class Fate(Enum):
    """What becomes of one record that was sent."""

    DELIVER = "deliver"
    """Appended and reported OK at the next poll."""
    DELAY = "delay"
    """On its way until the cluster's `release`; later records of this producer and partition wait behind it."""
    LOSE = "lose"
    """Reported UNKNOWN, never appended; so is every later record of this producer and partition."""
    SKIP = "skip"
    """Reported UNKNOWN, never appended, but later records are: the hole of a record that timed out in the queue."""
    APPEND_UNANSWERED = "append-unanswered"
    """Appended at the next poll or at close, and reported UNKNOWN: the answer was lost."""
    ACK_WITHOUT_OFFSET = "ack-without-offset"
    """The same, as a broker does that answers 'duplicate sequence number': UNKNOWN for lack of an offset."""
    FAIL = "fail"
    """Reported FAILED, never appended; later records are not touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttempt:
    """One record at the moment it is sent. `number` counts the sends of the cluster, from 0; `producer` is an id."""

    number: int
    producer: int
    topic: str
    partition: int
    value: bytes


class Faults(Protocol):
    """Decides the fate of each record. Called once per send, under the cluster's lock, in order."""

    def fate(self, attempt: SendAttempt) -> Fate:
        """The fate of this record."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedFaults:
    """Fates by number of the send; all others are delivered."""

    fates: Mapping[int, Fate] = field(default_factory=dict[int, Fate])

    def fate(self, attempt: SendAttempt) -> Fate:
        """The fate that the script names for this send."""
        return self.fates.get(attempt.number, Fate.DELIVER)
