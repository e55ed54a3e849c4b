"""Consumer groups: the port of a member that reads the partitions which the group gives it, from places of its own, and
the settings of one. `member` has the one on confluent-kafka.

The group only says who reads what. `read_from` says where a partition is read from, and no offset of the group is ever
read back. What every implementation promises:

- The listener is called from inside `poll` and `close`, in their thread, and nowhere else.
- A listener learns where a partition ends once it is read to its end: after its last record there may be transaction
  markers and aborted records, which are never given.
- A partition that was assigned is not read before `read_from` names its place. After `revoked`, `lost` or `stop` no
  record of it is given, until `read_from` names it again.
- The group can reassign a partition once `revoked` has returned, and not before. Before `lost` is called, the partition
  may long have been another member's.
- What the listener raises comes out of the call that it was called from, and the group has gone on as if it had not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from confluent_kafka import Message

from statelog.errors import ConfigError
from statelog.kafka.config import ClientConfig, client_config, member_properties, secret_of
from statelog.kafka.port import Kafka
from statelog.kafka.token import TokenFunction
from statelog.secrets import merge_secrets


class GroupListener(Protocol):
    """Who is told what the group decides, as numbers of partitions of the one topic."""

    def assigned(self, partitions: Sequence[int]) -> None:
        """These are this member's from now on."""

    def revoked(self, partitions: Sequence[int]) -> None:
        """These are to be given up: they are another member's once this returns."""

    def lost(self, partitions: Sequence[int]) -> None:
        """These are gone: another member may have had them for long."""

    def ended(self, partition: int, end_offset: int) -> None:
        """Every record of a partition below this offset was given: from inside of `poll`, in the order of records."""

    def refused(self, partition: int, reason: str) -> None:
        """The broker does not have the place that a partition is read from."""


Taken = tuple[Message, int, int]
"""A record that the member was given, with its partition and its offset."""


class GroupMember(Protocol):
    """A member of a consumer group on one topic. Owned by one thread; never shared across a fork."""

    def poll(self, timeout_s: float) -> Taken | None:
        """The next record, or None if none came in that time. The listener hears meanwhile what the group decides.

        Raises what the listener raised; ConfigError, NotFound, Unreadable, Fenced or BrokerUnavailable for what ends
        the member.
        """
        ...

    def at_hand(self) -> Taken | None:
        """The next record of those that are here already: asks nobody, and hears nothing of the group. None if there is
        none; then `poll`, and now and then in between, for only `poll` keeps the member in its group.
        """
        ...

    def read_from(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions, too, each from its offset on. One that the group has taken back is left out."""

    def stop(self, partitions: Sequence[int]) -> None:
        """Read these partitions no more, though the group has given them to this member."""

    def is_current(self, partition: int, offset: int) -> bool:
        """Ask the group whether this member is one of its present generation. False if it is not, or nobody says.

        The question is a commit of that offset, which lag tools see, and which is never read back.
        """
        ...

    def publish(self, offsets: Mapping[int, int]) -> None:
        """Commit these offsets to the group, for tools that look at its lag. Waits for nothing, fails for nothing."""

    def known_end(self, partition: int) -> int | None:
        """The end of a partition that is read, as the last answer to a fetch said. Asks nobody; None before that."""
        ...

    def close(self) -> None:
        """Leave the group, and release the client. What is still assigned is revoked first. Idempotent."""


# ---- settings


@runtime_checkable
class GroupKafka(Kafka, Protocol):
    """A cluster whose port makes the members of groups, too, as a twin does: it has no settings for a client."""

    def join_group(self, group: str, topic: str, listener: GroupListener) -> GroupMember:
        """A new member of a group."""
        ...


_GROUP = (
    "group.id", "group.instance.id", "group.protocol", "group.remote.assignor", "partition.assignment.strategy",
    "isolation.level",
)  # fmt: skip
"""What a member says of its group, and of what it reads: the user's."""
_OFF = {
    "enable.auto.commit": "input offsets are committed with the state, and never in the group",
    "auto.commit.enable": "input offsets are committed with the state, and never in the group",
    "enable.auto.offset.store": "input offsets are committed with the state, and never in the group",
    "enable.partition.eof": "the loop gets messages, and no ends",
}
"""What may be said to be off: of the loop's messages it is."""
_REFUSED = {
    "auto.commit.interval.ms": "nothing is committed in the group",
    "auto.offset.reset": "a place that is gone is an error; start=... says where a table without progress begins",
    "offset.store.method": "nothing is stored in the group",
}
STRATEGY = "partition.assignment.strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Checked settings of a member: `config` is the connection, `properties` is all that the client is given."""

    config: ClientConfig
    properties: Mapping[str, str]

    @property
    def group(self) -> str:
        """The name of the group."""
        return self.properties["group.id"]

    @property
    def is_cooperative(self) -> bool:
        """Whether the group takes single partitions from a member, and not all of them at every change."""
        strategy = self.properties.get(STRATEGY, "")
        return self.properties.get("group.protocol", "classic").lower() == "consumer" or "cooperative" in strategy

    @property
    def is_static(self) -> bool:
        """Whether the member has a name, under which its next life finds its partitions."""
        return bool(self.properties.get("group.instance.id"))


def group_settings(
    given: Mapping[str, str],
    connection: Mapping[str, str],
    *,
    default_group: str,
    token: TokenFunction | str | None = None,
) -> GroupSettings:
    """The settings of a member, from the user's. Where these name no broker, the `connection` and its `token` are the
    log's.

    Raises ConfigError that names the setting and the reason.
    """
    for name, value in given.items():
        _check(name, value)
    group = {"group.id": default_group, **{name: given[name] for name in _GROUP if name in given}}
    if not group["group.id"].strip():
        raise ConfigError("group.id is empty", hint="Name the group, or leave it out: then it has the log's name")
    if group.get("group.protocol", "classic").lower() != "consumer":
        group.setdefault(STRATEGY, "cooperative-sticky")
    others = {name: value for name, value in given.items() if name not in group and name not in _OFF}
    is_other = "bootstrap.servers" in given
    merged = merge_secrets(connection, others, secret_of)
    config = client_config(others) if is_other else client_config(merged, token)
    return GroupSettings(config=config, properties={**member_properties(config), **group})


def _check(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise ConfigError(
            f"consumer setting {name!r} is not text", hint="Write every setting as text, such as 'false' or '30000'"
        )
    reason = _REFUSED.get(name)
    if name in _OFF and value.strip().lower() not in {"false", "0", "f", "no"}:
        reason = _OFF[name]
    if reason is not None:
        raise ConfigError(f"consumer setting {name} is refused: {reason}", hint=f"Remove {name}", setting=name)
