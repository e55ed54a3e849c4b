"""Processes of a group of workers on a real broker, which may be killed, stopped and resumed, and the expected result.

The input of each partition is `WORK`. Before it goes on, every process checks each table that it gets against the fold
of the input up to the table's progress.
"""

import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import confluent_kafka

import statelog
from statelog.environment import Environment
from statelog.errors import Unavailable
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import TopicSpec
from statelog.tables import InputTopic, Table, Worker
from tests.sim.source import WORK
from tests.support.processes.starts import quick_start
from tests.support.rigs.log import where_at
from tests.support.waiting import wait_for

__all__ = ["OUTPUT_PARTITIONS", "Group", "Member", "given", "sent"]

_CONTEXT = quick_start()
_WRONG = 3
_AWAY = 4
"""The exit codes of a process that found a wrong state, and of one that the brokers did not answer."""
OUTPUT_PARTITIONS = 2


def sent(partition: int, offset: int) -> bytes:
    """Return the output of a message of the input."""
    return b"%d %d" % (partition, offset)


def given(table: Mapping[bytes, bytes], progress: Mapping[str, Any]) -> str:
    """Return how a state differs from the fold at its progress; empty if it is the fold."""
    end = int(progress.get("offset", 0))
    return "" if dict(table.items()) == WORK.fold(end) else f"not the fold of the input below {end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group, its input and its log."""

    name: str
    bootstrap: str
    root: Path
    partitions: int
    consumer: Mapping[str, str]
    directory: Path | None = None
    commit_s: float = 0.1
    has_standbys: bool = False
    sends: bool = False

    @property
    def topic(self) -> str:
        """The input topic."""
        return f"{self.name}-input"

    @property
    def output(self) -> str:
        """The topic that the processes send to, if they do."""
        return f"{self.name}-output"

    @property
    def where(self) -> statelog.Where:
        """The log's place."""
        kafka = {"bootstrap.servers": self.bootstrap}
        return where_at(kafka, self.root)

    @contextmanager
    def input(self) -> Generator[confluent_kafka.Producer]:
        """Make the input topic; yield a producer for it."""
        with closing(ConfluentKafka(client_config({"bootstrap.servers": self.bootstrap}))) as kafka:
            kafka.create_topic(TopicSpec(name=self.topic, partitions=self.partitions, replication_factor=1))
            if self.sends:
                kafka.create_topic(TopicSpec(name=self.output, partitions=OUTPUT_PARTITIONS, replication_factor=1))
        properties = {"bootstrap.servers": self.bootstrap, "enable.idempotence": "true", "linger.ms": "5"}
        producer = confluent_kafka.Producer(properties)
        yield producer
        producer.flush(60)

    def feed(self, producer: confluent_kafka.Producer, offsets: range) -> None:
        """Send the messages of these offsets to every partition."""
        for offset in offsets:
            for partition in range(self.partitions):
                while True:
                    try:
                        producer.produce(self.topic, b"%d" % offset, partition=partition)
                        break
                    except BufferError:
                        producer.poll(0.1)
        producer.flush(60)

    def start(self, instance: str = "") -> "Member":
        """Start one more process; a name makes it a static member, which retains its partitions over a restart."""
        return Member(self, instance)

    def worker(
        self, instance: str, environment: Environment, *, accept_loss: bool = False, **options: Any
    ) -> "Worker[bytes, bytes]":
        """Return a worker as a process of the group makes it."""
        consumer = {**self.consumer, **({"group.instance.id": instance} if instance else {})}
        kept: dict[str, Any] = {}
        if self.directory is not None:
            own = f"{os.getpid()}" if self.has_standbys else "shared"
            kept = {"backend": "rocksdb", "directory": self.directory / own}
        return environment.run(
            lambda: statelog.worker(
                self.name,
                self.where,
                topic=InputTopic(self.topic, consumer, accept_loss=accept_loss),
                create=True,
                standbys="all" if self.has_standbys else (),
                **kept,
                **options,
            )
        )

    def progress(self) -> dict[int, int]:
        """Return how far each partition is committed, from the ledger alone."""
        with statelog.open(self.name, self.where) as log:
            commits = log.commits()
        prefix = f"{self.name}-"
        return {int(one.removeprefix(prefix)): int(last.metadata["offset"]) for one, last in commits.items()}

    def check(self) -> dict[int, int]:
        """Return each partition's progress in one state of the log. Raises AssertionError if that is not the fold."""
        with (
            statelog.open(self.name, self.where) as log,
            statelog.recover(log) as recovery,
        ):
            state = recovery.to_dict()
            found: dict[int, int] = {}
            for partition in range(self.partitions):
                last = recovery.last_commit(f"{self.name}-{partition}")
                found[partition] = 0 if last is None else int(last.metadata["offset"])
                mine = {key: value for (group, key), value in state.items() if group == partition}
                assert mine == WORK.fold(found[partition]), f"{partition} is not the fold below {found[partition]}"
        return found

    def await_end(self, end: int, timeout_s: float = 120.0) -> None:
        """Wait until every partition is processed up to `end`, and check the state."""
        whole = dict.fromkeys(range(self.partitions), end)

        def is_done() -> bool:
            with suppress(Unavailable):  # The broker is under the same load.
                return self.progress() == whole
            return False

        wait_for(is_done, f"not at {end}", timeout_s=timeout_s, tick_s=0.05)
        assert self.check() == whole


class Member:
    """A process of a group."""

    def __init__(self, group: Group, instance: str) -> None:
        self._process = _CONTEXT.Process(target=_work, args=(group, instance), daemon=True)
        self._process.start()

    @property
    def is_alive(self) -> bool:
        """Whether the process exists, stopped or not."""
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        """Send a signal; SIGTERM asks it to stop."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Send SIGKILL; return when the process is dead."""
        self._process.kill()
        self._process.join()

    @property
    def is_away(self) -> bool:
        """Whether it has ended because the brokers did not answer, so that it is to be started again."""
        return self._process.exitcode == _AWAY

    def end(self) -> None:
        """Ask the process to stop, and wait. Raises AssertionError if it found an error."""
        self.signal(signal.SIGTERM)
        self._process.join(60)
        self.check()
        assert not self.is_alive

    def check(self) -> None:
        """Raise AssertionError if the process has ended by itself or found an error."""
        ended = self._process.exitcode  # SIGTERM before the process had a handler.
        assert ended in (None, 0, -signal.SIGKILL, -signal.SIGTERM), f"exit code {ended}"


def _work(group: Group, instance: str) -> None:
    warnings.simplefilter("error", ResourceWarning)
    logging.basicConfig(
        level=os.environ.get("STATELOG_TEST_LOG", "ERROR"), format="%(process)d %(asctime)s %(message)s"
    )
    try:
        _loop(group, instance)
    except Unavailable:
        traceback.print_exc()
        sys.exit(_AWAY)


def _loop(group: Group, instance: str) -> None:
    seen: set[int] = set()
    with group.worker(instance, Environment()) as worker:

        def stop(_number: int, _frame: FrameType | None) -> None:
            worker.stop()

        signal.signal(signal.SIGTERM, stop)
        for message, table in worker:
            if id(table) not in seen:
                _check_table(table)
                seen = {id(one) for one in worker.tables.values()}
            offset = int(message.value() or b"")
            WORK.step(table, offset)
            if group.sends:
                partition = message.partition() or 0
                table.send(group.output, sent(partition, offset), partition=partition % OUTPUT_PARTITIONS)
            worker.commit_every(group.commit_s)


def _check_table(table: Table[bytes, bytes]) -> None:
    wrong = given(table, table.progress)
    if wrong:
        sys.stderr.write(f"{table}: {wrong}\n")
        sys.exit(_WRONG)
