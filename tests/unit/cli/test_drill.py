"""`statelog drill` and `statelog verify` print their results and set the exit code."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from statelog.cli.output import DAMAGED, MISUSE, OK
from statelog.cli.program import program
from statelog.materializer.fleet import Fleet
from statelog.operate.drill import Drilled
from tests.support.rigs.log import TwinLog, rolled_up
from tests.support.rigs.shell import commands_open

HERE = ("--bootstrap", "here:1", "--root", "s3://here/logs")


@pytest.fixture
def twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwinLog:
    """Return a log with a snapshot and a tail that every command opens."""
    twin = rolled_up(tmp_path)

    commands_open(twin, monkeypatch)
    return twin


def run(command: str, *arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(program, [command, "log", *HERE, *map(str, arguments)])


def facts(command: str, *arguments: object) -> dict[str, Any]:
    """Return the facts that the command printed for programs."""
    result = run(command, "--json", *arguments)
    assert result.exit_code == OK, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_drill_says_how_long_and_from_what(twin: TwinLog) -> None:
    """A drill reports its duration and source, and the digests of both ways, as `verify` does."""
    found = facts("drill")
    assert found["restore_s"] > 0
    assert found["compared_s"] > 0
    assert found["digest"] == found["compared_digest"] == facts("verify")["digest"]
    assert (found["manifest"], found["rows"], found["compared_rows"]) == (1, len(twin.model), len(twin.model))
    assert "compared with: the log alone" in run("drill").stdout


def test_a_difference_is_printed_and_damage(twin: TwinLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements go to standard output, and differences to standard error."""

    def differ(_: Drilled) -> None:
        from statelog.errors import Corrupt

        raise Corrupt("two ways to one state lead to different ones")

    monkeypatch.setattr(Drilled, "check", differ)
    result = run("drill")
    assert result.exit_code == DAMAGED
    assert f"rows: {len(twin.model)}" in result.stdout
    assert "different ones" in result.stderr


def test_an_earlier_state_is_verified(twin: TwinLog) -> None:
    """An earlier state has another digest, and verifying it leaves no lease."""
    with twin.open() as log:
        position = log.manifests.read(1).position
    now, then = facts("verify"), facts("verify", "--at-position", position, "--no-lease")
    assert (then["position"], then["has_lease"]) == (position, False)
    assert then["digest"] != now["digest"]
    assert twin.disk.files("log/leases/") == []


@pytest.mark.usefixtures("busy_ledger")
def test_damage_ends_it(twin: TwinLog) -> None:
    """Damage ends the command with the exit code for damage."""
    end = twin.cluster.log("log", 0).end
    twin.cluster.spoil("log", 0, end - 1, end)
    assert run("verify").exit_code == DAMAGED


@pytest.mark.parametrize("setting", ["drill_every_s = '1d'", "rounds = 3"])
def test_what_holds_for_a_process_is_not_said_of_one_of_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """A setting of the whole process is refused in the table of a single log."""

    def end_at_once(_: Fleet) -> None:
        pass

    monkeypatch.setattr(Fleet, "run", end_at_once)
    file = tmp_path / "here.toml"
    file.write_text(f"[logs.orders]\n{setting}\n", "utf-8")
    options = ["--config", str(file), *HERE]
    for named in (["orders", "visits"], ["--all"]):
        refused = CliRunner().invoke(program, ["materialize", *named, *options])
        assert refused.exit_code == MISUSE
        assert f"logs.orders.{setting.split()[0]}" in refused.stderr
    assert CliRunner().invoke(program, ["materialize", "visits", "clicks", *options]).exit_code == 0, (
        "the setting is of another log"
    )
