"""`statelog diff` prints the keys that differ between two states, with both values."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from statelog.cli.output import MISUSE, NOT_FOUND, OK
from statelog.cli.program import program
from statelog.materializer.round import run_round
from statelog.operate.lookup import difference
from statelog.producer.writer import Writer
from statelog.recovery import AtPosition, RecoverySettings
from tests.support.rigs.log import TwinLog, settings_for, twin_rig
from tests.support.rigs.shell import commands_open

HERE = ("--bootstrap", "here:1", "--root", "s3://here/logs")
USER = '{"type": "record", "name": "User", "fields": [{"name": "visits", "type": "long"}]}'
NEWER = (
    '{"type": "record", "name": "User", "fields": [{"name": "visits", "type": "long"},'
    ' {"name": "town", "type": ["null", "string"], "default": null}]}'
)


@pytest.fixture
def twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwinLog:
    """Return a log with added, removed, changed and rewritten keys, and a snapshot in the middle."""
    twin = TwinLog()
    twin.write({b"stays": b"1", b"goes": b"1", b"changes": b"1"})
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    twin.write({b"stays": b"2", b"goes": None, b"changes": b"2", b"comes": b"1", b"flashes": b"1"})
    twin.write({b"stays": b"1", b"flashes": None})

    commands_open(twin, monkeypatch)
    return twin


def run(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(program, ["diff", "log", *map(str, arguments), *HERE])


def diff(*arguments: object) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
    """Return the keys that differ, and the last line."""
    result = run("--json", *arguments)
    assert result.exit_code == OK, result.output
    *rows, end = [json.loads(line) for line in result.stdout.splitlines()]
    return {one["key"]: (one["event"], one["before"], one["after"]) for one in rows}, end


def middle(twin: TwinLog) -> int:
    """Return the position of the snapshot."""
    with twin.open() as log:
        return log.manifests.read(1).position


def test_what_differs(twin: TwinLog) -> None:
    """A key is added, removed or changed.

    Keys that came and went in between, or were rewritten unchanged, are left out.
    """
    rows, end = diff(middle(twin))
    assert rows == {
        "goes": ("removed", "1", None),
        "changes": ("changed", "1", "2"),
        "comes": ("added", None, "1"),
    }
    assert (end["added"], end["removed"], end["changed"]) == (1, 1, 1)
    assert end["start_position"] == middle(twin)
    text = run(middle(twin)).stdout
    assert "~ changes 1 -> 2\n" in text
    assert "- goes 1\n" in text
    assert "+ comes 1\n" in text


def test_from_the_beginning_and_of_nothing(twin: TwinLog) -> None:
    """From the beginning to an end every key is added. A state does not differ from itself."""
    rows, _ = diff(0, middle(twin))
    assert {kind for kind, _, _ in rows.values()} == {"added"}
    assert rows.keys() == {"stays", "goes", "changes"}
    rows, end = diff(middle(twin), middle(twin))
    assert rows == {}
    assert (end["added"], end["removed"], end["changed"]) == (0, 0, 0)


def test_a_difference_is_a_line(twin: TwinLog) -> None:
    """Each difference is one line, even if a key or a value has several."""
    before = run(0).stdout.count("\n")
    twin.write({b"two\n+ lines": b"a\nb"})
    printed = run(0).stdout
    assert printed.count("\n") == before + 1
    assert "+ two\\n+ lines a\\nb\n" in printed


def test_what_cannot_be_compared(twin: TwinLog, tmp_path: Path) -> None:
    """A missing state, an end before the beginning, and truncated positions are refused."""
    assert run("oldest").exit_code == MISUSE
    assert run(middle(twin), 1).exit_code == MISUSE
    for number in range(2):
        twin.write({b"more": b"%d" % number})
        with twin.open() as log:
            twin.environment.run(run_round, log, settings_for(tmp_path))
    assert run(0).exit_code == NOT_FOUND
    assert twin.disk.files("log/leases/") == []


def test_typed_values_of_two_schemas() -> None:
    """An old value is compared in the newest schema: a new field with its default is no difference."""
    rig = twin_rig("typed")
    with rig.create(partitions=2, key_type="string", value_schema=USER) as log, Writer(log, "w") as out:
        out.put("a", {"visits": 1})
        out.put("b", {"visits": 1})
        position = out.commit().offset + 1
    with rig.open() as log:
        log.evolve_value_schema(NEWER)
        with Writer(log, "w") as out:
            out.put("a", {"visits": 1, "town": None})
            out.put("b", {"visits": 2, "town": "Ulm"})
            out.commit()
        found = difference(log, AtPosition(position), None, RecoverySettings())
    assert found.after.to_pylist() == [
        {"key_group": found.after.column("key_group")[0].as_py(), "key": "b", "value": {"visits": 2, "town": "Ulm"}}
    ]
    assert found.before.column("value").to_pylist() == [{"visits": 1, "town": None}]
