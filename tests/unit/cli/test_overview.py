"""`statelog list`, `statelog watch` and `--dry-run` report what `describe` and the deletion would."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from statelog.cli.output import DAMAGED, MISUSE, NOT_FOUND, OK
from statelog.cli.program import program
from statelog.cli.session import Session
from statelog.log import Where
from statelog.materializer.round import run_round
from statelog.reading.claims import HeldSubscription
from statelog.testing.store import MemoryStore
from tests.support.rigs.log import UNSAFE, TwinLog, settings_for, twin_rig
from tests.support.rigs.shell import commands_open

HERE = ("--bootstrap", "here:1", "--root", "s3://here/logs")


@pytest.fixture
def twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwinLog:
    """Return two logs below one root that everybody uses.

    One has a snapshot and two commits behind it, and the other has none.
    """
    twin = TwinLog()
    twin.write({b"k": b"1"})
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    for value in (b"2", b"3"):
        twin.write({b"k": value})
    twin_rig("other", cluster=twin.cluster, disk=twin.disk).create(partitions=1).close()

    def where(_: Session) -> Where:
        store: Callable[[str], MemoryStore] = lambda name: MemoryStore(twin.disk, name)  # noqa: E731 - one expression
        return Where(twin.where().kafka, store, allow_unsafe=UNSAFE, replication_factor=1)

    monkeypatch.setattr(Session, "where", where)
    commands_open(twin, monkeypatch)
    return twin


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(program, [*arguments, *HERE])


def test_all_logs_of_a_root_are_listed(twin: TwinLog) -> None:
    """`list` shows every log of a root as `describe` does. A foreign directory is left out."""
    twin.disk.write("photos/cat.jpg", b"x", absent=True)
    found = json.loads(run("list", "--json").stdout)["logs"]
    described = json.loads(run("describe", "log", "--json").stdout)
    assert [one["log"] for one in found] == ["log", "other"]
    shown = {name: value for name, value in found[0].items() if name not in ("problem", "lag_age_s")}
    assert shown == {name: described[name] for name in shown}
    assert found[0]["lag_age_s"] <= described["lag_age_s"]
    assert found[0]["problem"] is None
    assert (found[0]["lag_commits"], found[1]["lag_commits"]) == (2, 0)
    assert found[0]["restore_estimate_s"] > 0


def test_list_and_describe_give_the_same_verdict(twin: TwinLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """`list` and `describe` apply the same configured limits and say what to do. Estimates are rounded."""

    def told(*arguments: str) -> str:
        return twin.environment.run(run, *arguments).stdout  # The log was written by this clock.

    assert [one["verdict"] for one in json.loads(told("list", "--json"))["logs"]] == ["ok", "empty"]
    lines = told("describe", "log").splitlines()
    assert lines[:4] == ["log: log", "verdict: ok", "verdict severity: ok", "verdict hint: -"]
    assert "restore estimate: < 1 s" in lines
    monkeypatch.setenv("STATELOG_RESTORE_BUDGET_S", "0.000001s")
    (slow, _) = json.loads(told("list", "--json"))["logs"]
    described = json.loads(told("describe", "log", "--json"))
    assert slow["verdict"] == described["verdict"]
    assert described["verdict"].startswith("a restore takes")
    assert (described["verdict_severity"], "Run rounds more often" in described["verdict_hint"]) == ("note", True)


@pytest.mark.usefixtures("at_once")
def test_a_log_that_is_damaged_hides_no_other(twin: TwinLog) -> None:
    """A damaged log has its error in its row, and the error decides the exit code."""
    twin.cluster.lose_tail("log.ledger", 0, 2)
    result = run("list", "--json")
    assert result.exit_code == DAMAGED, result.output
    rows: dict[str, Any] = {one["log"]: one for one in json.loads(result.stdout)["logs"]}
    assert rows["log"]["problem"].startswith("BeyondEnd: ")
    assert rows["other"]["problem"] is None


def test_a_log_is_watched(twin: TwinLog) -> None:
    """`watch` prints a line each time, and a rate from the second one on. It holds no lease."""
    result = run("watch", "log", "--times", "2", "--interval", "10ms", "--json")
    assert result.exit_code == OK, result.output
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["lag_commits"], first["ledger_records_per_s"]) == (2, None)
    assert second["ledger_records_per_s"] == 0.0
    assert "lag commits 2" in run("watch", "log", "--times", "1").stdout
    assert twin.disk.files("log/leases/") == []


def test_what_delete_would_delete(twin: TwinLog) -> None:
    """`delete --dry-run` counts what it would delete and deletes nothing. A missing log is not found."""
    before = twin.disk.files("")
    facts = json.loads(run("delete", "log", "--dry-run", "--json").stdout)
    assert facts["topics"] == "log, log.ledger"
    assert facts["records"] == sum(len(twin.cluster.records(topic, p)) for topic, p in places())
    assert facts["files"] == sum(info.path.startswith("log/") for info in before)
    assert twin.disk.files("") == before
    assert run("delete", "log").exit_code == MISUSE


def places() -> list[tuple[str, int]]:
    """Return every partition of the log."""
    return [("log", 0), ("log", 1), ("log", 2), ("log.ledger", 0)]


def test_what_the_removal_of_a_subscription_would_end(twin: TwinLog) -> None:
    """`--remove --dry-run` shows what would end, and removes nothing."""
    with twin.open() as log:
        state = log.manifests.read(1).state
        HeldSubscription(log, "lake", holder_id="1", holder="query").hold(state, None, take_up=True)
    before = twin.disk.files("")
    shown = json.loads(run("subscriptions", "log", "--remove", "lake", "--dry-run", "--json").stdout)
    assert [(one["reader"], one["status"]) for one in shown["subscriptions"]] == [("lake", "holds")]
    assert twin.disk.files("") == before
    assert run("subscriptions", "log", "--remove", "nobody", "--dry-run").exit_code == NOT_FOUND
