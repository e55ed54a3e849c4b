"""A real broker that lost acknowledged records while it was down: every client raises, and a person can let them go on.

The broker is killed once. Before it comes up again, the segments of several logs are cut as a power failure cuts them.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statelog.cli.output import DAMAGED
from statelog.cli.program import program
from statelog.errors import BeyondEnd, DataLoss, Fenced
from statelog.kafka.port import OffsetRange
from statelog.log import Log, LogOptions, accept_ledger_loss
from statelog.materializer.round import run_round
from statelog.producer.settings import WriterSettings
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.ledger.records import Restart, decode
from statelog.testing.broker import EmbeddedBroker
from tests.support.faults.power_loss import cut_tail
from tests.support.rigs.log import UNSAFE, keys_in, settings_for, where_at

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("power loss"), pytest.mark.timeout(280)]

COMMITS = 6
_BY_DATA = WriterSettings(inline_bytes=0)
"""The tests count records of both topics."""
LEFT = 4
"""The number of commits left in a log whose ledger was cut: the mark and the Open lie before them."""
ALL = {b"k%d" % i: b"v%d" % i for i in range(1, COMMITS + 1)}
SURVIVED = {b"k%d" % i: b"v%d" % i for i in range(1, LEFT + 1)}
WHO = ("--reason", "power failure", "--operator", "ann", "--yes")


@dataclass(slots=True)
class Struck:
    """A broker that came up with less than it had acknowledged, and the writers that stayed open."""

    bootstrap: str
    directory: Path
    writers: dict[str, Writer] = field(default_factory=dict[str, Writer])

    def create(self, name: str, partitions: int = 1) -> Log:
        """Return a new log."""
        return Log.create(
            name,
            where_at(self._kafka(), self._root()),
            LogOptions(partitions=partitions, key_groups=8),
        )

    def open(self, name: str) -> Log:
        """Return a log, opened by a client that asks a broker once, where a repeat is of no use."""
        log = Log.open(name, where_at(self._kafka(), self._root()))
        log.patience_s = 0.0
        return log

    def run(self, command: str, name: str, *arguments: str) -> Result:
        """Run a command of ours on a log; return its result."""
        place = ("--bootstrap", self.bootstrap, "--root", self._root(), "--allow-unsafe", ",".join(UNSAFE))
        return CliRunner().invoke(program, [command, name, *arguments, *place])

    def _kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap, "socket.timeout.ms": "5000"}

    def _root(self) -> str:
        return str(self.directory / "root")


def commit_all(writer: Writer) -> None:
    """Commit each change alone, so that each lies in a batch of its own."""
    for i in range(1, COMMITS + 1):
        writer.put(b"k%d" % i, b"v%d" % i)
        writer.commit(checkpoint_id=i)


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Struck]:
    """Yield five logs; each cut says what is left of its log."""
    directory = tmp_path_factory.mktemp("power-loss")
    broker = EmbeddedBroker(directory / "broker")
    broker.start()
    world = Struck(broker.bootstrap, directory)
    data = directory / "broker" / "data"
    logs: list[Log] = []
    try:
        for name in ("ledger", "snapshot", "data"):
            logs.append(world.create(name))
            world.writers[name] = Writer(logs[-1], "w", settings=_BY_DATA)
            commit_all(world.writers[name])
        run_round(logs[1], settings_for(directory))
        logs.append(world.create("regrown", partitions=2))
        world.writers["regrown"] = Writer(logs[-1], "w", partitions=[0], settings=_BY_DATA)
        world.writers["regrown"].put(next(keys_in(0, 2, 8)), b"v")
        last = world.writers["regrown"].commit(checkpoint_id=1).offset
        broker.kill()
        cut_tail(data, "ledger.ledger", 0, 2 + LEFT)
        cut_tail(data, "snapshot.ledger", 0, 2 + LEFT)
        cut_tail(data, "data", 0, LEFT)
        cut_tail(data, "regrown.ledger", 0, last)
        broker.start()
        yield world
    finally:
        for writer in world.writers.values():
            writer.close()
        for log in logs:
            log.close()
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)


def restarts(log: Log) -> list[Restart]:
    """Return all Restarts that the ledger holds now."""
    reader = log.kafka.reader(log.ledger_topic)
    try:
        start, end = log.kafka.offsets(log.ledger_topic, [0])[0]
        records = [decode(found.value) for found in reader.read({0: OffsetRange(start, end)}, stall_timeout_s=60)]
    finally:
        reader.close()
    return [record for record in records if isinstance(record, Restart)]


def go_on(log: Log, expect: int, before: dict[bytes, bytes]) -> None:
    """Resume a writer at once, and check that everybody reads the old state and its additions."""
    assert recover(log).to_dict() == before
    with Writer(log, "w", expect=expect) as writer:
        writer.put(b"new", b"v")
        writer.commit(checkpoint_id=expect + 1)
    assert recover(log).to_dict() == before | {b"new": b"v"}


def test_a_ledger_that_lost_its_tail_is_told_to_all(struck: Struck, tmp_path: Path) -> None:
    """A ledger that lost its tail raises for the old writer, an opening one, a reader and a daemon."""
    writer = struck.writers["ledger"]
    writer.put(b"late", b"v")
    with pytest.raises(DataLoss):
        writer.commit(checkpoint_id=COMMITS + 1)
    with struck.open("ledger") as log:
        with pytest.raises(BeyondEnd):
            Writer(log, "w")
        with pytest.raises(BeyondEnd):
            recover(log)
        assert not log.manifests.numbers()
    told = struck.run("materialize", "ledger", "--now", "--scratch", str(tmp_path))
    assert told.exit_code == DAMAGED, told.output


def test_after_the_acceptance_what_survived_is_the_history(struck: Struck, tmp_path: Path) -> None:
    """After the acceptance without a snapshot the history is the ledger's commits; writers go on behind a Restart."""
    with struck.open("ledger") as log:
        accept_ledger_loss(log, reason="power failure", operator="ann")
        assert {(one.reason, one.operator, one.position) for one in restarts(log)} == {("power failure", "ann", 0)}
        go_on(log, LEFT, SURVIVED)
        run_round(log, settings_for(tmp_path))
        assert recover(log).to_dict() == SURVIVED | {b"new": b"v"}


@pytest.mark.usefixtures("at_once")
def test_the_command_goes_on_from_the_snapshot(struck: Struck) -> None:
    """The command goes on from the snapshot, with all commits acknowledged before it, also lost ones."""
    with struck.open("snapshot") as log:
        with pytest.raises(DataLoss):
            recover(log)
        done = struck.run("accept-loss", "snapshot", "--ledger", *WHO)
        assert done.exit_code == 0, done.output
        position = log.manifests.read(1).position
        assert {(one.operator, one.position) for one in restarts(log)} == {("ann", position)}
        go_on(log, COMMITS, ALL)
    zombie = struck.writers["snapshot"]
    zombie.put(b"late", b"v")
    with pytest.raises((DataLoss, Fenced)):
        zombie.commit(checkpoint_id=COMMITS + 1)


def test_a_ledger_that_grew_again_is_told_by_its_last_record(struck: Struck) -> None:
    """A ledger that grew again by a stranger, over the writer's last commit, does not acknowledge its next one."""
    with struck.open("regrown") as log:
        for i in range(3):
            Writer(log, f"other-{i}", partitions=[1]).close()
    writer = struck.writers["regrown"]
    writer.put(next(keys_in(0, 2, 8)), b"again")
    with pytest.raises(DataLoss) as told:
        writer.commit(checkpoint_id=2)
    assert told.value.facts["topic"] == "regrown.ledger"
    with struck.open("regrown") as log, pytest.raises(DataLoss):
        log.commits()  # The chunk of the failed commit names the ledger position that its writer had read.


@pytest.mark.usefixtures("at_once")
def test_offsets_of_the_data_are_given_up_by_the_error_s_own_facts(struck: Struck, tmp_path: Path) -> None:
    """The command takes the range that the error names; then writers go on and readers know the missing part."""
    with struck.open("data") as log:
        with pytest.raises(BeyondEnd) as told:
            Writer(log, "w")
        with pytest.raises(DataLoss):
            recover(log)
        facts = told.value.facts
        lost = f"{facts['partition']}:{facts['log_end']}-{facts['committed_position']}"
        done = struck.run("accept-loss", "data", "--range", lost, *WHO)
        assert (lost, done.exit_code) == (f"0:{LEFT}-{COMMITS}", 0), done.output
        go_on(log, COMMITS, SURVIVED)
        run_round(log, settings_for(tmp_path))
        assert recover(log).to_dict() == SURVIVED | {b"new": b"v"}
