"""`Provider`: the differences of a rented Kafka from Apache's, as data, and services as their pages describe them.

The twin of a cluster takes one, and a proxy before a real broker. So a program meets its broker's terms before it meets
the broker.

Names of settings and requests are Kafka's own. A profile repeats the service's pages or users' reports: none of it was
measured here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from statelog.kafka.errors import client_error
from statelog.schemas.topic_policy import NO_TOPIC_ID

_NO_LIMIT = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The terms of a service. Each field that is left out is as Apache Kafka has it.

    name               of the service
    refuses            settings that a new topic must not name
    least, most        least and greatest value of a setting that a new topic may name
    sets               settings that every new topic has, whatever it names
    untold             settings that are left out of answers to DescribeConfigs
    lacks              requests that it does not support
    has_topic_ids      whether topics have ids
    is_terse           whether it refuses settings without their names
    places_late        whether it acknowledges records before their place in the log is known: they get it later, behind
                       the records that came meanwhile

    Of its network, which only a proxy plays; 0 means never or nothing:

    latency_s          how much longer the answer to each request takes
    throttle_s         how long a connection is not read after each answer to a produce, which says so
    idle_s             after how long an idle connection is cut
    session_s          after how long a connection is cut at its next request, as if its client did not log in again
    rolls_s            how often all brokers are restarted: connections are cut, answers under way are lost, and
                       every partition has another leader, which the next request for it learns once
    """

    name: str
    refuses: frozenset[str] = frozenset()
    least: Mapping[str, int] = field(default_factory=dict[str, int])
    most: Mapping[str, int] = field(default_factory=dict[str, int])
    sets: Mapping[str, str] = field(default_factory=dict[str, str])
    untold: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    has_topic_ids: bool = True
    is_terse: bool = False
    places_late: bool = False
    latency_s: float = 0.0
    throttle_s: float = 0.0
    idle_s: float = 0.0
    session_s: float = 0.0
    rolls_s: float = 0.0

    def refusal(self, config: Mapping[str, str]) -> str:
        """Return the service's refusal of a new topic with these settings; empty if it takes them."""
        wrong = [
            key
            for key in sorted(config)
            if key in self.refuses
            or not self.least.get(key, -_NO_LIMIT) <= _number(config[key]) <= self.most.get(key, _NO_LIMIT)
        ]
        if not wrong:
            return ""
        return "refused by policy" if self.is_terse else f"Config {', '.join(wrong)} cannot be set"

    def check_settings(self, topic: str, config: Mapping[str, str]) -> None:
        """Raise ConfigError, as a service with a policy for new topics does, unless these settings may be given."""
        if refusal := self.refusal(config):
            raise client_error("POLICY_VIOLATION", refusal, "creating a topic", "memory", topic=topic)

    def check_request(self, request: str) -> None:
        """Raise ConfigError if the service lacks a request."""
        if request in self.lacks:
            raise client_error("_UNSUPPORTED_FEATURE", f"{request} not supported by broker", "it", "memory")

    def told(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the settings that a client sees of a topic with these settings."""
        return {key: value for key, value in {**config, **self.sets}.items() if key not in self.untold}

    def topic_id(self, topic_id: str) -> str:
        """Return the id that a client sees of a topic with this id."""
        return topic_id if self.has_topic_ids else NO_TOPIC_ID


def _number(value: str) -> float:
    return int(value) if value.lstrip("-").isdecimal() else float("inf")


APACHE = Provider(name="Apache Kafka")
CONFLUENT_CLOUD = Provider(
    name="Confluent Cloud, Dedicated",
    refuses=frozenset({"unclean.leader.election.enable"}),
    least={"segment.bytes": 50 << 20},
    sets={"min.insync.replicas": "2"},
)
CONFLUENT_CLOUD_STANDARD = replace(
    CONFLUENT_CLOUD, name="Confluent Cloud, Basic, Standard, Enterprise", most={"max.message.bytes": 8 << 20}
)
MSK_EXPRESS = Provider(
    name="Amazon MSK Express",
    refuses=frozenset({"segment.bytes", "unclean.leader.election.enable"}),
    sets={"min.insync.replicas": "2"},
    lacks=frozenset({"DeleteRecords"}),
)
REDPANDA = Provider(
    name="Redpanda", untold=frozenset({"min.insync.replicas", "unclean.leader.election.enable"}), has_topic_ids=False
)
"""A cluster from before September 2025."""
WARPSTREAM = Provider(name="WarpStream", lacks=frozenset({"DeleteRecords"}))
WARPSTREAM_LIGHTNING = Provider(
    name="WarpStream, lightning topics",
    sets={"warpstream.topic.type": "lightning"},
    lacks=frozenset({"DeleteRecords"}),
    places_late=True,
)
SERVICES = (APACHE, CONFLUENT_CLOUD, CONFLUENT_CLOUD_STANDARD, MSK_EXPRESS, REDPANDA, WARPSTREAM, WARPSTREAM_LIGHTNING)
"""All services that are described here."""
