"""Everyday commands on a real broker: the logs, their changes, the holds of truncation, the accepted losses."""

import json
from contextlib import closing
from typing import Any

import pytest

from statelog.producer import Writer
from tests.support.rigs.kafka import broker_world
from tests.support.rigs.shell import Shell, shell
from tests.support.samples.folds import put_all

__all__ = ["shell"]
pytestmark = pytest.mark.broker
WHO = ("--reason", "a disk died", "--operator", "ann")


def commit(shell: Shell, **changes: str | None) -> int:
    """Commit these changes; return the position behind the commit."""
    with shell.open_log() as log, Writer(log, "w") as writer:
        put_all(writer, ((key, value and value.encode()) for key, value in changes.items()))
        return writer.commit().offset + 1


def rolled_up(shell: Shell) -> None:
    """Run a round."""
    assert shell.run("materialize", shell.name, "--once", "--min-age", "0s").exit_code == 0


def test_what_there_is_and_what_changed(shell: Shell) -> None:
    """The list has a row of the log, the watch a line, and the diff its changed keys."""
    position = commit(shell, a="1", b="1")
    rolled_up(shell)
    commit(shell, a="2", b=None, c="1")
    row = next(one for one in shell.json("list")["logs"] if one["log"] == shell.name)
    assert (row["lag_commits"], row["problem"]) == (1, None)
    watched = shell.json("watch", shell.name, "--times", "1")
    assert watched["lag_commits"] == 1
    lines = [json.loads(line) for line in shell.run("diff", shell.name, position, "--json").stdout.splitlines()]
    assert {one["key"]: one["event"] for one in lines[:-1]} == {"a": "changed", "b": "removed", "c": "added"}
    assert shell.json("delete", shell.name, "--dry-run")["files"] > 0
    assert shell.json("describe", shell.name)["newest_manifest"] == 1


def test_what_holds_truncation(shell: Shell) -> None:
    """The holds of truncation are listed by partition and for the ledger, as in describe."""
    for value in "123":
        commit(shell, a=value)
        rolled_up(shell)
    found = shell.json("truncate", shell.name, "--explain")
    described = shell.json("describe", shell.name)
    assert found["truncation_held_by"] == described["truncation_held_by"] == "manifest 2"
    holding = {(one["topic"], one["partition"]) for one in found["truncation_bounds_by_partition"] if one["holds"]}
    assert holding == {("ledger", 0), ("data", 0), ("data", 1)}
    starts = {one["log_start"] for one in found["truncation_bounds_by_partition"] if one["topic"] == "ledger"}
    assert starts == {found["truncation_bounds"][0]["position"]}


@pytest.mark.usefixtures("busy_ledger")
def test_a_loss_is_shown_typed_again_and_remembered(shell: Shell) -> None:
    """A loss of deleted records is shown, retyped and remembered: its operator is named without the ledger, too."""
    commit(shell, a="1")
    with closing(broker_world(shell.bootstrap).kafka) as kafka:
        ends = {partition: end for partition, (_, end) in kafka.offsets(shell.name, range(2)).items() if end}
        kafka.delete_records(shell.name, ends)
    assert shell.run("recover", shell.name).exit_code == 6
    ((partition, end),) = ends.items()
    lost = f"{partition}:0-{end}"
    assert f"--range {lost}" in shell.run("accept-loss", shell.name, *WHO).stderr
    assert shell.run("accept-loss", shell.name, "--range", lost, *WHO, stdin=b"yes\n").exit_code == 2
    done = shell.run("accept-loss", shell.name, "--range", lost, *WHO, stdin=f"{lost}\n".encode())
    assert done.exit_code == 0, done.output
    assert f"{lost}\tw\t1\t" in done.stderr
    for value in "234":
        commit(shell, a=value)
        rolled_up(shell)
    found: dict[str, Any] = shell.json("describe", shell.name)
    assert found["ledger_start"] > 3
    assert [(one["operator"], one["given_up"], one["counts"]) for one in found["losses"]] == [("ann", lost, True)]
