"""The programs of README.md, and those that need Spark elsewhere, run as they are printed, in places of this run."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import statelog
from tests.support.doc_programs import check_page
from tests.support.documents import ROOT, programs, said
from tests.support.rooms import SOURCE
from tests.support.services.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_README = ROOT / "README.md"


def _program(number: int, places: dict[str, str], document: Path = _README) -> str:
    """The document's Python program of that number, from 0, in this run's places. Each place must be named in it."""
    program = programs(document)[number]
    for printed, ours in places.items():
        assert printed in program, f"the program of {document.name} does not name {printed}"
        program = program.replace(printed, ours)
    return program


def _wait_for_a_batch(query: StreamingQuery) -> None:
    while not (query.lastProgress and query.lastProgress["batchId"] >= 1):
        assert query.isActive, query.exception()
        time.sleep(0.1)


def test_the_first_programs_run_as_printed(
    broker: Broker, spark: SparkSession, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables go on when their programs are run again; a reader fences nobody, and Spark goes on in the same log."""
    places = {"127.0.0.1:9092": broker.bootstrap, '"visits"': f'"{log_name}"'}
    local = f'Where.local("{tmp_path / "root"}", "{broker.bootstrap}")'
    names: dict[str, Any] = {}
    shortest = _program(0, {'"hits"': f'"{log_name}-0"', 'Where.local("/tmp/statelog")': local})
    for printed in ("{b'docs': b'1', b'home': b'2'}", "{b'docs': b'2', b'home': b'4'}"):
        assert printed in _README.read_text(encoding="utf-8")
        exec(shortest, names)
        assert capsys.readouterr().out.splitlines() == [printed]
    first = _program(1, {'"visits"': f'"{log_name}"'})
    for printed in ("0 {b'alice': b'1', b'bob': b'1'}", "2 {b'alice': b'2', b'bob': b'1', b'carol': b'1'}"):
        assert printed in _README.read_text(encoding="utf-8")
        exec(first, names)
        assert capsys.readouterr().out.splitlines() == [printed]
    second = _program(2, {'"visits"': f'"{log_name}"'})
    with statelog.table(log_name, names["where"]) as owner:
        exec(second, names)
        assert capsys.readouterr().out.splitlines() == said(second)
        owner.commit(owner.progress)

    # The Spark program by itself, as somebody may paste it; it waits for a batch, and not for half a minute.
    places |= {"/tmp/checkpoint": str(tmp_path / "checkpoint"), "/tmp/statelog": str(tmp_path / "root")}
    wait = {"query.awaitTermination(30)": "wait_for_a_batch(query)"}
    third: dict[str, Any] = {"wait_for_a_batch": _wait_for_a_batch}
    try:
        exec(_program(3, {**places, **wait}), third)
        found = {bytes(row.key): bytes(row.value) for row in third["state"].collect()}
    finally:
        for query in spark.streams.active:
            query.stop()
    assert capsys.readouterr().out.count("alice") == 1
    assert [found.pop(name) for name in (b"alice", b"bob", b"carol")] == [b"2", b"1", b"1"]
    assert found, "the stream has counted"
    assert set(found) <= {str(digit).encode() for digit in range(10)}


def test_the_program_of_the_spark_room_runs_as_printed(
    broker: Broker, spark: SparkSession, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what its comment says, also when it is run again: a checkpoint counts once."""
    places = {"127.0.0.1:9092": broker.bootstrap, '"planes"': f'"{log_name}"', "/tmp/statelog": str(tmp_path)}
    program = _program(0, places, SOURCE / "spark" / "README.md")
    for _ in range(2):
        exec(program, {})
        assert capsys.readouterr().out.splitlines() == said(program)


def test_spark_reads_a_snapshot_as_the_guide_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Parquet file that the guide's first program wrote is a table for a Spark that knows nothing of statelog."""
    guide = ROOT / "docs" / "guide" / "snapshots.md"
    check_page(guide, tmp_path, lambda: capsys.readouterr().out)
    (program,) = programs(guide, "py")
    exec(program.replace("/tmp/statelog", str(tmp_path / "statelog")), {"spark": spark})
    assert capsys.readouterr().out.count("Row(") == 2
