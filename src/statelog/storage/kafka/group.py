"""The port of a consumer group: a member that reads the partitions which the group gives it, from places of its own.

`ConfluentMember` is the implementation on confluent-kafka. The group only says who reads what. Where a partition is
read from is said by `read_from`, and no offset of the group is ever read back.

What every implementation promises:

- The listener is called from inside `poll` and `close`, in their thread, and nowhere else.
- A listener is told where a partition ends, if it is read to its end: behind its last record there may be marks of
  transactions, and what they took back, which are never given.
- A partition that was assigned is not read before `read_from` names its place. After `revoked`, `lost` or `stop` no
  record of it is given, until `read_from` names it again.
- A partition is the group's to give again once `revoked` has returned, and not before. Before `lost` it may be another
  member's for long.
- What the listener raises comes out of the call that it was called from, and the group has gone on as if it had not.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from confluent_kafka import Message

__all__ = ["GroupListener", "GroupMember", "Taken"]


class GroupListener(Protocol):
    """Who is told what the group decides, as numbers of partitions of the one topic."""

    def assigned(self, partitions: Sequence[int]) -> None:
        """These are this member's from now on."""
        ...

    def revoked(self, partitions: Sequence[int]) -> None:
        """These are to be given up: they are another member's once this returns."""
        ...

    def lost(self, partitions: Sequence[int]) -> None:
        """These are gone: another member may have had them for long."""
        ...

    def ended(self, partition: int, end_offset: int) -> None:
        """Every record of a partition below this offset was given: from inside of `poll`, in the order of records."""
        ...

    def refused(self, partition: int, reason: str) -> None:
        """The broker does not have the place that a partition is read from."""
        ...


Taken = tuple[Message, int, int]
"""A record that the member was given, with its partition and its offset."""


class GroupMember(Protocol):
    """A member of a consumer group on one topic. Owned by one thread; never shared across a fork."""

    def poll(self, timeout_s: float) -> Taken | None:
        """The next record, or None if none came in that time. Whatever the group has decided is told meanwhile.

        Raises what the listener raised; ConfigError, NotFound, Fenced or BrokerUnavailable for what ends the member.
        """
        ...

    def at_hand(self) -> Taken | None:
        """The next record of those that are here already: asks nobody, and hears nothing of the group. None if there is
        none; then `poll`, and now and then in between, for only `poll` keeps the member in its group.
        """
        ...

    def read_from(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions, too, each from its offset on. One that the group has taken back is left out."""
        ...

    def stop(self, partitions: Sequence[int]) -> None:
        """Read these partitions no more, though the group has given them to this member."""
        ...

    def is_current(self, partition: int, offset: int) -> bool:
        """Ask the group whether this member is one of its present generation. False if it is not, or nobody says.

        The question is a commit of that offset, which lag tools see, and which is never read back.
        """
        ...

    def publish(self, offsets: Mapping[int, int]) -> None:
        """Commit these offsets to the group, for tools that look at its lag. Waits for nothing, fails for nothing."""
        ...

    def close(self) -> None:
        """Leave the group, and release the client. What is still assigned is revoked first. Idempotent."""
        ...
