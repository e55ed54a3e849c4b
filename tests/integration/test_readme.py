"""The programs of README.md run as they are printed, in places of this run: broker, log name, directories."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from statelog.recovery import recover_dict
from statelog.storage import Log
from tests.support.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def _program(number: int, places: dict[str, str]) -> str:
    """The README's Python program of that number, from 0, in this run's places. Each place must be named in it."""
    program: str = re.findall(r"^```python\n(.*?)^```$", _README, re.MULTILINE | re.DOTALL)[number]
    for printed, ours in places.items():
        assert printed in program, f"the README's program does not name {printed}"
        program = program.replace(printed, ours)
    return program


def test_the_first_programs_run_as_printed(
    broker: Broker, spark: SparkSession, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python program prints what its comments say; the Spark program, in the same log, keeps counts by key."""
    places = {"127.0.0.1:9092": broker.bootstrap, '"visits"': f'"{log_name}"'}
    names: dict[str, Any] = {}
    exec(_program(0, {**places, "/tmp/statelog": str(tmp_path / "root")}), names)
    assert capsys.readouterr().out.splitlines() == ["{'offset': '3'}", "{b'alice': b'1'}"]

    exec(_program(1, {**places, "/tmp/checkpoint": str(tmp_path / "checkpoint")}), names)
    query, state = names["query"], names["state"]
    try:
        while not (query.lastProgress and query.lastProgress["batchId"] >= 1):
            assert query.isActive, query.exception()
            query.awaitTermination(0.1)
    finally:
        query.stop()
    assert isinstance(state, DataFrame)
    found = {bytes(row.key): bytes(row.value) for row in state.collect()}
    with Log.open(log_name, **names["where"]) as log:
        assert found == recover_dict(log)
    assert found.pop(b"alice") == b"1"
    assert found, "the stream has counted"
    assert set(found) <= {str(digit).encode() for digit in range(10)}
