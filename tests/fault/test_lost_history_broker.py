"""The matrix of lost histories on a real broker: its data directories are copied, put back or cut while it is down.

The broker is stopped once for the copy and killed once, whatever the number of worlds.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from statelog.cli.output import DAMAGED
from statelog.cli.program import program
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.positions import HighWater
from statelog.store.fsspec import open_store
from statelog.testing.broker import EmbeddedBroker
from tests.sim.plays.losses import CASES, DOORS, Case, Loss, Verdict, World, state_at, verdict
from tests.support.faults.power_loss import cut_tail, ends
from tests.support.rigs.log import UNSAFE, LogRig
from tests.support.told import told

pytestmark = [
    pytest.mark.broker,
    pytest.mark.usefixtures("at_once"),
    pytest.mark.xdist_group("lost history"),
    pytest.mark.timeout(1500),
]

SOME = CASES[::11]
"""Each loss, each snapshot, and each way to grow again."""
TOPICS = [("", 0), ("", 1), (".ledger", 0)]


class Struck:
    """A broker, the worlds on it, and its losses."""

    def __init__(self, directory: Path, cases: list[Case]) -> None:
        self.directory = directory
        self.data = directory / "broker" / "data"
        self.broker = EmbeddedBroker(directory / "broker")
        self.broker.start()
        self.worlds = {case: self._world(case) for case in cases}

    def lose(self) -> None:
        """Lose records and return when the broker is back, with less than it had acknowledged."""
        for world in self.worlds.values():
            world.write_first()
        self.broker.stop()
        backup = shutil.copytree(self.data, self.directory / "backup")
        self.broker.start()
        for world in self.worlds.values():
            world.write_on()
        self.broker.kill()
        for case, world in self.worlds.items():
            for name in (world.log.name, world.table.name):
                for suffix, partition in TOPICS:
                    self._strike(case.loss, backup, f"{name}{suffix}", partition)
        self.broker.start()
        for world in self.worlds.values():
            world.regrow()

    def _strike(self, loss: Loss, backup: Path, topic: str, partition: int) -> None:
        there = self.data / f"{topic}-{partition}"
        if loss is Loss.BACKUP:
            shutil.rmtree(there)
            shutil.copytree(backup / there.name, there)
            return
        before = [end for end, _ in ends(backup, topic, partition)] or [0]
        after = [end for end, _ in ends(self.data, topic, partition)] or [0]
        if topic.endswith(".ledger"):
            cut_tail(self.data, topic, partition, before[-1])
        elif loss is Loss.POWER and len(after) > len(before):
            cut_tail(self.data, topic, partition, after[-2])

    def _world(self, case: Case) -> World:
        scratch = self.directory / case.name
        scratch.mkdir()
        return World(case, self._rig(f"log-{case.name}"), self._rig(f"table-{case.name}"), scratch)

    def _rig(self, name: str) -> LogRig:
        """Return a rig whose every client is a process of its own: it remembers nothing of other clients."""
        config = client_config({"bootstrap.servers": self.broker.bootstrap, "socket.timeout.ms": "5000"})
        root = str(self.directory / "root")
        return LogRig(
            name,
            lambda: ConfluentKafka(config, seen=HighWater()),
            lambda: open_store(root, name),
            self.broker.bootstrap,
        )


@pytest.fixture
def struck(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Struck]:
    """Yield a broker with the losses of the cases."""
    with told("the standby of .* has failed: acknowledged ledger records are gone"):
        struck = Struck(tmp_path, request.param)
        try:
            struck.lose()
            yield struck
        finally:
            struck.broker.stop()


def get(struck: Struck, world: World) -> Verdict:
    """Return the command's verdict on the last key."""
    (key,) = [key.decode() for key, value in state_at(6).items() if value == b"6"]
    where = ("--bootstrap", struck.broker.bootstrap, "--root", str(struck.directory / "root"))
    done = CliRunner().invoke(program, ["get", world.log.name, key, *where, "--allow-unsafe", ",".join(UNSAFE)])
    if done.exit_code == DAMAGED:
        return Verdict.LOUD
    return Verdict.RIGHT if done.exit_code == 0 and done.output.strip() == "6" else Verdict.SILENT


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize(
    "struck", [pytest.param(SOME, id="some"), pytest.param(CASES, id="all", marks=pytest.mark.soak)], indirect=True
)
def test_every_way_in_is_loud_or_right(struck: Struck) -> None:
    """Every way in raises or is right, on a real broker. Where Kafka shows nothing, clients with a memory raise."""
    wrong: dict[str, set[str]] = {}
    for case, world in struck.worlds.items():
        with world.living:
            found = {name: verdict(world, door) for name, door in DOORS.items()} | {"get": get(struck, world)}
        silent = {name for name, one in found.items() if one is Verdict.SILENT}
        strangers = {"get", *(name for name, door in DOORS.items() if not door.remembers)} - {"recover an early state"}
        wrong[case.name] = silent ^ (strangers if case.hides_from_strangers else set())
    assert not any(wrong.values()), {name: doors for name, doors in wrong.items() if doors}
