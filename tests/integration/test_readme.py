"""The programs of README.md, of development and of Spark run as they are printed, at places of this run."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.doc_programs import check_page
from tests.support.documents import ROOT, programs, said
from tests.support.rooms import SOURCE
from tests.support.services.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_README = ROOT / "README.md"


def _program(number: int, places: dict[str, str], document: Path = _README) -> str:
    """Return the document's Python program of that number, from 0, at this run's places, each of which it must name."""
    program = programs(document)[number]
    for printed, ours in places.items():
        assert printed in program, f"the program of {document.name} does not name {printed}"
        program = program.replace(printed, ours)
    return program


def _wait_for_a_batch(query: StreamingQuery) -> None:
    while not (query.lastProgress and query.lastProgress["batchId"] >= 1):
        assert query.isActive, query.exception()
        time.sleep(0.1)


def test_the_programs_run_as_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The programs run as printed, without a broker or Java."""
    check_page(_README, tmp_path, lambda: capsys.readouterr().out)


def test_a_kafka_for_development_runs_as_printed(
    broker: Broker, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table goes on when its program is run again."""
    page = ROOT / "docs" / "guide" / "development.md"
    local = f'Where.local("{tmp_path / "root"}", "{broker.bootstrap}")'
    shortest = _program(0, {'"hits"': f'"{log_name}"', 'Where.local("/tmp/statelog")': local}, page)
    for printed in ("{b'docs': b'1', b'home': b'2'}", "{b'docs': b'2', b'home': b'4'}"):
        assert printed in page.read_text(encoding="utf-8")
        exec(shortest, {})
        assert capsys.readouterr().out.splitlines() == [printed]


def test_spark_in_ten_minutes_runs_as_printed(
    broker: Broker, spark: SparkSession, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Spark program runs as printed, and waits for a batch, not for half a minute."""
    places = {"127.0.0.1:9092": broker.bootstrap, '"visits"': f'"{log_name}"'}
    places |= {"/tmp/checkpoint": str(tmp_path / "checkpoint"), "/tmp/statelog": str(tmp_path / "root")}
    wait = {"query.awaitTermination(30)": "wait_for_a_batch(query)"}
    names: dict[str, Any] = {"wait_for_a_batch": _wait_for_a_batch}
    try:
        exec(_program(0, {**places, **wait}, ROOT / "docs" / "guide" / "spark.md"), names)
        found = {bytes(row.key): bytes(row.value) for row in names["state"].collect()}
    finally:
        for query in spark.streams.active:
            query.stop()
    assert "key" in capsys.readouterr().out
    assert found, "the stream has counted"
    assert set(found) <= {str(digit).encode() for digit in range(10)}


def test_the_program_of_the_spark_room_runs_as_printed(
    broker: Broker, spark: SparkSession, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program prints its comment's text, also when it is run again: a checkpoint counts once."""
    places = {"127.0.0.1:9092": broker.bootstrap, '"planes"': f'"{log_name}"', "/tmp/statelog": str(tmp_path)}
    program = _program(0, places, SOURCE / "spark" / "README.md")
    for _ in range(2):
        exec(program, {})
        assert capsys.readouterr().out.splitlines() == said(program)


def test_spark_reads_a_snapshot_as_the_guide_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Parquet file of the guide's first program is a table for a Spark without statelog."""
    guide = ROOT / "docs" / "guide" / "snapshots.md"
    check_page(guide, tmp_path, lambda: capsys.readouterr().out)
    (program,) = programs(guide, "py")
    exec(program.replace("/tmp/statelog", str(tmp_path / "statelog")), {"spark": spark})
    assert capsys.readouterr().out.count("Row(") == 2
