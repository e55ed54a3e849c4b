"""`statelog get` and `statelog follow` on a real broker: the values of keys, and commits as they come."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from tests.support.rigs.shell import Shell, write_lines
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

AVSC = """{"type": "record", "name": "Plane", "fields": [
  {"name": "flights", "type": "long"}, {"name": "tag", "type": ["null", "bytes"], "default": null}]}"""


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.usefixtures("at_once")
def test_get_reads_keys_now_and_earlier(shell: Shell) -> None:
    """One value comes as it is, several as lines in the order of the keys; a missing key has a code of its own.

    A caller can ask for an earlier state and a barrier.
    """
    with shell.open_log() as log, Writer(log, "w") as writer:
        writer.put("a", b"one\x1b\xff")
        writer.put("b", b"1")
        writer.commit()
        earlier = writer.position
        writer.put("b", b"2")
        writer.delete("a")
        writer.put("c", b"3")
        writer.commit()

    assert shell.run("get", shell.name, "b").stdout == "2\n"
    both = shell.run("get", shell.name, "c", "b", "--barrier")
    assert _events(both.stdout) == [{"key": "c", "value": "3"}, {"key": "b", "value": "2"}]
    some = shell.run("get", shell.name, "a", "b", "nope")
    assert (some.exit_code, _events(some.stdout)) == (7, [{"key": "b", "value": "2"}])
    assert some.stderr.splitlines()[-1] == "not found: a, nope"
    old = shell.run("get", shell.name, "a", "--at-position", earlier)
    assert (old.exit_code, old.stdout_bytes) == (0, b"one\x1b\xff\n")
    assert shell.json("get", shell.name, "a", "--at-writer", "w", "--at-checkpoint", 1, "--bytes", "base64") == {
        "key": "a",
        "value": "b25lG/8=",
    }
    assert shell.run("get", shell.name, "b", "--at-least", earlier, "--no-lease").stdout == "2\n"
    ahead = shell.json("get", shell.name, "b", "--at-least", 100_000, code=4)
    assert ahead["hint"].startswith("Check the position. If it came from a commit, try again")
    for wrong in (("--key-group", 3), ("--barrier", "--at-position", 1)):
        assert shell.json("get", shell.name, "b", *wrong, code=2)["error"] == "ConfigError"


def test_get_and_follow_in_a_typed_log_whose_callers_name_key_groups(
    broker: Broker, tmp_path: Path, log_name: str
) -> None:
    """Numbers as keys, typed values as JSON, and named or found key groups work; `append` reads the output of `get`."""
    shell = Shell(broker.bootstrap, tmp_path, log_name)
    schema = tmp_path / "plane.avsc"
    schema.write_text(AVSC)
    made = ("--key-type", "long", "--hash", "caller", "--value-schema", schema, "--partitions", 2, "--key-groups", 4)
    shell.json("init", log_name, *made)
    rows: list[dict[str, object]] = [
        {"key_group": 3, "key": -7, "flights": 1, "tag": "x"},
        {"key_group": 0, "key": -7, "flights": 2},
        {"key_group": 2, "key": 8, "flights": 3, "tag": "y"},
    ]
    shell.json("append", log_name, write_lines(tmp_path / "in.jsonl", rows))

    found = shell.run("get", log_name, "--key-group", 3, "--", "-7")
    assert json.loads(found.stdout) == {"flights": 1, "tag": "x"}
    assert shell.json("get", log_name, "--key-group", 0, "--", "-7") == {**rows[1], "tag": None}
    everywhere = _events(shell.run("get", log_name, "--", "-7").stdout)
    assert everywhere == [{**rows[1], "tag": None}, rows[0]]
    only = shell.run("get", log_name, "8")
    assert (json.loads(only.stdout), only.stderr) == ({"flights": 3, "tag": "y"}, "key group 2\n")
    some = shell.run("get", log_name, "--json", "8", "9", "--", "-7")
    assert (some.exit_code, _events(some.stdout)) == (7, [rows[2], *everywhere])
    assert shell.json("get", log_name, "--key-group", 3, "x", code=2)["error"] == "InvalidChange"
    shown = shell.run("follow", log_name, "--once", "--from", "oldest", "--key-groups", "3").stdout.splitlines()
    assert shown[1:] == ['  put 3 -7 {"flights": 1, "tag": "x"}']
    shell.run("delete", log_name, "--yes")


def test_get_and_follow_in_a_log_of_key_groups_by_prefix(broker: Broker, tmp_path: Path, log_name: str) -> None:
    """Get and follow read the key group of the prefix, where the keys are, and `describe` gives its length."""
    shell = Shell(broker.bootstrap, tmp_path, log_name)
    assert (
        shell.json("init", log_name, "--hash", "crc32-prefix", "--key-type", "string", code=2)["error"] == "ConfigError"
    )
    made = ("--hash", "crc32-prefix", "--prefix-bytes", 2, "--key-type", "string")
    assert shell.json("init", log_name, *made)["prefix_bytes"] == 2
    rests = ("", "c", "cde", "f")
    rows: list[dict[str, object]] = [{"key": "ab" + rest, "value": rest} for rest in rests]
    shell.json("append", log_name, write_lines(tmp_path / "in.jsonl", rows))
    for rest in rests:
        assert shell.run("get", log_name, "ab" + rest).stdout == rest + "\n"
    shown = shell.run("follow", log_name, "--once", "--from", "oldest", "abcde").stdout.splitlines()
    assert shown[1:] == ["  put abcde cde"]
    assert shell.json("describe", log_name)["prefix_bytes"] == 2
    shell.run("delete", log_name, "--yes")


def test_follow_shows_commits_of_the_past(shell: Shell) -> None:
    """Follow shows commits from the oldest, a position, a time or the state; of some keys, key groups or writers.

    It prints for people and as JSON.
    """
    with shell.open_log() as log:
        with Writer(log, "w") as writer:
            writer.put("a", b"1")
            writer.put("a", b"2")
            writer.commit(metadata={"offset": 7})
            first = writer.position
            writer.put("b", b"\x1b\xff")
            writer.delete("a")
            writer.commit()
        with Writer(log, "v") as writer:
            writer.commit()

    def follow(*args: object) -> list[dict[str, Any]]:
        return _events(shell.run("follow", shell.name, "--once", "--json", *args).stdout)

    whole = follow("--from", "oldest", "--bytes", "base64")
    commit = {"writer": "w", "checkpoint": 1, "position": first}
    assert whole[0] == {"event": "put", "key": "a", "value": "Mg==", **commit}
    assert whole[1].pop("time").startswith("20")
    assert whole[1] == {"event": "commit", **commit, "changes": 1, "metadata": {"offset": 7}}
    assert [one["event"] for one in whole[2:]] in [[x, y, "commit", "commit"] for x, y in _ORDERS]
    assert follow("--from", "1h", "--bytes", "base64") == follow("--from", "0", "--bytes", "base64")
    assert follow("--from", first, "--writer", "v") == whole[-1:]
    assert [one["event"] for one in follow("--from", first, "a")] == ["delete", "commit"]
    assert follow() == []
    state = follow("--from", "state", "--bytes", "base64")
    end = whole[-1]["position"]
    assert state[0] == {"event": "put", "key": "b", "value": "G/8="}
    assert (state[1]["event"], state[1]["keys"], state[1]["position"] >= end) == ("state", 1, True)

    text = shell.run("follow", shell.name, "--once", "--from", "oldest", "--writer", "w").stdout
    assert text.startswith("commit 1 of w, 20")
    assert text.splitlines()[0].endswith(f', position {first}, {{"offset": 7}}')
    assert text.splitlines()[1] == "  put a 2"
    assert {"  put b \\x1b\\xff", "  delete a"} <= set(text.splitlines())
    for wrong, error in (("yesterday", "ConfigError"), (9999, "NotFound")):
        code = 2 if error == "ConfigError" else 3
        assert shell.json("follow", shell.name, "--from", wrong, code=code)["error"] == error


@pytest.mark.parametrize("args", [(), ("--json",)])
def test_follow_says_why_it_prints_nothing(shell: Shell, args: tuple[str, ...]) -> None:
    """A future time and an unknown writer are reported next to the output; an empty output alone is no reason."""
    with shell.open_log() as log, Writer(log, "w") as writer:
        writer.commit()
    writers = "no commit of writer nobody or none was found"
    future = "nothing is selected yet: the time is in the future"
    for options, said in (
        (("--from", "2999-01-01"), future),
        (("--from", "oldest", "--writer", "nobody", "--writer", "none"), writers),
        (("--from", "oldest", "--writer", "w", "--key-groups", "0"), ""),
        (("--writer", "nobody"), ""),
    ):
        found = shell.run("follow", shell.name, "--once", *args, *options)
        assert (found.exit_code, found.stdout) == (0, "")
        line = json.dumps({"warning": said}) if args else f"warning: {said}"
        assert found.stderr == (f"{line}\n" if said else "")


_ORDERS = [("put", "delete"), ("delete", "put")]


def test_follow_goes_on_until_it_is_told_or_nobody_reads(shell: Shell) -> None:
    """Each commit is printed once it exists; a signal ends follow with 0, and a vanishing reader silently.

    No lease is left.
    """
    told, unread = shell.start("follow", shell.name, "--json"), shell.start("follow", shell.name)
    with told, unread, shell.open_log() as log, Writer(log, "w") as writer:
        assert told.stdout is not None
        assert unread.stdout is not None
        assert unread.stderr is not None
        wait_for(lambda: len(list_leases(log.store)) == 2)
        for value in (b"1", b"2"):
            writer.put("a", value)
            writer.commit()
            lines = [json.loads(told.stdout.readline()) for _ in range(2)]
            assert [line["event"] for line in lines] == ["put", "commit"]
            assert lines[0]["value"].encode() == value
        unread.stdout.close()
        told.send_signal(signal.SIGTERM)
        assert (*told.communicate(timeout=120), told.returncode) == ("", "", 0)
        assert (unread.stderr.read(), unread.wait(timeout=120)) == ("", 0)
        assert list_leases(log.store) == []


def test_who_truncates(broker: Broker, tmp_path: Path, log_name: str) -> None:
    """The choice of who truncates is printed when the log is made, shown, and changed once its topics allow that."""
    shell = Shell(broker.bootstrap, tmp_path, log_name)
    made = shell.json("init", log_name, "--truncation", "retention", "--retention-days", 3)
    assert made["truncation"] == shell.json("describe", log_name)["truncation"] == "retention, 3 days"
    shell.json("append", log_name, write_lines(tmp_path / "in.jsonl", [{"key": "a", "value": "1"}]))
    shell.run("materialize", log_name, "--once")
    assert shell.run("get", log_name, "a").stdout == "1\n"
    shown = shell.json("truncate", log_name)
    assert (shown["truncation"], shown["retention_days"]) == ("retention", 3)
    assert {one["retention_ms"] for one in shown["topics"]} == {str(3 * 86_400_000)}
    refused = shell.json("truncate", log_name, "--truncation", "delete-records", code=2)
    assert (refused["error"], "must be -1" in refused["message"]) == ("UnsafeTopic", True)
    assert shell.json("truncate", log_name, "--truncation", "retention", "--retention-days", 2)["retention_days"] == 2
    shell.run("delete", log_name, "--yes")
