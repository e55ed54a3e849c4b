"""Commands show from when a row is expired, if they are asked."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from statelog.cli.output import OK
from statelog.cli.program import program
from statelog.log import Log
from statelog.materializer.settings import MaterializerSettings
from statelog.operate.description import describe_log, due_facts
from statelog.operate.drill import drill
from statelog.operate.examination import examine
from statelog.operate.finding import Severity
from statelog.operate.log_checks import Check
from statelog.recovery import RecoverySettings, recover
from tests.support.rigs.shell import commands_open
from tests.support.rigs.timed import NOON_MS, TimedLog
from tests.support.samples.manifests import run_ref

HERE = ("--bootstrap", "here:1", "--root", "s3://here/logs")
AT = "2027-01-15T08:00:00+00:00"
AT_250 = "2027-01-15T08:00:00.250+00:00"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TimedLog:
    """Return a log with dues in a snapshot and in its tail, which every command opens."""
    made = TimedLog(replicas=3)
    made.put({b"a": (b"1", NOON_MS), b"b": (b"1", None)})
    made.round(tmp_path)
    made.put({b"c": (b"2", NOON_MS + 250), b"b": (b"2", None)})
    commands_open(made, monkeypatch)
    return made


def run(*arguments: object) -> Result:
    """Run a command that has to succeed."""
    command, *rest = map(str, arguments)
    result = CliRunner().invoke(program, [command, "log", *rest, *HERE])
    assert result.exit_code == OK, result.output
    return result


def _lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("made")
def test_get_shows_dues() -> None:
    """`get --due` prints a line of JSON for each key, with its due or null. Without it, lines are as ever."""
    assert _lines(run("get", "a", "--due")) == [{"key": "a", "due": AT, "value": "1"}]
    assert _lines(run("get", "c", "b", "--due")) == [
        {"key": "c", "due": AT_250, "value": "2"},
        {"key": "b", "due": None, "value": "2"},
    ]
    assert run("get", "a").stdout == "1\n"
    assert _lines(run("get", "a", "b")) == [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]


@pytest.mark.usefixtures("made")
def test_recover_shows_dues(tmp_path: Path) -> None:
    """`recover --due` has them in its first rows, in JSON lines and in Parquet; without it, columns are as ever."""
    shown = json.loads(run("recover", "--due", "--json").stdout)["first_rows"]
    assert {row["key"]: row["due"] for row in shown} == {"a": AT, "b": None, "c": AT_250}
    assert {tuple(row) for row in json.loads(run("recover", "--json").stdout)["first_rows"]} == {
        ("key_group", "key", "value")
    }
    lines = _lines(run("recover", "--due", "--to-json", "-"))
    assert {line["key"]: line["due"] for line in lines} == {"a": AT, "b": None, "c": AT_250}
    run("recover", "--due", "--to-parquet", tmp_path / "with")
    run("recover", "--to-parquet", tmp_path / "without")
    assert [pq.ParquetFile(tmp_path / name).schema_arrow.names[3:] for name in ("with", "without")] == [["due"], []]


@pytest.mark.usefixtures("made")
def test_follow_shows_dues() -> None:
    """`follow --due` has the due of each put, for people and for programs, of the state and of commits."""
    text = run("follow", "--from", "oldest", "--once", "--due").stdout
    assert sorted(re.findall(r"^  .*", text, re.MULTILINE)) == [
        "  put a 1, due " + AT,
        "  put b 1",
        "  put b 2",
        "  put c 2, due " + AT_250,
    ]
    puts = [
        one for one in _lines(run("follow", "--from", "state", "--once", "--due", "--json")) if one["event"] == "put"
    ]
    assert {one["key"]: one["due"] for one in puts} == {"a": AT, "b": None, "c": AT_250}
    puts = [one for one in _lines(run("follow", "--from", "state", "--once", "--json")) if one["event"] == "put"]
    assert {tuple(one) for one in puts} == {("event", "key", "value")}


def test_describe_counts_what_is_overdue(made: TimedLog) -> None:
    """A log is described with the rows that have a due in its snapshot, and at most how many are due by now."""
    with made.open() as log:
        facts = [describe_log(log, MaterializerSettings(), NOON_MS / 1000 + late).facts for late in (-1, 0)]
    assert [(one["due_rows"], one["overdue_rows_max"], one["overdue_since"]) for one in facts] == [
        (1, 0, None),
        (1, 1, AT),
    ]


def test_overdue_rows_are_counted_by_runs() -> None:
    """A run counts with all its dues once the first of them has come, and the oldest due says since when."""
    runs = [
        replace(run_ref("a", 0, 1), due_rows=5, first_due_ms=2000, last_due_ms=9000),
        replace(run_ref("b", 1, 2), due_rows=7, first_due_ms=1000, last_due_ms=1000),
        run_ref("c", 2, 3),
    ]
    found = [due_facts(runs, now_s) for now_s in (0.9, 1.0, 2.5)]
    assert [(one["due_rows"], one["overdue_rows_max"]) for one in found] == [(12, 0), (12, 7), (12, 12)]
    assert [one["overdue_since"] for one in found] == [None, *["1970-01-01T00:00:01+00:00"] * 2]
    assert due_facts([], 5.0) == {"due_rows": 0, "overdue_rows_max": 0, "overdue_since": None}


def test_verify_and_drill_read_dues(made: TimedLog) -> None:
    """`verify` has the digest of the state with its dues, and a drill finds both ways equal."""
    with made.open() as log:
        digest = str(recover(log).digest())
        found = drill(log, RecoverySettings())
    assert json.loads(run("verify", "--json").stdout)["digest"] == digest
    found.check()
    assert found.other is not None


def test_a_deep_doctor_reads_dues(made: TimedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor reads every byte of runs and of a tail with dues, and finds nothing."""
    monkeypatch.setattr(Log, "patience_s", 0.0)
    with made.open() as log:
        found = made.environment.run(
            examine, log.name, replace(made.where(), allow_unsafe=()), MaterializerSettings(), deep=True
        )
    checks = {one.name: one.severity for one in found}
    assert checks[Check.RUNS] is checks[Check.TAIL] is Severity.OK
