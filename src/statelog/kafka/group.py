"""Consumer groups: the port of a member that reads its assigned partitions from offsets of its own, and its settings.
`member` implements it on confluent-kafka.

The group only assigns partitions. `read_from` names the offset of each, and the group's offsets are never read. Every
implementation promises:

- The listener is called from inside `poll` and `close`, in their thread, and nowhere else.
- A listener learns a partition's end once it is read to its end: behind the last record there may be transaction
  markers and aborted records, which are never returned.
- An assigned partition is not read before `read_from` names its offset. After `revoked`, `lost` or `stop` none of its
  records is returned until `read_from` names it again.
- The group can reassign a partition only once `revoked` has returned. When `lost` is called, another member may have
  had it for long.
- An error of the listener is raised by the call in which it was called; the group goes on as if there were none.
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
    """Receives the decisions of the group, as partition numbers of the one topic."""

    def assigned(self, partitions: Sequence[int]) -> None:
        """Take over these partitions."""

    def revoked(self, partitions: Sequence[int]) -> None:
        """Release these partitions: another member may get them once this returns."""

    def lost(self, partitions: Sequence[int]) -> None:
        """Drop these partitions: another member may have had them for long."""

    def ended(self, partition: int, end_offset: int) -> None:
        """Note that every record of a partition below this offset was returned: inside `poll`, in record order."""

    def refused(self, partition: int, reason: str) -> None:
        """Note that the broker does not have the next offset of a partition."""


Taken = tuple[Message, int, int]
"""A record with its partition and its offset."""


class GroupMember(Protocol):
    """A member of a consumer group on one topic. Owned by one thread; never shared across a fork."""

    def poll(self, timeout_s: float) -> Taken | None:
        """Return the next record, or None if none came in that time. Call the listener for the group's decisions.

        Raises the listener's error. Raises ConfigError, NotFound, Unreadable, Fenced or BrokerUnavailable, which end
        the member.
        """
        ...

    def at_hand(self) -> Taken | None:
        """Return the next record that was already fetched, or None. Calls neither broker nor listener. Call `poll` when
        it returns None, and now and then: only `poll` keeps the member in its group.
        """
        ...

    def read_from(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions, too, each from its offset on. Leave out those that the group has revoked."""

    def stop(self, partitions: Sequence[int]) -> None:
        """Stop reading these partitions, which stay assigned."""

    def is_current(self, partition: int, offset: int) -> bool:
        """Ask the group whether this member is one of its present generation. Return False also without an answer.

        The request is a commit of that offset, which lag tools see, and which is never read.
        """
        ...

    def publish(self, offsets: Mapping[int, int]) -> None:
        """Commit these offsets to the group, for lag tools. Waits for nothing, and never fails."""

    def known_end(self, partition: int) -> int | None:
        """Return the end of a partition by the last fetch, without a request; None before the first."""
        ...

    def close(self) -> None:
        """Leave the group, and release the client. Assigned partitions are first revoked. Idempotent."""


# ---- settings


@runtime_checkable
class GroupKafka(Kafka, Protocol):
    """A cluster whose port also makes members of groups, as a twin does, which has no client settings."""

    def join_group(self, group: str, topic: str, listener: GroupListener) -> GroupMember:
        """Make a member of a group."""
        ...


_GROUP = (
    "group.id", "group.instance.id", "group.protocol", "group.remote.assignor", "partition.assignment.strategy",
    "isolation.level",
)  # fmt: skip
"""The user's settings of the group, and of what a member reads."""
_OFF = {
    "enable.auto.commit": "input offsets are committed with the state, and never in the group",
    "auto.commit.enable": "input offsets are committed with the state, and never in the group",
    "enable.auto.offset.store": "input offsets are committed with the state, and never in the group",
    "enable.partition.eof": "the loop gets messages, and no ends",
}
"""Settings that the user may only turn off."""
_REFUSED = {
    "auto.commit.interval.ms": "nothing is committed in the group",
    "auto.offset.reset": "a missing offset is an error; start=... says where a table without progress begins",
    "offset.store.method": "nothing is stored in the group",
}
STRATEGY = "partition.assignment.strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Checked settings of a member: `config` is the connection, `properties` are all settings of the client."""

    config: ClientConfig
    properties: Mapping[str, str]

    @property
    def group(self) -> str:
        """The name of the group."""
        return self.properties["group.id"]

    @property
    def is_cooperative(self) -> bool:
        """Whether the group revokes single partitions, and not all of them at every change."""
        strategy = self.properties.get(STRATEGY, "")
        return self.properties.get("group.protocol", "classic").lower() == "consumer" or "cooperative" in strategy

    @property
    def is_static(self) -> bool:
        """Whether the member has a name, under which its next process finds its partitions."""
        return bool(self.properties.get("group.instance.id"))


def group_settings(
    given: Mapping[str, str],
    connection: Mapping[str, str],
    *,
    default_group: str,
    token: TokenFunction | str | None = None,
) -> GroupSettings:
    """Make the settings of a member from the user's. If these name no broker, use the log's `connection` and `token`.

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
