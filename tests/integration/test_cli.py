"""The `statelog` command on a real broker: what a person types, what a script reads, and what a kill leaves behind."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rocksdict
from click.testing import CliRunner, Result

from statelog.cli.program import program
from statelog.producer.writer import Writer
from statelog.recovery import read_rocksdb_state
from statelog.storage.log import Log
from tests.support.broker import Broker

pytestmark = pytest.mark.broker

UNSAFE = ("replication", "min-insync")
CANARY = "canary-4711"
AVSC = """{"type": "record", "name": "Plane", "fields": [
  {"name": "flights", "type": "long"}, {"name": "dest", "type": ["null", "string"], "default": null}]}"""


@dataclass(slots=True)
class Shell:
    """Types commands against one broker and one root, in this process or in one of its own."""

    bootstrap: str
    root: Path
    name: str

    @property
    def environment(self) -> dict[str, str]:
        """What a user would have set."""
        return {
            "STATELOG_BOOTSTRAP": self.bootstrap,
            "STATELOG_ROOT": str(self.root),
            "STATELOG_REPLICATION_FACTOR": "1",
            "STATELOG_ALLOW_UNSAFE": ",".join(UNSAFE),
            "XDG_CONFIG_HOME": str(self.root),
        }

    def run(self, *args: object, stdin: bytes | None = None, **environment: str) -> Result:
        """Run a command here."""
        return CliRunner().invoke(
            program, [str(arg) for arg in args], input=stdin, env={**self.environment, **environment}
        )

    def json(self, *args: object, code: int = 0, **options: Any) -> dict[str, Any]:
        """Run a command that must exit with `code`, and read its JSON: the result, or the error."""
        result = self.run(*args, "--json", **options)
        assert result.exit_code == code, result.output
        text = result.stdout if code == 0 else result.stderr
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def start(self, *args: object, **options: Any) -> "subprocess.Popen[str]":
        """Start a command as a process of its own, which hears Ctrl-C even if this run, in the background, does not."""
        code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        code += "from statelog.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *[str(arg) for arg in args]],
            env={**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def open_log(self) -> Log:
        """The log, through the library."""
        return Log.open(
            self.name, kafka={"bootstrap.servers": self.bootstrap}, root=str(self.root), allow_unsafe=UNSAFE
        )

    def state(self) -> dict[str, Any]:
        """The recovered state, by way of JSON lines: key to all other fields."""
        result = self.run("recover", self.name, "--to-json", "-")
        assert result.exit_code == 0, result.output
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        return {row.pop("key"): row for row in rows}


@pytest.fixture
def shell(broker: Broker, tmp_path: Path, log_name: str) -> Iterator[Shell]:
    """A shell with a log of bytes by string keys; the log is deleted at the end, if the test did not."""
    made = Shell(broker.bootstrap, tmp_path / "root", log_name)
    made.root.mkdir()
    assert made.run("init", log_name, "--partitions", 2, "--key-groups", 16, "--key-type", "string").exit_code == 0
    yield made
    made.run("delete", log_name, "--yes")


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until a condition holds, asking again and again."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.02)


def writer_row(shell: Shell, writer: str) -> Mapping[str, Any] | None:
    """A writer's row of describe."""
    rows = shell.json("describe", shell.name)["writers"]
    return next((row for row in rows if row["writer"] == writer), None)


def test_a_log_from_init_to_delete(broker: Broker, tmp_path: Path, log_name: str) -> None:
    """A typed log is made, appended to, rolled up, recovered to Parquet, described and deleted, by commands alone."""
    shell = Shell(broker.bootstrap, tmp_path, log_name)
    schema = tmp_path / "plane.avsc"
    schema.write_text(AVSC)
    made = shell.json("init", log_name, "--key-type", "string", "--value-schema", schema, "--partitions", 2)
    assert (made["values"], made["replication_factor"]) == ("typed", 1)
    rows: list[dict[str, object]] = [
        {"tail": "N1", "flights": 1, "dest": "IAH", "op": "put"},
        {"tail": "N2", "flights": 5, "op": "put"},
        {"tail": "N1", "flights": 2, "dest": None, "op": "put"},
        {"tail": "N3", "flights": 9, "op": "put"},
        {"tail": "N3", "op": "delete"},
    ]
    source = write_lines(tmp_path / "planes.jsonl", rows)
    options = ("--key-field", "tail", "--op-field", "op", "--checkpoint-every", 2)

    done = shell.json("append", log_name, source, *options)
    assert (done["writer"], done["rows"], done["commits"]) == ("planes", 5, 3)
    lag = shell.json("describe", log_name)
    assert (lag["lag_changes"], lag["lag_commits"]) == (5, 3)
    assert lag["lag_bytes"] > 0
    assert 0 <= lag["lag_age_s"] < 300
    assert shell.json("materialize", log_name, "--once")["outcome"] == "completed"
    assert shell.json("materialize", log_name, "--once")["outcome"] == "skipped"
    summary = shell.json("recover", log_name, "--to-parquet", tmp_path / "state.parquet")
    assert (summary["rows"], summary["manifest"]) == (2, 1)
    query = f"select key, value.flights, value.dest from '{tmp_path}/state.parquet' order by key"
    assert duckdb.connect().execute(query).fetchall() == [("N1", 2, None), ("N2", 5, None)]
    found = shell.json("describe", log_name)
    assert (found["log"], found["newest_manifest"], found["lag_data_records"]) == (log_name, 1, 0)
    assert (found["lag_changes"], found["lag_bytes"], found["lag_age_s"]) == (0, 0, 0)
    assert found["writers"][0]["metadata"]["input.rows"] == "5"
    earlier = shell.json("recover", log_name, "--at-writer", "planes", "--at-checkpoint", 3)
    assert earlier["rows"] == 2
    assert shell.run("delete", log_name, stdin=b"another\n").exit_code == 2
    assert shell.run("delete", log_name, stdin=f"{log_name}\n".encode()).exit_code == 0
    assert shell.json("describe", log_name, code=3)["error"] == "NotFound"


def test_values_evolve_by_command(broker: Broker, tmp_path: Path, log_name: str) -> None:
    """A second schema is given and described, the first changes nothing, a third is refused; RocksDB has the second."""
    shell = Shell(broker.bootstrap, tmp_path, log_name)
    schemas = {name: tmp_path / f"{name}.avsc" for name in ("first", "second", "third")}
    schemas["first"].write_text(AVSC)
    schemas["second"].write_text(AVSC.replace('"long"', '"double"'))
    schemas["third"].write_text(AVSC.replace('"long"', '"string"'))
    shell.json("init", log_name, "--value-schema", schemas["first"], "--partitions", 2)
    shell.json("append", log_name, write_lines(tmp_path / "one.jsonl", [{"key": "a", "flights": 1}]))

    made = shell.json("evolve", log_name, "--value-schema", schemas["second"])
    assert (made["value_schema_id"], made["newest_value_schema_id"], made["new"]) == (2, 2, "yes")
    again = shell.json("evolve", log_name, "--value-schema", schemas["first"])
    assert (again["value_schema_id"], again["newest_value_schema_id"], again["new"]) == (1, 2, "no")
    refused = shell.json("evolve", log_name, "--value-schema", schemas["third"], code=2)
    assert (refused["error"], refused["facts"]["field"]) == ("IncompatibleSchema", "value.flights")
    shell.json("append", log_name, write_lines(tmp_path / "two.jsonl", [{"key": "b", "flights": 0.5}]))

    assert [one["id"] for one in shell.json("describe", log_name)["value_schemas"]] == [1, 2]
    target = tmp_path / "db"
    assert shell.json("recover", log_name, "--to-rocksdb", target)["rows"] == 2
    assert shell.json("recover", log_name, "--to-rocksdb", target, code=3)["error"] == "AlreadyExists"
    assert shell.json("recover", log_name, "--to-rocksdb", target, "--to-json", "-", code=2)["error"] == "ConfigError"
    state = read_rocksdb_state(target)
    with rocksdict.Rdict(str(target)) as database:
        assert (database[state.key(b"a")] or b"")[:8] == struct.pack("<d", 1.0)
    shell.run("delete", log_name, "--yes")


def test_parquet_and_pipes_give_the_same_state(shell: Shell, tmp_path: Path) -> None:
    """JSON lines from a file, from a pipe, and Parquet are the same changes under three names, and nothing twice."""
    rows: list[dict[str, object]] = [{"key": f"k{number % 7}", "value": f"v{number}"} for number in range(50)]
    source = write_lines(tmp_path / "lines.jsonl", rows)
    table = pa.table({"key": [row["key"] for row in rows], "value": [str(row["value"]).encode() for row in rows]})
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=11)
    expected = {row["key"]: {"value": row["value"]} for row in rows}

    for number, (args, stdin) in enumerate(
        [
            (("lines.jsonl",), None),
            (("-", "--writer", "pipe"), source.read_bytes()),
            (("table.parquet",), None),
        ]
    ):
        paths = [tmp_path / args[0] if args[0] != "-" else "-", *args[1:]]
        done = shell.json("append", shell.name, *paths, "--checkpoint-every", 20, stdin=stdin)
        assert (number, done["rows"], done["commits"]) == (number, 50, 3)
        again = shell.json("append", shell.name, *paths, "--checkpoint-every", 20, stdin=stdin)
        assert (again["rows"], again["rows_before"]) == (0, 50)
        assert shell.state() == expected


def test_a_killed_append_goes_on_where_it_was(shell: Shell, tmp_path: Path) -> None:
    """SIGKILL in the middle, the same command again: every row counts once, and the last one of a key wins."""
    rows: list[dict[str, object]] = [{"key": f"k{number % 997}", "value": f"v{number}"} for number in range(300_000)]
    source = write_lines(tmp_path / "many.jsonl", rows)
    process = shell.start("append", shell.name, source, "--checkpoint-every", 300)
    with process:
        wait_for(lambda: (row := writer_row(shell, "many")) is not None and int(row["checkpoint"]) >= 5)
        process.kill()
    killed = writer_row(shell, "many")
    assert killed is not None
    before = int(killed["metadata"]["input.rows"])
    assert 0 < before < len(rows), "the kill came too late to show anything"

    done = shell.json("append", shell.name, source, "--checkpoint-every", 300)

    assert (done["rows_before"], done["rows"]) == (before, len(rows) - before)
    assert done["checkpoint"] == len(rows) // 300
    assert shell.state() == {row["key"]: {"value": row["value"]} for row in rows}


def test_ctrl_c_says_where_it_stands(shell: Shell) -> None:
    """SIGINT while a pipe is open: exit code 130, and the rows that are reported are exactly those that count."""
    process = shell.start(
        "append", shell.name, "-", "--writer", "pipe", "--checkpoint-every", 2, "--json", stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    for number in range(5):
        process.stdin.write(json.dumps({"key": f"k{number}", "value": "v"}) + "\n")
    process.stdin.flush()
    wait_for(lambda: (row := writer_row(shell, "pipe")) is not None and row["checkpoint"] == 2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)

    assert process.returncode == 130
    told = json.loads(out.splitlines()[-1])
    assert (told["outcome"], told["rows"]) == ("interrupted", 4)
    assert set(shell.state()) == {"k0", "k1", "k2", "k3"}


def test_another_input_is_refused_and_fences_nobody(shell: Shell, tmp_path: Path) -> None:
    """The same writer with another input, or with other fields, is misuse; a writer that is open stays open."""
    source = write_lines(tmp_path / "in.jsonl", [{"key": "a", "value": "1"}])
    shell.json("append", shell.name, source)
    other = write_lines(tmp_path / "other.jsonl", [{"key": "a", "value": "2"}])
    with shell.open_log() as log, Writer(log, "owner") as owner:
        refused = shell.json("append", shell.name, other, "--writer", "in", code=2)
        mapped = shell.json("append", shell.name, source, "--op-field", "op", code=2)
        owner.put("b", b"3")
        owner.commit(1)

    assert refused["error"] == mapped["error"] == "CheckpointMismatch"
    assert refused["facts"]["committed_rows"] in (0, 1)
    assert shell.state() == {"a": {"value": "1"}, "b": {"value": "3"}}


def test_a_broken_line_stops_behind_the_last_checkpoint(shell: Shell, tmp_path: Path) -> None:
    """The line is named, checkpoints before it stay, and after it was mended the same command appends the rest."""
    source = tmp_path / "in.jsonl"
    good = [json.dumps({"key": f"k{number}", "value": "v"}) for number in range(10)]
    source.write_text("\n".join([*good[:7], "{broken}", *good[7:]]))

    error = shell.json("append", shell.name, source, "--checkpoint-every", 3, code=2)
    assert (error["facts"]["line"], error["facts"]["committed_rows"]) == (8, 6)
    assert set(shell.state()) == {f"k{number}" for number in range(6)}

    source.write_text("\n".join(good))
    done = shell.json("append", shell.name, source, "--checkpoint-every", 3)
    assert (done["rows_before"], done["rows"]) == (6, 4)
    assert set(shell.state()) == {f"k{number}" for number in range(10)}


def test_a_value_that_the_log_cannot_hold_is_named(shell: Shell, tmp_path: Path) -> None:
    """A row that parses but is no change of this log is named by its place, in JSON lines and in Parquet."""
    lines = write_lines(tmp_path / "a.jsonl", [{"key": "a", "value": "1"}, {"key": "b"}, {"key": "c", "value": "1"}])
    pq.write_table(pa.table({"key": ["a", None], "value": [b"1", b"2"]}), tmp_path / "b.parquet")

    assert shell.json("append", shell.name, lines, code=2)["facts"]["line"] == 2
    assert shell.json("append", shell.name, tmp_path / "b.parquet", code=2)["facts"]["row"] == 2
    assert shell.state() == {}


def test_a_checkpoint_field_cuts_where_it_changes(shell: Shell, tmp_path: Path) -> None:
    """One commit for each run of rows with one value of the field."""
    days = [1, 1, 2, 2, 2, 3]
    rows: list[dict[str, object]] = [{"key": f"k{n}", "value": "v", "day": day} for n, day in enumerate(days)]
    source = write_lines(tmp_path / "in.jsonl", rows)

    assert shell.json("append", shell.name, source, "--checkpoint-field", "day")["commits"] == 3
    assert shell.json("recover", shell.name, "--at-writer", "in", "--at-checkpoint", 1)["rows"] == 2


def test_key_groups_split_the_state(shell: Shell, tmp_path: Path) -> None:
    """Two recoveries of complementary key groups give all rows, each once."""
    rows: list[dict[str, object]] = [{"key": f"k{number}", "value": "v"} for number in range(100)]
    shell.json("append", shell.name, write_lines(tmp_path / "in.jsonl", rows))
    for target, groups in (("a", "0-6"), ("b", "7-15")):
        shell.json("recover", shell.name, "--key-groups", groups, "--to-json", tmp_path / target)
    found = [json.loads(line)["key"] for name in "ab" for line in (tmp_path / name).read_text().splitlines()]

    assert sorted(found) == sorted(str(row["key"]) for row in rows)


def test_the_daemon_ends_cleanly_on_sigterm(shell: Shell, tmp_path: Path) -> None:
    """The daemon tells its rounds as JSON, and exits with 0 after SIGTERM, having said that it stopped."""
    shell.json("append", shell.name, write_lines(tmp_path / "in.jsonl", [{"key": "a", "value": "1"}]))
    process = shell.start("materialize", shell.name, "--interval", "50ms", "--jitter", 0, "--json")
    with process:
        wait_for(lambda: shell.json("describe", shell.name)["newest_manifest"] == 1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)

    events = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, err) == (0, "")
    assert [event["event"] for event in events][:2] == ["round-started", "round-completed"]
    assert events[-1]["event"] == "stopped"


def test_the_daemon_waits_for_its_log(broker: Broker, tmp_path: Path, log_name: str) -> None:
    """With --wait a log that is made later is found; SIGTERM ends the wait with 0, too; without, it is not found."""
    shell = Shell(broker.bootstrap, tmp_path, log_name)
    assert shell.json("materialize", log_name, code=3)["error"] == "NotFound"
    for is_made in (False, True):
        process = shell.start("materialize", log_name, "--wait", "--jitter", 0)
        with process:
            assert process.stderr is not None
            assert process.stdout is not None
            assert f"waiting for the log {log_name}" in process.stderr.readline()
            if is_made:
                shell.json("init", log_name)
                assert "round started" in process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
        assert process.returncode == 0
    shell.run("delete", log_name, "--yes")


def test_the_daemon_runs_a_round_when_it_is_told_to(shell: Shell, tmp_path: Path) -> None:
    """`--now` begins with a round, SIGUSR1 causes another, whatever the interval; the budget is a setting."""
    shell.json("append", shell.name, write_lines(tmp_path / "in.jsonl", [{"key": "a", "value": "1"}]))
    process = shell.start("materialize", shell.name, "--interval", "10h", "--now", "--restore-within", "1h", "--json")
    with process:
        wait_for(lambda: shell.json("describe", shell.name)["newest_manifest"] == 1)
        shell.json("append", shell.name, write_lines(tmp_path / "more.jsonl", [{"key": "a", "value": "2"}]))
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda: shell.json("describe", shell.name)["newest_manifest"] == 2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)

    events = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, err) == (0, "")
    assert [event["cause"] for event in events if event["event"] == "round-started"] == ["trigger", "trigger"]


def test_a_fenced_append_has_its_own_code(shell: Shell) -> None:
    """A writer that another one takes over from exits with 5, and tells what counts."""
    process = shell.start(
        "append", shell.name, "-", "--writer", "old", "--checkpoint-every", 1, "--json", stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write('{"key":"a","value":"1"}\n')
    process.stdin.flush()
    wait_for(lambda: shell.state() == {"a": {"value": "1"}})
    with shell.open_log() as log, Writer(log, "new"):
        _, err = process.communicate('{"key":"b","value":"2"}\n', timeout=60)

    assert process.returncode == 5
    told = json.loads(err.splitlines()[-1])
    assert (told["error"], told["facts"]["committed_rows"]) == ("Fenced", 1)


def test_every_trouble_has_its_code(shell: Shell, tmp_path: Path) -> None:
    """Taken names, missing inputs, unsafe topics, no broker and data loss each exit with their own code."""
    name = shell.name
    source = write_lines(tmp_path / "in.jsonl", [{"key": "a", "value": "1"}])
    assert shell.json("init", name, code=3)["error"] == "AlreadyExists"
    assert shell.json("append", name, tmp_path / "missing", code=3)["error"] == "NotFound"
    assert shell.json("append", name, "-", code=2, stdin=b"")["error"] == "ConfigError"
    assert shell.json("describe", name, code=2, STATELOG_ALLOW_UNSAFE="")["error"] == "UnsafeTopic"
    timeout = ("--kafka", "socket.timeout.ms=500", "--bootstrap", "127.0.0.1:1")
    assert shell.json("describe", name, *timeout, code=4)["error"] == "BrokerUnavailable"
    shell.json("append", name, source)
    with shell.open_log() as log:
        for partition, (_, end) in log.data_offsets().items():
            if end:
                log.kafka.delete_records(log.data_topic, {partition: end})
    lost = shell.run("recover", name)
    assert lost.exit_code == 6
    assert "OffsetGone" in lost.stderr


def test_a_secret_is_never_printed(shell: Shell, tmp_path: Path) -> None:
    """A secret of the configuration is in no output and no error, whatever goes wrong with it."""
    config = tmp_path / "statelog.toml"
    config.write_text(
        f'bootstrap = "{shell.bootstrap}"\n[kafka]\nsecurity.protocol = "SASL_PLAINTEXT"\n'
        f'sasl.mechanism = "PLAIN"\nsasl.username = "me"\nsasl.password = "{CANARY}"\n'
    )
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(f'bootstrap = "x:1"\nroot = "s3://me:{CANARY}@bucket"\n')
    quick = ("--kafka", "socket.timeout.ms=500")
    runs = [
        shell.run("describe", shell.name, "--config", config, "--json", *quick),
        shell.run("describe", shell.name, "--kafka", f"sasl.pasword={CANARY}"),
        shell.run("describe", shell.name, "--kafka", f"plugin.library.paths={CANARY}"),
        shell.run("describe", shell.name, "--storage", f"secret={CANARY}"),
        shell.run("describe", shell.name, "--config", wrong, STATELOG_ROOT="", STATELOG_KAFKA__SSL_KEY_PEM=CANARY),
        shell.run("describe", shell.name, STATELOG_ROOT=f"s3://me:{CANARY}@bucket"),
        shell.run("describe", shell.name, "--config", config, "--bootstrap", f"me:{CANARY}@127.0.0.1:1", *quick),
    ]

    assert all(run.exit_code in (2, 4) for run in runs), [run.output for run in runs]
    assert [run.output for run in runs if CANARY in run.output] == []
