"""A reader never gets an older state than it knows to exist, however old Kafka's answers are."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from statelog.errors import BeyondEnd, BrokerUnavailable, Misuse
from statelog.kafka.port import OffsetRange
from statelog.log import Log
from statelog.producer.coordinator import Coordinator
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore
from tests.support.rigs.log import TwinLog, where_at


class OldLeader(MemoryKafka):
    """A leader that shows an old end of the ledger as long as it is old."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster=cluster)
        self.old_end: int | None = None
        self.answers_left = 0

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Return the truth, or an old answer."""
        there = super().offsets(topic, partitions, at_least=at_least)
        if self.old_end is None or not topic.endswith(".ledger") or not self.answers_left:
            return there
        self.answers_left -= 1
        return {0: OffsetRange(there[0].start, self.old_end)}


def opened(twin: TwinLog) -> tuple[Log, OldLeader]:
    """Return the log, by a client that may query an old leader."""
    kafka = OldLeader(twin.cluster)
    log = Log.open(twin.name, where_at(kafka, MemoryStore(twin.disk, twin.name)))
    return log, kafka


def be_old(log: Log, kafka: OldLeader, end: int, answers: int) -> None:
    """Make so many later answers old."""
    kafka.old_end, kafka.answers_left = end, answers
    log.patience_s = 0.0 if answers > 1 else 5.0


@pytest.mark.parametrize("make", [Writer, Coordinator])
@pytest.mark.parametrize("end", [0, 1, 2])
def test_what_was_acknowledged_here_is_read_here(make: Callable[..., Writer | Coordinator], end: int) -> None:
    """Commits acknowledged here are read here, also through the very same log, and also for an empty state."""
    twin = TwinLog()
    twin.write({b"a": b"1"})
    log, kafka = opened(twin)
    make(log, "w").close()
    be_old(log, kafka, end, 1)
    assert recover(log).to_dict() == twin.model
    be_old(log, kafka, end, 1_000)
    with pytest.raises(BeyondEnd):
        recover(log)


def test_recoveries_of_one_log_never_go_back() -> None:
    """A recovery has every position that an earlier one of its log read; so has the list of commits."""
    twin = TwinLog()
    twin.write({b"a": b"1"})
    log, kafka = opened(twin)
    recover(log)
    twin.write({b"a": b"2"})
    position = log.kafka.offsets("log.ledger", [0])[0].end
    assert recover(log).position == position
    be_old(log, kafka, 3, 1_000)
    with pytest.raises(BeyondEnd):
        recover(log)


def test_a_position_of_another_process_is_a_bound() -> None:
    """A position of another process is a bound: a reader elsewhere asks for it, and its place proves a loss, too."""
    twin = TwinLog()
    with twin.open() as log, Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        writer.commit(checkpoint_id=1)
        position, place = writer.position, writer.place
        twin.apply({b"a": b"1"})
    elsewhere, kafka = opened(twin)
    be_old(elsewhere, kafka, 1, 1_000)
    with pytest.raises(BrokerUnavailable):
        recover(elsewhere, at_least=position)
    with pytest.raises(BeyondEnd):
        recover(elsewhere, at_least=place)
    be_old(elsewhere, kafka, 1, 1)
    assert recover(elsewhere, at_least=position).to_dict() == twin.model


def test_a_barrier_includes_all_that_anybody_was_told() -> None:
    """A barrier includes all acknowledged commits, without any known position, although an old leader answers first."""
    twin = TwinLog()
    twin.write({b"a": b"1"})
    log, kafka = opened(twin)
    be_old(log, kafka, 1, 1_000)
    with pytest.raises(BeyondEnd):
        recover(log, barrier=True)
    be_old(log, kafka, 1, 1)
    assert recover(log, barrier=True).to_dict() == twin.model
    with pytest.raises(Misuse):
        recover(log, barrier=True, at_least=1)
