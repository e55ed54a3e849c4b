"""The command prints and appends JSON on a log of JSON values."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import statelog
from statelog.cli.output import MISUSE, OK
from statelog.cli.program import program
from statelog.log import LogOptions
from statelog.recovery import read
from tests.support.rigs.log import LogRig, twin_rig
from tests.support.rigs.shell import commands_open

HERE = ("--bootstrap", "here:1", "--root", "s3://here/logs")
LINES: list[dict[str, Any]] = [
    {"key": "a", "value": {"n": [1, None, "é"]}},
    {"key": "b", "value": "text"},
    {"key": "c", "value": 5},
]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> LogRig:
    """Return a log of JSON values that every command opens."""
    rig = twin_rig("log")
    statelog.open("log", rig.where(), create=LogOptions(key_type="string", value_type="json")).close()
    commands_open(rig, monkeypatch)
    return rig


def run(*arguments: object, stdin: str | None = None) -> Result:
    """Run the command."""
    command, *rest = map(str, arguments)
    return CliRunner().invoke(program, [command, "log", *rest, *HERE], input=stdin)


def append(*lines: object) -> Result:
    """Append these lines."""
    text = "".join(f"{json.dumps(line) if isinstance(line, dict) else line}\n" for line in lines)
    return run("append", "-", "--writer", "cli", stdin=text)


def test_lines_come_back(rig: LogRig) -> None:
    """`recover --to-json` prints the values that `append` read, and not their text."""
    assert append(*LINES).exit_code == OK
    assert read("log", rig.where()).to_dict() == {one["key"]: one["value"] for one in LINES}
    shown = run("recover", "--to-json", "-")
    assert shown.exit_code == OK, shown.output
    assert sorted(map(json.loads, shown.stdout.splitlines()), key=lambda one: one["key"]) == LINES


def test_one_value_is_its_json(rig: LogRig) -> None:
    """One value is printed as it is stored. Several values are lines."""
    append(*LINES)
    assert run("get", "a").stdout == '{"n":[1,null,"é"]}\n'
    assert run("get", "b").stdout == '"text"\n'
    assert run("get", "b", "--bytes", "base64").stdout == '"text"\n'
    assert [json.loads(line) for line in run("get", "a", "c").stdout.splitlines()] == [LINES[0], LINES[2]]
    assert '{"n":[1,null,"é"]}' in run("recover").stdout


def test_follow_and_diff_show_json(rig: LogRig) -> None:
    """People get text, and programs get values."""
    append(*LINES)
    with rig.open() as log, statelog.Writer(log, "w") as writer:
        writer.put("c", [6])
        writer.delete("b")
        writer.commit()
        position = log.position
    assert "put a {" in run("follow", "--from", "oldest", "--once").stdout
    found = [json.loads(one) for one in run("follow", "--from", "oldest", "--once", "--json").stdout.splitlines()]
    puts = sorted(json.dumps(one["value"]) for one in found if one["event"] == "put")
    assert puts == sorted(map(json.dumps, ({"n": [1, None, "é"]}, "text", 5, [6])))
    first = min(one["position"] for one in found if one["event"] == "commit")
    differing = [json.loads(one) for one in run("diff", first, position, "--json").stdout.splitlines()]
    changed = {one["key"]: (one["before"], one["after"]) for one in differing if "key" in one}
    assert changed == {"c": (5, [6]), "b": ("text", None)}
    assert "~ c 5 -> [6]" in run("diff", first, position).stdout


@pytest.mark.parametrize("value", ["NaN", '"\\ud800"', "null", "1e999", "[1,]", '1}{"key":"e","value":2'])
def test_what_json_lacks_is_refused(rig: LogRig, value: str) -> None:
    """A value that JSON lacks is refused with its line, and the lines before it are not committed."""
    result = append(LINES[0], f'{{"key":"d","value":{value}}}')
    assert result.exit_code == MISUSE, result.output
    assert re.search(r"line:? 2", result.output)
    assert read("log", rig.where()).to_dict() == {}


def test_csv_holds_the_text_of_a_value(rig: LogRig, tmp_path: Path) -> None:
    """CSV holds numbers as they are and text in JSON's quotes. A bare word is refused."""
    file = tmp_path / "in.csv"
    file.write_text('key,value\na,5\nb,"{""n"": 1}"\nc,"""x"""\n')
    assert run("append", file).exit_code == OK
    assert read("log", rig.where()).to_dict() == {"a": 5, "b": {"n": 1}, "c": "x"}
    file.write_text("key,value\na,word\n")
    assert run("append", file, "--writer", "w").exit_code == MISUSE
