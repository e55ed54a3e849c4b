"""Workers on twins: a group whose decisions a test makes, their input, their log, and every table's expected state."""

from collections.abc import Callable
from typing import Any

import statelog
from statelog.environment import CrashPoint, Environment, Start, inline
from statelog.kafka.port import TopicSpec
from statelog.tables import Standby, Table, TableSettings, Worker
from statelog.tables.group.context import InputStart, InputTopic, WorkerContext, WorkerHooks
from statelog.tables.setup import TableTuning
from statelog.tables.standbys.standby import StandbyPool
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import Faults
from statelog.testing.kafka import MemoryKafka
from statelog.testing.twin import MemoryGroup, MemoryMember
from tests.sim.source import WORK
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import TwinRig, twin_rig

__all__ = ["PARTITIONS", "SteppedWorker", "WorkersWorld"]

PARTITIONS = 3
_PATIENCE_S = 6.0


def _no_standby(partition: int) -> Standby[Any, Any]:
    raise AssertionError(partition)


class SteppedWorker(Worker[bytes, bytes]):
    """A worker whose loop goes on after a stop."""

    idle_s = 0.0

    def go_on(self) -> None:
        """Resume after a stop for lack of work."""
        self._is_stopped = False
        self.idle_s = 0.0


class WorkersWorld:
    """The processes of one group, all in one thread."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.now_s, self.unsent_max = 0.0, 7
        self.rig: TwinRig = twin_rig("log", cluster=MemoryCluster(faults=faults))
        self.rig.create(partitions=PARTITIONS, key_groups=PARTITIONS, hash_rule="caller").close()
        self.source = MemoryKafka(cluster=MemoryCluster())
        self.source.create_topic(TopicSpec(name="input", partitions=PARTITIONS, replication_factor=1))
        self.group = MemoryGroup(self.source.cluster, "input")
        self.workers: dict[SteppedWorker, MemoryMember] = {}
        self.heard = [0] * PARTITIONS
        self.start_opening: Start = inline

    def feed(self, count: int) -> None:
        """Add so many messages to each partition."""
        for partition, end in enumerate(self.group.ends):
            write_all(self.source, "input", partition, [b"%d" % offset for offset in range(end, end + count)])

    def start(
        self,
        start: InputStart = InputStart.EARLIEST,
        *,
        standbys: StandbyPool | None = None,
        crash: CrashPoint = lambda _: None,
        hooks: WorkerHooks | None = None,
    ) -> SteppedWorker:
        """Return one more worker."""
        made: list[MemoryMember] = []

        def join(listener: Any, note: Callable[[str], None]) -> MemoryMember:
            del note
            made.append(MemoryMember(self.group, listener, lambda timeout_s: self.idle(worker, timeout_s)))
            return made[0]

        worker = SteppedWorker(
            WorkerContext(
                name="log", topic=InputTopic("input", start=start), key_groups=PARTITIONS, kafka=self.source.join(),
                open_table=self.open_for, standbys=standbys or StandbyPool((), _no_standby, self.clock),
                join=join, unsent_max=self.unsent_max, release=lambda: None, hooks=hooks or WorkerHooks(),
                environment=Environment(clock=self.clock, crash=crash, start=self.start_opening),
            )
        )  # fmt: skip
        self.workers[worker] = made[0]
        return worker

    def open_for(self, partition: int, is_beside: bool) -> Table[Any, Any]:
        """Return a worker's table. None has a directory here, so none is in use."""
        assert not is_beside
        return self.open(partition)

    def open(self, partition: int) -> Table[Any, Any]:
        """Return a table as any process opens it: the fold of the input up to its progress, with all acknowledged."""
        table: Table[Any, Any] = Environment(clock=self.clock).run(
            statelog.table,
            "log",
            self.rig.where(),
            key_group=partition,
            writer=f"log-{partition}",
            settings=TableSettings(_tuning=TableTuning(commits_under_way_max=2)),
        )
        end = int(table.progress["offset"]) if table.progress else 0
        assert end >= self.heard[partition], f"{partition} went back from {self.heard[partition]} to {end}"
        assert dict(table.items()) == WORK.fold(end)
        return table

    def idle(self, worker: SteppedWorker, timeout_s: float) -> None:
        """Wait for messages as a worker; after some empty polls let another one run."""
        self.now_s += timeout_s
        worker.idle_s += timeout_s
        if worker.idle_s >= _PATIENCE_S:
            worker.stop()

    def clock(self) -> float:
        """Return the time, which advances at every call."""
        self.now_s += 0.001
        return self.now_s
