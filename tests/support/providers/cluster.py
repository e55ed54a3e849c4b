"""The in-memory cluster on the terms of a `Provider`."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from statelog.kafka.port import Delivery, DeliveryStatus, TopicDescription, TopicSpec
from statelog.testing.cluster import MemoryCluster, Sending
from statelog.testing.faults import Answer, Fate
from tests.support.providers.provider import Provider

__all__ = ["ProviderCluster"]

_REQUESTS = {"delete_records": "DeleteRecords", "commit_transaction": "EndTxn"}
"""The request of a call, where a service may lack it."""


class ProviderCluster(MemoryCluster):
    """A `MemoryCluster` that refuses, hides and lacks the same as the service; its network plays no part."""

    def __init__(self, provider: Provider, *, clock: Callable[[], float] | None = None) -> None:
        super().__init__(clock=clock)
        self.provider = provider

    def answer(self, method: str, topic: str = "", partitions: Iterable[int] = ()) -> Answer:
        """Answer as the twin does. Raises ConfigError for a request that the service lacks."""
        if method in _REQUESTS:
            self.provider.check_request(_REQUESTS[method])
        return super().answer(method, topic, partitions)

    def create(self, spec: TopicSpec) -> None:
        """Make a topic. Raises ConfigError, as a service with a policy for new topics does, and AlreadyExists."""
        self.provider.check_settings(spec.name, spec.config)
        super().create(spec)

    def describe(self, topic: str) -> TopicDescription | None:
        """Return the topic without the settings that the service hides."""
        found = super().describe(topic)
        if found is None:
            return None
        return replace(found, topic_id=self.provider.topic_id(found.topic_id), config=self.provider.told(found.config))

    def advance(self, sending: Sending) -> None:
        """Acknowledge a late-placed record with the offset that it gets if no other record intervenes.

        `release` gives it its own offset.
        """
        if self.provider.places_late and sending.fate is Fate.DELIVER:
            sending.fate = Fate.DELAY
        super().advance(sending)
        if self.provider.places_late and sending.outcome is None:
            attempt = sending.attempt
            ahead = sum(held.lane[1:] == sending.lane[1:] for held in self._held) - 1
            offset = self.log(attempt.topic, attempt.partition).end + ahead
            sending.outcome = Delivery(DeliveryStatus.OK, offset, "")
