"""`GroupSettings`: the settings of a member of a consumer group, from the user's by librdkafka's names. Pure.

Invariant: no setting of the user makes the group's offsets count, or has the client choose a place to read from.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from statelog.errors import ConfigError
from statelog.storage.kafka.config import ClientConfig, check_kafka, client_config, member_properties

__all__ = ["GroupSettings", "group_settings"]

_GROUP = (
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "partition.assignment.strategy",
    "isolation.level",
)
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
_STRATEGY = "partition.assignment.strategy"
_DEFAULT_STRATEGY = "cooperative-sticky"


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
        strategy = self.properties.get(_STRATEGY, "")
        return self.properties.get("group.protocol", "classic").lower() == "consumer" or "cooperative" in strategy

    @property
    def is_static(self) -> bool:
        """Whether the member has a name, under which its next life finds its partitions."""
        return bool(self.properties.get("group.instance.id"))


def group_settings(given: Mapping[str, str], connection: Mapping[str, str], *, default_group: str) -> GroupSettings:
    """The settings of a member, from the user's. Where these name no broker, the `connection` is the log's.

    Raises ConfigError that names the setting and the reason.
    """
    check_kafka(connection)
    for name, value in given.items():
        _check(name, value)
    group = {"group.id": default_group, **{name: given[name] for name in _GROUP if name in given}}
    if not group["group.id"].strip():
        raise ConfigError("group.id is empty", hint="Name the group, or leave it out: then it has the log's name")
    if group.get("group.protocol", "classic").lower() != "consumer":
        group.setdefault(_STRATEGY, _DEFAULT_STRATEGY)
    others = {name: value for name, value in given.items() if name not in group and name not in _OFF}
    config = client_config(others if "bootstrap.servers" in given else {**connection, **others})
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
