"""Brokers put back to an earlier state, under a newer snapshot: one acceptance brings the log back.

On the twin, and on a real broker whose files are copied and put back, or in which a byte of a record is flipped.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statelog.cli.output import DAMAGED, MISUSE, OK
from statelog.cli.program import program
from statelog.errors import DataLoss, Unreadable
from statelog.log import Log, LogOptions, accept_ledger_loss
from statelog.log.loss import append_restarts
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.ledger.records import LossRange, Restart
from statelog.testing.broker import EmbeddedBroker
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import UNSAFE, TwinLog, impatient, settings_for, where_at

PARTITIONS = 4
KEYS = 16
NAME = "restored"
WHO = ("--reason", "put back from a backup", "--operator", "ann", "--yes")


def commit(log: Log, number: int) -> dict[bytes, bytes]:
    """Commit to all partitions; return the state that it leaves."""
    model = {b"k%d" % i: b"%d" % number for i in range(KEYS)}
    with Writer(log, "w", expect=number - 1) as writer:
        for key, value in model.items():
            writer.put(key, value)
        writer.commit(checkpoint_id=number)
    return model


def put_back(tmp_path: Path) -> tuple[TwinLog, dict[str, dict[int, int]]]:
    """Return a log of five commits in a snapshot, on brokers put back to the second commit, and their ends then."""
    twin = TwinLog(partitions=PARTITIONS)
    with twin.open() as log:
        for number in (1, 2):
            commit(log, number)
        ends = {
            topic: {p: there.end for p, there in log.kafka.offsets(topic, range(count)).items()}
            for topic, count in ((log.data_topic, PARTITIONS), (log.ledger_topic, 1))
        }
        for number in (3, 4, 5):
            twin.model = commit(log, number)
        twin.environment.run(run_round, log, settings_for(tmp_path))
    for topic, ends_of in ends.items():
        for partition, end in ends_of.items():
            twin.cluster.lose_tail(topic, partition, end)
    return twin, ends


def goes_on(twin: TwinLog, log: Log, tmp_path: Path) -> None:
    """Check that everybody has all acknowledged and all later commits."""
    assert recover(log).to_dict() == twin.model
    twin.model = commit(log, 6)
    assert recover(log).to_dict() == twin.model
    twin.environment.run(run_round, log, settings_for(tmp_path))
    assert recover(log).to_dict() == twin.model
    twin.model = commit(log, 7)
    assert recover(log).to_dict() == twin.model


@pytest.mark.parametrize("regrown", [0, 1, 20])
def test_one_acceptance_is_enough(regrown: int, tmp_path: Path) -> None:
    """One acceptance is enough: the snapshot has the missing data, for short and for refilled partitions."""
    twin, _ = put_back(tmp_path)
    for number in range(regrown):
        write_all(MemoryKafka(cluster=twin.cluster), "log", number % 2, [b"somebody's"])
    with impatient(twin) as log:
        with pytest.raises(DataLoss):
            recover(log)
        accept_ledger_loss(log, reason="put back", operator="me")
        goes_on(twin, log, tmp_path)


@pytest.mark.usefixtures("busy_ledger")
def test_an_acceptance_that_died_half_way_is_run_again(tmp_path: Path) -> None:
    """The same command completes an acceptance that died with the ledger restarted and the data not accepted."""
    twin, _ = put_back(tmp_path)
    with impatient(twin) as log:
        position = log.manifests.read(1).position
        record = Restart(digest=log.descriptor.digest, position=position, reason="put back", operator="me")
        append_restarts(log, record, position)
        with pytest.raises(DataLoss):
            recover(log).to_dict()
        accept_ledger_loss(log, reason="put back", operator="me")
        goes_on(twin, log, tmp_path)


@pytest.mark.usefixtures("busy_ledger")
def test_data_behind_the_snapshot_is_not_given_up_with_it(tmp_path: Path) -> None:
    """Data behind the snapshot is not accepted with it: a ledger's commit without its changes is a loss of its own."""
    twin, ends = put_back(tmp_path)
    with impatient(twin) as log:
        accept_ledger_loss(log, reason="put back", operator="me")
        commit(log, 6)
        twin.cluster.lose_tail(log.data_topic, 0, ends[log.data_topic][0])
        with pytest.raises(DataLoss):
            recover(log).to_dict()


# ---- on a real broker


class Place:
    """A broker whose files can be copied and put back, and a log on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker = EmbeddedBroker(directory / "broker")
        self.root = str(directory / "root")

    def open(self) -> Log:
        """Return the log as another process sees it."""
        log = Log.open(NAME, where_at(self._kafka(), self.root))
        log.patience_s = 0.0
        return log

    def create(self) -> None:
        """Make the log."""
        Log.create(
            NAME,
            where_at(self._kafka(), self.root),
            LogOptions(partitions=PARTITIONS, key_groups=KEYS),
        ).close()

    def run(self, command: str, *arguments: str) -> Result:
        """Run a command of ours on the log; return its result."""
        place = ("--bootstrap", self.broker.bootstrap, "--root", self.root, "--allow-unsafe", ",".join(UNSAFE))
        return CliRunner().invoke(program, [command, NAME, *arguments, *place])

    def copy_files(self, name: str) -> None:
        """Copy the broker's disk, while it is down."""
        self.broker.stop()
        shutil.copytree(self.directory / "broker" / "data", self.directory / name)
        self.broker.start()

    def put_files_back(self, name: str) -> None:
        """Put the copy in the place of the disk's files."""
        self.broker.stop()
        shutil.rmtree(self.directory / "broker" / "data")
        shutil.copytree(self.directory / name, self.directory / "broker" / "data")
        self.broker.start()

    def turn_a_byte(self, partition: int, value: bytes) -> None:
        """Flip a byte of the last record with these bytes, as a disk does, while the broker is down."""
        self.broker.stop()
        (segment,) = (self.directory / "broker" / "data" / f"{NAME}-{partition}").glob("*.log")
        raw = bytearray(segment.read_bytes())
        raw[raw.rindex(value)] ^= 1
        segment.write_bytes(raw)
        self.broker.start()

    def _kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.broker.bootstrap, "socket.timeout.ms": "5000"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Yield a broker of its own, with an empty log."""
    made = Place(tmp_path)
    made.broker.start()
    try:
        made.create()
        yield made
    finally:
        made.broker.stop()


@pytest.mark.broker
@pytest.mark.timeout(400)
def test_one_command_brings_a_restored_broker_back(place: Place, tmp_path: Path) -> None:
    """One command brings a restored broker back: backup, more commits, a snapshot, the backup again, no live client."""
    with place.open() as log:
        for number in (1, 2):
            commit(log, number)
    place.copy_files("backup")
    with place.open() as log:
        for number in (3, 4, 5):
            model = commit(log, number)
        run_round(log, settings_for(tmp_path))
    place.put_files_back("backup")
    assert place.run("recover").exit_code == DAMAGED
    done = place.run("accept-loss", "--ledger", *WHO)
    assert done.exit_code == OK, done.output
    with place.open() as log:
        assert recover(log).to_dict() == model
        model = commit(log, 6)
        run_round(log, settings_for(tmp_path))
        assert recover(log).to_dict() == model
    again = place.run("accept-loss", "--ledger", *WHO)
    assert (again.exit_code, "lost nothing" in again.output) == (MISUSE, True), again.output


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.broker
@pytest.mark.timeout(400)
def test_a_record_that_a_disk_damaged_is_given_up_alone(place: Place, tmp_path: Path) -> None:
    """A record with a wrong checksum is reported by its offset, and accepted as lost alone, by the error's command.

    The records around it are read, although they come in the same answers of the broker.
    """
    with place.open() as log:
        for number in (1, 2, 3):
            model = commit(log, number)
    place.turn_a_byte(0, b"SLCK")
    with place.open() as log:
        for act in (lambda: recover(log).to_dict(), partial(run_round, log, settings_for(tmp_path))):
            with pytest.raises(Unreadable) as told:
                act()
        facts = told.value.facts
        lost = LossRange(0, int(str(facts["start_offset"])), int(str(facts["end_offset"])))
        assert (lost, facts["partition"]) == (LossRange(0, 2, 3), 0)
        given = f"0:{lost.start_offset}-{lost.end_offset}"
        assert f"accept-loss {NAME} --range {given}" in told.value.hint
        assert place.run("accept-loss", "--range", given, *WHO).exit_code == OK
        assert set(recover(log).to_dict().values()) == {b"2", b"3"}
        assert recover(log).to_dict() != model
        model = commit(log, 4)
        run_round(log, settings_for(tmp_path))
        assert recover(log).to_dict() == model
