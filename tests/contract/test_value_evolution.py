"""Values whose schema changes while a log is in use: several schemas in chunks and runs, on twins and a broker."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow.parquet as pq
import pytest
import rocksdict

from statelog.errors import IncompatibleSchema, InvalidChange
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import AtPosition, Recovery, RecoverySettings, read_rocksdb_state, recover
from statelog.schemas.key_groups import key_group_of, partition_of
from tests.support.rigs.log import LogRig, settings_for

FIRST = """{"type": "record", "name": "Order", "fields": [
    {"name": "n", "type": "int"}, {"name": "gone", "type": "string"}]}"""
SECOND = """{"type": "record", "name": "Order", "fields": [
    {"name": "n", "type": "long"}, {"name": "s", "type": ["null", "string"], "default": null}]}"""
THIRD = """{"type": "record", "name": "Order", "fields": [
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    {"name": "amount", "type": "double", "aliases": ["n"]},
    {"name": "s", "type": ["null", "string"], "default": null}]}"""

State = dict[bytes, dict[str, Any]]


def _keys(log: Log, partitions: set[int]) -> list[bytes]:
    shape = log.descriptor
    groups = {key: key_group_of(key, shape.key_type, shape.key_groups) for key in (b"k%d" % i for i in range(200))}
    counts = shape.partitions, shape.key_groups
    return [key for key, group in groups.items() if partition_of(group, *counts) in partitions][:20]


def _third(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value of any of the three schemas as one of the third."""
    amount = value["amount"] if "amount" in value else float(value["n"])
    return {"tags": value.get("tags", []), "amount": amount, "s": value.get("s")}


def _to_arrow(recovery: Recovery, _: Path) -> State:
    table = recovery.to_arrow()
    return dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))


def _to_parquet(recovery: Recovery, directory: Path) -> State:
    path = directory / f"{recovery.position}.parquet"
    recovery.to_parquet(path)
    table = pq.read_table(str(path))
    return dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))


def _to_rocksdb(recovery: Recovery, directory: Path) -> State:
    path = directory / f"{recovery.position}.rocksdb"
    recovery.to_rocksdb(path)
    schema = fastavro.parse_schema(json.loads(read_rocksdb_state(path).value_schema))
    with rocksdict.Rdict(str(path)) as database:
        rows = {cast("bytes", key)[2:]: value for key, value in database.items()}
    return {key: fastavro.schemaless_reader(io.BytesIO(value), schema) for key, value in rows.items()}


TARGETS: list[Callable[[Recovery, Path], State]] = [
    lambda recovery, _: recovery.to_dict(),
    _to_arrow,
    _to_parquet,
    _to_rocksdb,
]


def _commit(writer: Writer, checkpoint_id: int, changes: State, model: State) -> int:
    for key, value in changes.items():
        writer.put(key, value)
    model.update(changes)
    return writer.commit(checkpoint_id=checkpoint_id).offset + 1


def test_three_schemas_in_one_log(rig: LogRig, tmp_path: Path) -> None:
    """An old writer goes on with schema 1 while others write 2 and 3; every target, now and earlier, has the newest."""
    settings = settings_for(tmp_path, keep=9, fanout=3)
    model: State = {}
    with rig.create(value_schema=FIRST) as log, Writer(log, "old", partitions=[0, 1]) as old:
        mine, theirs = _keys(log, {0, 1}), _keys(log, {2, 3})
        _commit(old, 1, {key: {"n": i, "gone": "x"} for i, key in enumerate(mine)}, model)
        run_round(log, settings)
        with rig.open() as other:
            assert other.evolve_value_schema(SECOND).id == 2
            with Writer(other, "new", partitions=[2, 3]) as new:
                _commit(new, 1, {key: {"n": 2**40 + i, "s": "two"} for i, key in enumerate(theirs)}, model)
        earlier = _commit(old, 2, {mine[0]: {"n": -1, "gone": "y"}}, model)
        before = {key: _third(value) for key, value in model.items()}
        run_round(log, settings)
        with rig.open() as other:
            assert other.evolve_value_schema(THIRD).id == 3
            with Writer(other, "new", partitions=[2, 3]) as new:
                _commit(new, 2, {theirs[0]: {"amount": 0.5, "tags": ["a", "b"], "s": None}}, model)
        _commit(old, 3, {mine[1]: {"n": -2, "gone": "z"}}, model)
        expected = {key: _third(value) for key, value in model.items()}

        manifest = log.manifests.newest()
        assert manifest is not None
        assert [run.value_schema_id for run in manifest.runs] == [1, 2]
        for target in TARGETS:
            assert target(recover(log), tmp_path) == expected
            assert target(recover(log, at=AtPosition(earlier)), tmp_path) == before

        run_round(log, settings)
        merged = log.manifests.newest()
        assert merged is not None
        assert [run.value_schema_id for run in merged.runs] == [3]
        assert recover(log).to_dict() == expected
        assert recover(log, at=AtPosition(earlier)).to_dict() == before


def test_a_writer_has_the_schema_of_its_opening(rig: LogRig) -> None:
    """A writer has the schema of its opening: it takes no field of a newer one until it is opened again.

    Its old values stay readable.
    """
    with rig.create(value_schema=FIRST) as log:
        with Writer(log, "w") as writer:
            log.evolve_value_schema(SECOND)
            with pytest.raises(InvalidChange):
                writer.put(b"a", {"n": 1, "s": "new"})
                writer.commit(checkpoint_id=1)
        with Writer(log, "w") as writer:
            writer.put(b"b", {"n": 2, "s": "new"})
            writer.commit(checkpoint_id=1)
        assert recover(log).to_dict() == {b"b": {"n": 2, "s": "new"}}


def test_an_older_schema_reads_what_it_can(rig: LogRig) -> None:
    """A reader that asks for an older schema gets it, unless the state has newer values that it cannot read."""
    with rig.create(value_schema=FIRST) as log:
        with Writer(log, "w") as writer:
            writer.put(b"a", {"n": 1, "gone": "x"})
            writer.commit(checkpoint_id=1)
        log.evolve_value_schema(SECOND)
        first = RecoverySettings(value_schema_id=1)
        assert recover(log, settings=first).to_dict() == {b"a": {"n": 1, "gone": "x"}}
        with Writer(log, "w") as writer:
            writer.put(b"b", {"n": 2})
            writer.commit(checkpoint_id=2)
        with pytest.raises(IncompatibleSchema) as caught:
            recover(log, settings=first).to_dict()
        assert caught.value.facts["field"] == "value.n"
