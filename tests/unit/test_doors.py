"""Arguments belong to the caller, which may change them right after the call without an effect."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import statelog
from statelog import Where, Writer
from statelog.log import Log
from statelog.producer import Coordinator, TaskWriter
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.recovery import RecoverySettings, recover
from statelog.tables import InputTopic
from statelog.tables.table import Table
from tests.support.rigs.log import TwinRig, twin_rig

VALUE = """{"type": "record", "name": "V", "fields": [{"name": "n", "type": "long"},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}]}"""
Door = Callable[[Log], Iterator[tuple[object, object]]]
"""Hands something in, and yields; changes it, and yields what became of what was handed in, and what it was."""

HANDED_IN = None, None
_ROWS = 1000


def _batch(write: Callable[[pa.Table], object]) -> np.ndarray[Any, Any]:
    """Pass a table over a numpy buffer, and return the buffer."""
    keys = np.arange(_ROWS)
    write(pa.table({"key": pa.array(keys), "n": pa.array(keys), "tags": pa.array([["t"]] * _ROWS)}))
    return keys


def _state(log: Log) -> dict[Any, Any]:
    return recover(log).to_dict()


def _expected() -> dict[int, object]:
    return {key: {"n": key, "tags": ["t"]} for key in range(_ROWS)}


def _writer_append_batch(log: Log, settings: WriterSettings | None = None) -> Iterator[tuple[object, object]]:
    with Writer(log, "w", settings=settings) as writer:
        keys = _batch(writer.append_batch)
        yield HANDED_IN
        keys[:] = -1
        writer.commit()
        yield _state(log), _expected()


def _writer_append_batch_at_once(log: Log) -> Iterator[tuple[object, object]]:
    """Append a table that is too large to be copied."""
    return _writer_append_batch(log, WriterSettings(_tuning=WriterTuning(roll_bytes=4 << 10)))


def _task_append_batch(log: Log) -> Iterator[tuple[object, object]]:
    with Coordinator(log, "c") as coordinator, closing(log.kafka.producer()) as producer:
        with TaskWriter(producer, coordinator.task(), slot=0) as task:
            keys = _batch(task.append_batch)
            yield HANDED_IN
            keys[:] = -1
            coordinator.commit([task.finish()])
        yield _state(log), _expected()


def _writer_put(log: Log) -> Iterator[tuple[object, object]]:
    with Writer(log, "w") as writer:
        tags = ["t"]
        value = {"n": 1, "tags": tags}
        writer.put(1, value)
        yield HANDED_IN
        tags.append("late")
        value["n"] = 2
        writer.commit()
        yield _state(log), {1: {"n": 1, "tags": ["t"]}}


def _confirm_async(log: Log) -> Iterator[tuple[object, object]]:
    with Writer(log, "w") as writer:
        metadata = {"offset": 1}
        pending = writer.confirm_async(writer.persist().result(), metadata)
        yield HANDED_IN
        metadata["offset"] = 99
        made = pending.result()
        assert writer.last_commit is not None
        yield (made.metadata, writer.last_commit.metadata, log.commits()["w"].metadata), ({"offset": 1},) * 3


def _commit(log: Log) -> Iterator[tuple[object, object]]:
    with Writer(log, "w") as writer:
        metadata = {"offset": 1}
        made = writer.commit(metadata)
        yield HANDED_IN
        metadata["offset"] = 99
        yield made.metadata, {"offset": 1}


def _coordinator_commit(log: Log) -> Iterator[tuple[object, object]]:
    with Coordinator(log, "c") as coordinator:
        handles, metadata = list[Any](), {"offset": 1}
        coordinator.commit(handles, metadata)
        yield HANDED_IN
        metadata["offset"] = 99
        handles.append(None)
        assert coordinator.last_commit is not None
        yield coordinator.last_commit.metadata, {"offset": 1}


def _writer_partitions(log: Log) -> Iterator[tuple[object, object]]:
    partitions = [0, 1]
    with Writer(log, "w", partitions=partitions) as writer:
        yield HANDED_IN
        partitions.append(2)
        yield writer.grant.partitions, (0, 1)


def _recover_key_groups(log: Log) -> Iterator[tuple[object, object]]:
    with Writer(log, "w") as writer:
        _batch(writer.append_batch)
        writer.commit()
    wanted = [0]
    recovery = recover(log, key_groups=wanted)
    yield HANDED_IN
    wanted[:] = range(log.descriptor.key_groups)
    yield set(recovery.to_arrow(ordered=True).column("key_group").to_pylist()), {0}


def _spill_directories(log: Log) -> Iterator[tuple[object, object]]:
    directories = ["/tmp"]
    settings = RecoverySettings(spill_directories=directories)  # type: ignore[arg-type]  # a list is taken, too
    yield HANDED_IN
    directories[0] = "/nowhere"
    yield settings.directories, (Path("/tmp"),)


def _input_consumer(log: Log) -> Iterator[tuple[object, object]]:
    consumer = {"group.id": "g"}
    topic = InputTopic("words", consumer)
    yield HANDED_IN
    consumer["group.id"] = "another"
    yield topic.consumer, {"group.id": "g"}


def _where(log: Log) -> Iterator[tuple[object, object]]:
    kafka, options = {"bootstrap.servers": "b:9092"}, {"key": "k", "client_kwargs": {"hosts": ["h"]}}
    waived = ["replication"]
    where = Where(kafka, "s3://bucket/logs", storage_options=options, allow_unsafe=waived)
    before = repr(where)
    yield HANDED_IN
    kafka["bootstrap.servers"] = "other:9092"
    options["client_kwargs"]["hosts"].append("other")  # type: ignore[index]  # a dict
    options["key"] = "other"
    waived.append("min-insync")
    yield repr(where), before


TABLE_CALLS: dict[str, Callable[[Table[Any, Any], dict[str, Any]], object]] = {
    "commit": lambda table, progress: table.commit(progress),
    "commit_async": lambda table, progress: table.commit_async(progress),
    "commit_every": lambda table, progress: table.commit_every(1e9, progress),
}
DOORS: dict[str, Door] = {
    "Writer.append_batch": _writer_append_batch,
    "Writer.append_batch of a large table": _writer_append_batch_at_once,
    "TaskWriter.append_batch": _task_append_batch,
    "Writer.put": _writer_put,
    "Writer.commit": _commit,
    "Writer.confirm_async": _confirm_async,
    "Coordinator.commit": _coordinator_commit,
    "Writer(partitions)": _writer_partitions,
    "recover(key_groups)": _recover_key_groups,
    "RecoverySettings(spill_directories)": _spill_directories,
    "InputTopic(consumer)": _input_consumer,
    "Where": _where,
}


@pytest.fixture
def rig() -> TwinRig:
    """Return the twins of a log of typed values under whole numbers."""
    return twin_rig("doors")


@pytest.mark.parametrize("name", DOORS)
def test_what_is_handed_in_may_be_changed_afterwards(rig: TwinRig, name: str) -> None:
    """A change to an argument after the call does not change what is written."""
    with rig.create(key_type="long", value_schema=VALUE) as log:
        assert [found for found, expected in DOORS[name](log) if found != expected] == []


@pytest.mark.parametrize("call", TABLE_CALLS)
def test_a_table_keeps_copies(rig: TwinRig, call: str) -> None:
    """A table copies values and progress in the call that passes them, whenever they are committed."""
    rig.create(key_type="long", value_schema=VALUE).close()
    tags, progress = ["t"], {"offset": 1}
    value = {"n": 1, "tags": tags}
    with statelog.table("doors", rig.where()) as table:
        table[1] = value
        table.update({2: value})
        TABLE_CALLS[call](table, progress)
        tags.append("late")
        value["n"] = 2
        progress["offset"] = 99
    with rig.open() as log:
        assert _state(log) == {key: {"n": 1, "tags": ["t"]} for key in (1, 2)}
        assert [one.metadata for one in log.commits().values()] == [{"offset": 1}]
