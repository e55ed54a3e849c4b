"""The examples in the docstrings of public names run as printed, on a log that has a state."""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statelog
from statelog.log import Log, Where
from statelog.recovery import AtPosition, Recovery, RecoverySettings, recover
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore

_NAMES: list[Any] = [
    statelog.open,
    Log,
    recover,
    Recovery,
    RecoverySettings,
    Recovery.to_dict,
    Recovery.to_arrow,
    Recovery.to_parquet,
    Recovery.to_rocksdb,
    Recovery.stream,
    Recovery.follow,
]


def _example(name: Callable[..., Any]) -> str:
    """Return the indented block of a docstring that is its example, the first one."""
    text = inspect.getdoc(name) or ""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("    "))
    end = next((number for number in range(start, len(lines)) if not lines[number].startswith("    ")), len(lines))
    return textwrap.dedent("\n".join(lines[start:end]))


@pytest.mark.parametrize("name", _NAMES, ids=lambda name: name.__qualname__)
def test_the_example_runs(name: Callable[..., Any], tmp_path: Path) -> None:
    """The example runs with only a log, its `Where`, and the names of the room."""
    cluster, disk = MemoryCluster(), MemoryDisk(lambda: 1_000.0)
    waived = ("replication", "min-insync")
    store = MemoryStore(disk, "visits")
    first, where = (
        Where(MemoryKafka(cluster=cluster), store, allow_unsafe=waived, replication_factor=1) for _ in range(2)
    )
    example = _example(name).replace("/tmp/statelog", str(tmp_path))
    assert 1 <= len(example.splitlines()) <= 3
    with statelog.open("visits", first, create=True) as log:
        with statelog.Writer(log, "web") as writer:
            writer.put(b"alice", b"1")
            writer.commit(checkpoint_id=1)
        given = {"log": log, "where": where}
        known = {"statelog": statelog, "recover": recover, "AtPosition": AtPosition, "Log": Log, "Where": Where}
        exec(example, {**given, **known, "RecoverySettings": RecoverySettings})
