"""`statelog doctor NAME` on a real broker: a sound log, and some damages that a broker and a directory can have."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from statelog.operate.log_checks import Check
from statelog.producer import Writer
from tests.support.rigs.kafka import broker_world
from tests.support.rigs.log import real_rig
from tests.support.rigs.shell import Shell, shell

__all__ = ["shell"]
pytestmark = pytest.mark.broker


def commit(shell: Shell, *values: str) -> None:
    """Commit each value."""
    with shell.open_log() as log, Writer(log, "w") as writer:
        for value in values:
            for number in range(20):
                writer.put(f"k{number}", value.encode())
            writer.commit()


@pytest.fixture
def rolled_up(shell: Shell) -> Shell:
    """Return a log with two snapshots and a tail."""
    for value in ("1", "2"):
        commit(shell, value)
        assert shell.run("materialize", shell.name, "--once", "--min-age", "0s").exit_code == 0
    commit(shell, "3", "4")
    return shell


def findings(shell: Shell, *args: object, code: int) -> dict[str, dict[str, Any]]:
    """Return the findings by name; the doctor makes a deep check."""
    result = shell.run("doctor", shell.name, "--deep", *args)
    assert result.exit_code == code, result.output
    found = shell.json("doctor", shell.name, "--deep", *args) if code == 0 else _json_of(shell, *args)
    assert [one["name"] for one in found["findings"]] == list(Check)
    return {one["name"]: one for one in found["findings"]}


def _json_of(shell: Shell, *args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell.run("doctor", shell.name, "--deep", "--json", *args).stdout)
    return found


def bad(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the checks that ran and are not OK."""
    return {
        name: one["severity"] for name, one in found.items() if one["severity"] != "ok" and one["found"] != "not asked"
    }


def test_a_sound_log(rolled_up: Shell) -> None:
    """A sound log has no finding but its single broker; no file changes, and the store's probe is removed."""
    before = {path: path.stat().st_mtime_ns for path in rolled_up.root.rglob("*") if path.is_file()}
    found = findings(rolled_up, code=0)
    assert bad(found) == {Check.TOPICS: "note"}
    assert found[Check.IN_SYNC]["facts"] == {"behind": 0, "least": 1}
    assert found[Check.TAIL]["facts"]["changes"] == 40
    assert found[Check.ROOM]["facts"]["free_bytes"] > 0
    assert bad(findings(rolled_up, "--prove-store", code=0)) == {Check.TOPICS: "note"}
    assert {path: path.stat().st_mtime_ns for path in rolled_up.root.rglob("*") if path.is_file()} == before


def flip_a_run(shell: Shell) -> None:
    """Flip a byte of the newest run."""
    path = max(shell.root.rglob("*.parquet"), key=lambda one: one.stat().st_mtime_ns)
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.chmod(0o600)
    path.write_bytes(data)


def delete_ledger(shell: Shell) -> None:
    """Delete the ledger."""
    with closing(broker_world(shell.bootstrap).kafka) as kafka:
        kafka.delete_topic(f"{shell.name}.ledger")


def delete_records(shell: Shell) -> None:
    """Delete every record of the data topic."""
    with closing(broker_world(shell.bootstrap).kafka) as kafka:
        ends = {partition: end for partition, (_, end) in kafka.offsets(shell.name, range(2)).items()}
        kafka.delete_records(shell.name, ends)


def keep_for_an_hour(shell: Shell) -> None:
    """Let Kafka delete by age."""
    real_rig(shell.name, shell.bootstrap, shell.root).set_topic_config(shell.name, {"retention.ms": "3600000"})


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize(
    ("strike", "code", "expected"),
    [
        (flip_a_run, 6, {Check.RUNS: "damaged", Check.TOPICS: "note"}),
        (delete_ledger, 6, {Check.IDENTITY: "damaged"}),
        (delete_records, 6, {Check.DATA: "damaged", Check.LOG_START: "damaged", Check.TOPICS: "note"}),
        (keep_for_an_hour, 2, {Check.TOPICS: "refused"}),
    ],
)
def test_damages(rolled_up: Shell, strike: Callable[[Shell], None], code: int, expected: dict[str, str]) -> None:
    """Damages have the same findings as on twins, and the exit code of the worst."""
    strike(rolled_up)
    assert bad(findings(rolled_up, code=code)) == expected


def test_a_log_that_is_not_there(shell: Shell) -> None:
    """A missing log is no finding."""
    assert shell.run("doctor", "nothing").exit_code == 3
    assert shell.run("doctor", shell.name, "--topics", "x").exit_code == 2


def test_a_broker_that_is_away(rolled_up: Shell, tmp_path: Path) -> None:
    """The store is checked also while the broker is away."""
    found = _json_of(rolled_up, "--bootstrap", "127.0.0.1:1", "--kafka", "socket.timeout.ms=2000")
    by_name = {one["name"]: one for one in found["findings"]}
    assert bad(by_name) == {Check.IDENTITY: "unavailable"}
    assert by_name[Check.RUNS]["severity"] == "ok"


def test_a_drill(rolled_up: Shell) -> None:
    """Both ways of a drill lead to verify's state; for a truncated log one begins at the oldest snapshot."""
    found = rolled_up.json("drill", rolled_up.name)
    assert found["restored_from"] == "snapshot 2 and the tail behind it"
    assert found["compared_with"] == "snapshot 1 and the tail behind it"
    assert found["digest"] == found["compared_digest"] == rolled_up.json("verify", rolled_up.name)["digest"]
    assert (found["rows"], found["compared_rows"]) == (20, 20)
    assert found["has_lease"]
    assert list(rolled_up.root.rglob("leases/*")) == []
