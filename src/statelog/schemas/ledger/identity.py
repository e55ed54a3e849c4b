"""The identity of a log: the ids of its cluster and its two topics, which Kafka never reuses.

A topic that is deleted and recreated keeps its name and starts again at offset 0, so every place that
stores an offset stores the identity beside it: descriptor, Open, handle, manifest.
"""

from dataclasses import dataclass
from typing import cast

from statelog.schemas.avro import Datum

__all__ = ["LogIdentity", "shown_id"]

_AS_TOOLS_PRINT = str.maketrans("+/", "-_")


def shown_id(found: str) -> str:
    """A topic's id as Kafka's own tools print it: in the base64 of URLs. Files and records have the standard one."""
    return found.translate(_AS_TOOLS_PRINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """Cluster id and topic ids, as the cluster prints them."""

    cluster_id: str
    data_topic_id: str
    ledger_topic_id: str

    def to_datum(self) -> dict[str, str]:
        """As Avro wants it."""
        return {
            "cluster_id": self.cluster_id,
            "data_topic_id": self.data_topic_id,
            "ledger_topic_id": self.ledger_topic_id,
        }

    @classmethod
    def from_datum(cls, datum: object) -> "LogIdentity":
        """From what Avro gives."""
        fields = cast("Datum", datum)
        return cls(
            cluster_id=cast("str", fields["cluster_id"]),
            data_topic_id=cast("str", fields["data_topic_id"]),
            ledger_topic_id=cast("str", fields["ledger_topic_id"]),
        )
