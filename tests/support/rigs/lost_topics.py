"""Logs whose topics somebody deletes, or makes anew, and the person who accepts that."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

from statelog.environment import Environment, Wait
from statelog.materializer.round import run_round
from statelog.storage.kafka import Kafka
from statelog.storage.log.log import Log
from statelog.storage.log.loss import TopicLoss, accept_topic_loss
from statelog.storage.store import Store
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import TwinLog, settings_for, where_at

__all__ = ["BOTH", "KEPT", "accept", "anew", "gone", "made"]

KEPT = 5
"""So many commits are in the snapshot; those behind it are lost with the ledger."""
BOTH = ("log", "log.ledger")


def _agreed(_: TopicLoss) -> None:
    """A person who knows."""


def _at_once(_event: Event, _timeout_s: float) -> None:
    """A simulated second."""


def made(tmp_path: Path) -> TwinLog:
    """A log with a snapshot, and with commits behind it that are not part of the model."""
    twin = TwinLog()
    for i in range(KEPT):
        twin.write({b"k%d" % i: b"v"})
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    kept = dict(twin.model)
    for i in range(4):
        twin.write({b"lost%d" % i: b"v"})
    twin.model = kept
    return twin


def gone(*topics: str) -> Callable[[TwinLog], None]:
    """Somebody deletes these topics."""

    def strike(twin: TwinLog) -> None:
        for topic in topics:
            MemoryKafka(cluster=twin.cluster).delete_topic(topic)

    return strike


def anew(*topics: str, records: int = 0) -> Callable[[TwinLog], None]:
    """Somebody deletes these topics and makes them again, and somebody writes to them."""

    def strike(twin: TwinLog) -> None:
        for topic in topics:
            twin.cluster.recreate_topic(topic)
            write_all(MemoryKafka(cluster=twin.cluster), topic, 0, [b"somebody's"] * records)

    return strike


def accept(
    twin: TwinLog,
    *,
    kafka: Kafka | None = None,
    root: Store | None = None,
    reason: str = "somebody deleted the topics",
    operator: str = "ann",
    confirm: Callable[[TopicLoss], None] = _agreed,
    wait: Wait = _at_once,
) -> Log:
    """A person accepts the loss."""
    return Environment(wall_clock=twin.clock, wait=wait).run(
        accept_topic_loss,
        "log",
        where_at(kafka or MemoryKafka(cluster=twin.cluster), root or MemoryStore(twin.disk, "log")),
        reason=reason,
        operator=operator,
        confirm=confirm,
    )
