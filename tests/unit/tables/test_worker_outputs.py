"""Messages that a worker's tables send: with the place in the input, from hooks, and to a topic that is gone."""

from typing import Any

import pytest

import statelog
from statelog.errors import PublishFailed, UncommittedChanges
from statelog.tables import Table, TableSettings, Worker, WorkerHooks
from statelog.testing import Twin
from tests.support.told import told

PARTITIONS = 3


@pytest.fixture
def twin() -> Twin:
    """Return a cluster with an input of three partitions, and a target."""
    made = Twin()
    made.create_topic("input", PARTITIONS)
    made.create_topic("target", PARTITIONS)
    for partition in range(PARTITIONS):
        made.send("input", *[b"%d" % number for number in range(5)], partition=partition)
    return made


def _worker(twin: Twin, **options: Any) -> Worker[Any, Any]:
    made: Worker[Any, Any] = statelog.worker("log", twin.where(), topic="input", create=True, **options)
    twin.when_idle = made.stop
    return made


def _values(twin: Twin) -> list[bytes]:
    return [one.value or b"" for one in twin.outputs("target")]


def test_each_message_of_the_input_sends_once(twin: Twin) -> None:
    """Each message of the input sends one, over lives that process some, and those of a partition in their order."""
    seen = 0
    while seen < 5 * PARTITIONS:
        with _worker(twin) as worker:
            for _, (message, table) in zip(range(4), worker, strict=False):
                table.send("target", message.value(), partition=message.partition())
                worker.commit()
                seen += 1
    assert _values(twin) == [b"%d" % number for number in range(5)] * PARTITIONS


def test_a_message_that_is_half_processed_has_sent_nothing(twin: Twin) -> None:
    """After a break its partition is rolled back, what it sent included, and the message comes again."""
    with pytest.warns(UncommittedChanges), _worker(twin) as worker:
        for message, table in worker:
            table.send("target", b"from a broken loop", partition=message.partition())
            break
    assert _values(twin) == []
    with _worker(twin) as worker:
        for message, table in worker:
            table.send("target", message.value(), partition=message.partition())
            worker.commit_every(1.0)
    assert _values(twin) == [b"%d" % number for number in range(5)] * PARTITIONS


def test_hooks_send(twin: Twin) -> None:
    """What hooks send is in the next commit; a partition that is given up gets one for `on_commit`."""

    def send(name: bytes) -> Any:
        def hook(partition: int, table: Table[Any, Any]) -> None:
            if name not in table:
                table[name] = b""
                table.send("target", name, partition=partition)

        return hook

    hooks = WorkerHooks(on_open=send(b"open"), on_commit=send(b"commit"))
    with _worker(twin, hooks=hooks) as worker:
        for _ in worker:
            worker.commit_every(1.0)
    assert _values(twin) == [b"open", b"commit"] * PARTITIONS


def test_a_target_that_is_gone_ends_the_worker_by_name(twin: Twin) -> None:
    """After the patience the loop raises an error with topic and position; once the topic is back, nothing is lost."""
    settings = TableSettings(outputs_patience_s=0.3)
    with (
        told("cannot be published"),
        pytest.raises(PublishFailed) as failed,
        _worker(twin, settings=settings) as worker,
    ):
        twin.when_idle = lambda: None
        for number, (message, table) in enumerate(worker, 1):
            table.send("target", message.value(), partition=message.partition())
            if number == 5 * PARTITIONS:
                twin.cluster.delete("target")
                worker.commit()
    assert failed.value.facts["topic"] == "target"
    assert failed.value.facts["log"] == "log"
    twin.create_topic("target", PARTITIONS)
    with _worker(twin) as worker:
        for _ in worker:
            pytest.fail("everything is processed")
    assert _values(twin) == [b"%d" % number for number in range(5)] * PARTITIONS
