"""The programs of README.md run as they are printed, in places of this run: broker, log name, directories."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.services.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def _program(number: int, places: dict[str, str]) -> str:
    """The README's Python program of that number, from 0, in this run's places. Each place must be named in it."""
    program: str = re.findall(r"^```python\n(.*?)^```$", _README, re.MULTILINE | re.DOTALL)[number]
    for printed, ours in places.items():
        assert printed in program, f"the README's program does not name {printed}"
        program = program.replace(printed, ours)
    return program


def _wait_for_a_batch(query: StreamingQuery) -> None:
    while not (query.lastProgress and query.lastProgress["batchId"] >= 1):
        assert query.isActive, query.exception()
        time.sleep(0.1)


def test_the_first_programs_run_as_printed(
    broker: Broker, spark: SparkSession, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python program prints what its comments say; the Spark program, in the same log, keeps counts by key."""
    places = {"127.0.0.1:9092": broker.bootstrap, '"visits"': f'"{log_name}"'}
    names: dict[str, Any] = {}
    exec(_program(0, {**places, "/tmp/statelog": str(tmp_path / "root")}), names)
    assert capsys.readouterr().out.splitlines() == ["{'offset': '3'}", "{b'alice': b'1'}"]

    # The second program by itself, as somebody may paste it; it waits for a batch, and not for half a minute.
    places |= {"/tmp/checkpoint": str(tmp_path / "checkpoint"), "/tmp/statelog": str(tmp_path / "root")}
    wait = {"query.awaitTermination(30)": "wait_for_a_batch(query)"}
    second: dict[str, Any] = {"wait_for_a_batch": _wait_for_a_batch}
    try:
        exec(_program(1, {**places, **wait}), second)
        found = {bytes(row.key): bytes(row.value) for row in second["state"].collect()}
    finally:
        for query in spark.streams.active:
            query.stop()
    assert capsys.readouterr().out.count("alice") == 1
    assert found.pop(b"alice") == b"1"
    assert found, "the stream has counted"
    assert set(found) <= {str(digit).encode() for digit in range(10)}
