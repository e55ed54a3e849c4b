"""When the loss of topics is not accepted: nothing is lost, nothing holds what was, or something is in the way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.errors import AlreadyExists, ConfigError, IdentityChanged, NotFound, UnsafeTopic
from statelog.producer.writer import Writer
from statelog.storage import LogOptions
from statelog.storage.log.log import Log
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.rigs.log import TwinLog, where_at
from tests.support.rigs.lost_topics import BOTH, accept, anew, gone, made

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def twin(tmp_path: Path) -> TwinLog:
    """A log with a snapshot, and with commits behind it."""
    return made(tmp_path)


def test_without_a_snapshot_there_is_nothing_to_go_on_from() -> None:
    """The data topic says nothing without a ledger."""
    twin = TwinLog()
    twin.write({b"k": b"v"})
    gone("log.ledger")(twin)
    with pytest.raises(NotFound, match="no snapshot"):
        accept(twin)


def test_a_snapshot_that_is_not_whole_is_nothing_to_go_on_from(twin: TwinLog) -> None:
    """Nothing else holds what was committed."""
    gone("log.ledger")(twin)
    MemoryStore(twin.disk, "log").delete(next(iter(twin.run_paths())))
    with pytest.raises(NotFound, match="run"):
        accept(twin)


@pytest.mark.parametrize("strike", [gone("log"), anew("log")], ids=["gone", "anew"])
def test_a_ledger_that_still_lists_is_not_passed_over(twin: TwinLog, strike: Callable[[TwinLog], None]) -> None:
    """Only the data is lost: a person looks at what the ledger says of it before it goes, too."""
    strike(twin)
    with pytest.raises(IdentityChanged, match="still lists"):
        accept(twin)


def test_another_cluster_is_not_the_log_s(twin: TwinLog) -> None:
    """There, writers may go on, and nothing that is done here would fence them."""
    other = TwinLog()
    other.cluster.cluster_id = "another"
    with pytest.raises(IdentityChanged, match="another cluster"):
        accept(twin, kafka=MemoryKafka(cluster=other.cluster))


def test_a_topic_that_would_lose_records_is_not_taken_over(twin: TwinLog) -> None:
    """A broker made it for a writer that went on, with a retention of its own."""
    twin.cluster.recreate_topic("log.ledger", {"retention.ms": "60000"})
    with pytest.raises(UnsafeTopic, match="retention"):
        accept(twin)


def test_another_root_s_ledger_is_not_taken_over(twin: TwinLog) -> None:
    """Somebody made a log of this name elsewhere meanwhile."""
    gone(*BOTH)(twin)
    kafka, disk = MemoryKafka(cluster=twin.cluster), MemoryDisk(twin.clock)
    Log.create(
        "log",
        where_at(kafka, MemoryStore(disk, "log")),
        LogOptions(partitions=3, key_groups=8),
    ).close()
    with pytest.raises(AlreadyExists, match="another root"):
        accept(twin)


def test_somebody_else_s_manifests_are_not_gone_on_from(twin: TwinLog) -> None:
    """The topics are as the log was made with, so nobody can have accepted others."""
    with twin.open() as log:
        stored = log.manifests.read(1)
        path = "manifests/00000000000000000002.avro"
        identity = replace(log.descriptor.identity, ledger_topic_id="another")
        strange = replace(stored, number=2, previous_sha256=bytes(32), identity=identity)
        log.store.put_if_absent(path, strange.to_bytes())
    with pytest.raises(IdentityChanged, match="another log"):
        accept(twin)
    with twin.open() as log, pytest.raises(IdentityChanged):
        Writer(log, "writer")


@pytest.mark.parametrize(("reason", "operator"), [(" ", "ann"), ("it is gone", "")])
def test_a_person_says_who_and_why(twin: TwinLog, reason: str, operator: str) -> None:
    """Nothing is asked of anybody before that."""
    with pytest.raises(ConfigError, match="reason"):
        accept(twin, reason=reason, operator=operator)
