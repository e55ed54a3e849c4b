"""A real broker whose topics are deleted under a log: detected by their ids, and continued by a copy."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statelog.cli.output import DAMAGED, OK
from statelog.cli.program import program
from statelog.errors import DataLoss, IdentityChanged, NotFound, PersistFailed
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.log import Log, LogOptions, Where
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from tests.support.rigs.log import UNSAFE, key_in, settings_for, where_at
from tests.support.services.broker import Broker

pytestmark = pytest.mark.broker

WHO = ("--reason", "somebody deleted it", "--operator", "ann", "--yes")
KEPT = {b"k%d" % i: b"v" for i in range(1, 4)}


class Place:
    """A log on the broker and in a local directory, as programs and commands find it."""

    def __init__(self, broker: Broker, name: str, directory: Path) -> None:
        self.name = name
        self.kafka = {"bootstrap.servers": broker.bootstrap}
        self.root = str(directory / "root")

    def open(self, name: str = "") -> Log:
        """Return the log, or its copy, in another process."""
        return Log.open(name or self.name, where_at(self.kafka, self.root))

    def run(self, *arguments: str) -> Result:
        """Run a command of ours; return its result."""
        place = ("--bootstrap", self.kafka["bootstrap.servers"], "--root", self.root)
        return CliRunner().invoke(program, [*arguments, *place, "--allow-unsafe", ",".join(UNSAFE)])

    def delete_topic(self, topic: str) -> None:
        """Delete the topic."""
        client = ConfluentKafka(client_config(self.kafka))
        client.delete_topic(topic)
        client.close()


@pytest.fixture
def place(broker: Broker, log_name: str, tmp_path: Path) -> Iterator[Place]:
    """Yield a log with a snapshot, and with one commit behind it."""
    place = Place(broker, log_name, tmp_path)
    with Log.create(
        log_name,
        where_at(place.kafka, place.root),
        LogOptions(partitions=2, key_groups=8),
    ) as log:
        with Writer(log, "w") as writer:
            for i, key in enumerate(KEPT, 1):
                writer.put(key, b"v")
                writer.commit(checkpoint_id=i)
        run_round(log, settings_for(tmp_path))
        with Writer(log, "w") as writer:
            writer.put(b"lost", b"v")
            writer.commit(checkpoint_id=len(KEPT) + 1)
    yield place
    Log.delete(log_name, Where(place.kafka, place.root))


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("topics", [("{}",), ("{}.ledger",), ("{}.ledger", "{}")], ids=["data", "ledger", "both"])
def test_a_log_goes_on_as_a_copy_without_the_topics_that_somebody_deleted(
    place: Place, topics: tuple[str, ...], tmp_path: Path
) -> None:
    """A log without its topics goes on as a copy by the command that the error names.

    The copy has the snapshot's state, for writers, rounds and readers. Clients of the old topics raise to the end.
    """
    log = place.open()
    old = Writer(log, "old", partitions=[0])
    for topic in topics:
        place.delete_topic(topic.format(place.name))
    with pytest.raises((IdentityChanged, NotFound)):
        place.open()
    told = place.run("recover", place.name)
    assert told.exit_code == DAMAGED
    named = re.search(r"`statelog (copy .* --finish)`", told.stderr)
    assert named is not None, told.stderr
    copy = f"{place.name}-copy"
    done = place.run(*named[1].replace("COPY", copy).split(), "--replication-factor", "1")
    assert done.exit_code == OK, done.output

    with place.open(copy) as now:
        assert recover(now).to_dict() == KEPT
        with Writer(now, "w", expect=len(KEPT)) as writer:
            for i in range(3):
                writer.put(b"new%d" % i, b"v")
                writer.commit(checkpoint_id=len(KEPT) + 1 + i)
                run_round(now, settings_for(tmp_path))
        assert recover(now).to_dict() == KEPT | {b"new%d" % i: b"v" for i in range(3)}
        assert now.kafka.offsets(now.ledger_topic, [0])[0].start > 0
    old.put(key_in(log, 0), b"v")
    with pytest.raises((DataLoss, PersistFailed)):
        old.commit(checkpoint_id=1)
    old.close()
    with pytest.raises(IdentityChanged):
        run_round(log, settings_for(tmp_path))
    with pytest.raises(IdentityChanged):
        recover(log)
    log.close()
    accepted = place.run("accept-loss", place.name, "--ledger", *WHO)
    assert (accepted.exit_code, "statelog copy" in accepted.output) == (DAMAGED, True), accepted.output
    Log.delete(copy, Where(place.kafka, place.root))
