"""`statelog copy` places the copy, refuses contradictory options, and prints its result."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statelog.cli.output import MISUSE, OK
from statelog.cli.program import program
from statelog.cli.session import Session
from statelog.log import Where
from statelog.testing.cluster import MemoryCluster
from tests.support.rigs.log import TwinLog, twin_rig
from tests.support.rigs.shell import commands_open

HERE = ("--bootstrap", "here:1", "--root", "s3://here/logs")


@pytest.fixture
def wheres(monkeypatch: pytest.MonkeyPatch) -> list[Where]:
    """Return the requested places of copies. Every command opens one log, and all copies are on one other cluster."""
    asked: list[Where] = []
    twin, new = TwinLog(), twin_rig("copy", cluster=MemoryCluster(cluster_id="another"))
    twin.write({b"k": b"v"})

    where = Session.where

    def asking(session: Session) -> Where:
        asked.append(where(session))
        return new.where()

    commands_open(twin, monkeypatch)
    monkeypatch.setattr(Session, "where", asking)
    return asked


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(program, ["copy", "log", "copy", *HERE, *arguments])


def test_a_copy_is_told_what_it_did(wheres: list[Where]) -> None:
    """Both steps of a copy, with the state and to finish, print their facts. Programs read the same facts."""
    first = run()
    assert first.exit_code == OK, first.output
    assert "copy: copy" in first.stdout
    assert "is finished: false" in first.stdout
    finished = run("--finish", "--json")
    assert finished.exit_code == OK, finished.output
    facts = json.loads(finished.stdout)
    assert (facts["is_finished"], facts["verified_rows"], facts["writers"]) == (True, 1, 1)
    assert [where.root for where in wheres] == ["s3://here/logs"] * 2


def test_the_copy_may_leave_truncation_to_kafka(wheres: list[Where]) -> None:
    """A cluster without DeleteRecords uses retention instead. A later call must choose the same."""
    by_kafka = ("--truncation", "retention", "--retention-days", "3")
    assert run(*by_kafka).exit_code == OK
    assert run(*by_kafka, "--finish").exit_code == OK
    assert run("--truncation", "delete-records").exit_code == MISUSE
    assert len(wheres) == 3


def test_the_copy_is_where_it_is_said_to_be(wheres: list[Where], tmp_path: Path) -> None:
    """The copy's place comes from its file, overridden only by options, and is the log's place by default."""
    there = tmp_path / "there.toml"
    there.write_text('bootstrap = "there:1"\nroot = "s3://there/logs"\n', encoding="utf-8")
    assert run("--to-config", str(there)).exit_code == OK
    assert run("--to-config", str(there), "--to-root", "s3://else/logs").exit_code == OK
    assert run("--to-bootstrap", "else:1").exit_code == OK
    assert [(where.kafka_settings()["bootstrap.servers"], where.root) for where in wheres] == [
        ("there:1", "s3://there/logs"),
        ("there:1", "s3://else/logs"),
        ("else:1", "s3://here/logs"),
    ]


@pytest.mark.parametrize(
    "options",
    [
        ("--as-copied",),
        ("--as-copied", "--finish", "--snapshot"),
        ("--as-copied", "--finish", "--truncation", "retention"),
        ("--as-copied", "--finish", "--retention-days", "3"),
    ],
)
def test_what_does_not_go_together_is_refused(wheres: list[Where], options: tuple[str, ...]) -> None:
    """Contradictory options are refused before anything is opened."""
    refused = run(*options)
    assert refused.exit_code == MISUSE
    assert "--as-copied only opens a copy" in refused.stderr
    assert wheres == []


def test_a_copy_is_finished_without_its_log(wheres: list[Where]) -> None:
    """Finishing as copied needs only the name of the log."""
    assert run("--no-verify").exit_code == OK
    done = run("--finish", "--as-copied")
    assert done.exit_code == OK, done.output
    assert "is finished: true" in done.stdout
    assert len(wheres) == 2
