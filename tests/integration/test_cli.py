"""The `statelog` command on a real broker: a person's input, a script's reads, and the state after a kill."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rocksdict

from statelog.errors import SubscriptionEnded
from statelog.producer.writer import Writer
from statelog.reading.claims import HeldSubscription
from statelog.recovery import RecoverySettings, read_rocksdb_state, recover
from tests.support.rigs.shell import Shell, write_csv, write_lines, writer_row
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

CANARY = "canary-4711"
AVSC = """{"type": "record", "name": "Plane", "fields": [
  {"name": "flights", "type": "long"}, {"name": "dest", "type": ["null", "string"], "default": null}]}"""


def test_describe_names_topics_and_whoever_holds_the_log(shell: Shell) -> None:
    """Describe names the topics, and the leases that hold truncation back."""
    with shell.open_log() as log:
        assert shell.json("describe", shell.name)["leases"] == []
        with recover(log, settings=RecoverySettings(holder="somebody")) as recovery:
            recovery.reserve()
            found = shell.json("describe", shell.name)
    assert (found["data_topic"], found["ledger_topic"]) == (shell.name, f"{shell.name}.ledger")
    (lease,) = found["leases"]
    assert (lease["holder"], lease["position"], lease["manifest"]) == ("somebody", 0, None)


def test_subscriptions_are_listed_and_removed(shell: Shell) -> None:
    """A subscription that holds truncation is listed, a command removes it once, and its reader gets an error."""
    with shell.open_log() as log, Writer(log, "w") as writer:
        writer.put("a", b"1")
        writer.commit()
        held = HeldSubscription(log, "lake", holder_id="one", holder="query 7")
        state = log.describe().state
        held.hold(state, None, take_up=True)
        writer.put("b", b"1")
        writer.commit()
        shell.json("materialize", shell.name, "--once")
        found = shell.json("describe", shell.name)
        (row,) = found["subscriptions"]
        assert [row[name] for name in ("reader", "status", "position")] == ["lake", "holds", state.position]
        assert found["truncation_held_by"] == "subscription lake of query 7"
        assert shell.run("subscriptions", shell.name, "--remove", "lake", stdin=b"no\n").exit_code == 2
        assert shell.json("subscriptions", shell.name, "--remove", "lake", "--yes")["ended"] == "removed"
        (row,) = shell.json("subscriptions", shell.name)["subscriptions"]
        assert row["status"] == "ended: removed by command"
        assert shell.json("subscriptions", shell.name, "--remove", "other", "--yes", code=3)["error"] == "NotFound"
        with pytest.raises(SubscriptionEnded, match="removed by command"):
            held.hold(state, None)


def test_a_copy_of_the_root_truncates_nothing_until_it_is_claimed(shell: Shell, tmp_path: Path) -> None:
    """A copy of the root truncates nothing until it is claimed: a materializer on it names both roots.

    A person says which root is the log's; both have the original's Kafka.
    """
    copy = Shell(shell.bootstrap, tmp_path / "copy", shell.name)

    def round_on(at: Shell, *options: str) -> tuple[bool, str]:
        """Return whether a round truncated, and its obstacle."""
        with shell.open_log() as log, Writer(log, "w") as writer:
            writer.put("a", b"1")
            writer.commit()
        found = at.json("materialize", shell.name, "--once", "--min-age", "0s", *options)
        return found["records_truncated"] > 0, found["cleanup_held_back"] or ""

    assert [round_on(shell) for _ in range(3)][-1] == (True, "")
    shutil.copytree(shell.root, copy.root)
    for _ in range(3):
        truncated, why = round_on(copy)
        assert not truncated
        assert f"{shell.root}" in why
    assert [round_on(shell) for _ in range(2)] == [(True, "")] * 2
    shutil.rmtree(copy.root)
    shell.root = shell.root.rename(copy.root)
    assert not round_on(shell)[0]
    assert [round_on(shell, "--claim-root"), round_on(shell)] == [(True, "")] * 2


def test_a_hint_names_options(shell: Shell) -> None:
    """A hint on a single broker names options that can be typed."""
    found = shell.json("init", f"{shell.name}-2", code=2, STATELOG_REPLICATION_FACTOR="3")
    assert found["hint"] == "Pass --replication-factor 1 and --allow-unsafe replication,min-insync on a single broker"


def test_json_goes_out_as_utf8_in_any_locale(shell: Shell, tmp_path: Path) -> None:
    """The output of `--to-json -` is UTF-8 in any locale, and can be appended again."""
    source = write_lines(tmp_path / "in.jsonl", [{"key": "gr\u00fcn", "value": "\u65e5"}])
    assert shell.run("append", shell.name, source).exit_code == 0
    process = subprocess.run(
        [sys.executable, "-c", "from statelog.cli import main; main()", "recover", shell.name, "--to-json", "-"],
        env={**os.environ, **shell.environment, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert json.loads(process.stdout.decode("utf-8")) == {"key": "gr\u00fcn", "value": "\u65e5"}


def test_a_misspelt_field_commits_nothing(shell: Shell, tmp_path: Path) -> None:
    """A name of --op-field or --checkpoint-field that no row has ends the run with 2, and the log is unchanged."""
    rows: list[dict[str, object]] = [{"key": f"k{n}", "value": "v", "op": "D", "group": n} for n in range(9)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    ops = ("--op-field", "opp", "--delete-value", "D", "--checkpoint-every", 3)
    for options in (ops, ("--checkpoint-field", "gruop")):
        error = shell.json("append", shell.name, source, *options, "--ignore-unknown", code=2)
        assert (error["error"], error["facts"]["committed_rows"]) == ("InvalidChange", 0)
    assert shell.state() == {}


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
    assert found["writers"][0]["metadata"]["input.rows"] == 5
    earlier = shell.json("recover", log_name, "--at-writer", "planes", "--at-checkpoint", 3)
    assert earlier["rows"] == 2
    assert shell.run("delete", log_name, stdin=b"another\n").exit_code == 2
    assert shell.run("delete", log_name, stdin=f"{log_name}\n".encode()).exit_code == 0
    assert shell.json("describe", log_name, code=3)["error"] == "NotFound"


def test_values_evolve_by_command(broker: Broker, tmp_path: Path, log_name: str) -> None:
    """A second schema is added and described, the first changes nothing, a third is refused; RocksDB has the second."""
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
    """Lines from a file and from a pipe, and Parquet, are the same changes under five names, and nothing twice."""
    rows: list[dict[str, object]] = [{"key": f"k{number % 7}", "value": f"v{number}"} for number in range(50)]
    source = write_lines(tmp_path / "lines.jsonl", rows)
    table = pa.table({"key": [row["key"] for row in rows], "value": [str(row["value"]).encode() for row in rows]})
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=11)
    separated = write_csv(tmp_path / "fields.csv", rows)
    expected = {row["key"]: {"value": row["value"]} for row in rows}

    for number, (args, stdin) in enumerate(
        [
            (("lines.jsonl",), None),
            (("-", "--writer", "pipe"), source.read_bytes()),
            (("table.parquet",), None),
            (("fields.csv",), None),
            (("-", "--writer", "csv-pipe", "--format", "csv"), separated.read_bytes()),
        ]
    ):
        paths = [tmp_path / args[0] if args[0] != "-" else "-", *args[1:]]
        done = shell.json("append", shell.name, *paths, "--checkpoint-every", 20, stdin=stdin)
        assert (number, done["rows"], done["commits"]) == (number, 50, 3)
        again = shell.json("append", shell.name, *paths, "--checkpoint-every", 20, stdin=stdin)
        assert (again["rows"], again["rows_before"]) == (0, 50)
        assert shell.state() == expected


@pytest.mark.parametrize(("name", "write"), [("many.jsonl", write_lines), ("many.csv", write_csv)])
def test_a_killed_append_goes_on_where_it_was(
    shell: Shell, tmp_path: Path, name: str, write: Callable[[Path, list[dict[str, object]]], Path]
) -> None:
    """After SIGKILL in the middle the same command counts every row once, and the last one of a key wins."""
    rows: list[dict[str, object]] = [{"key": f"k{number % 997}", "value": f"v{number}"} for number in range(300_000)]
    source = write(tmp_path / name, rows)
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


def test_another_input_is_refused_and_fences_nobody(shell: Shell, tmp_path: Path) -> None:
    """The same writer with another input or other fields is refused as misuse; an open writer stays open."""
    source = write_lines(tmp_path / "in.jsonl", [{"key": "a", "value": "1"}])
    shell.json("append", shell.name, source)
    other = write_lines(tmp_path / "other.jsonl", [{"key": "a", "value": "2"}])
    with shell.open_log() as log, Writer(log, "owner") as owner:
        refused = shell.json("append", shell.name, other, "--writer", "in", code=2)
        mapped = shell.json("append", shell.name, source, "--op-field", "op", code=2)
        owner.put("b", b"3")
        owner.commit(checkpoint_id=1)

    assert refused["error"] == mapped["error"] == "CheckpointMismatch"
    assert refused["facts"]["committed_rows"] in (0, 1)
    assert shell.state() == {"a": {"value": "1"}, "b": {"value": "3"}}


def test_a_broken_line_stops_behind_the_last_checkpoint(shell: Shell, tmp_path: Path) -> None:
    """A broken line is named, earlier checkpoints stay, and after its repair the same command appends the rest."""
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


def test_a_broken_line_of_csv_stops_behind_the_last_checkpoint(shell: Shell, tmp_path: Path) -> None:
    """A broken line of CSV is named, and after its repair under the same header the rest is appended."""
    source = tmp_path / "in.csv"
    good = [f"k{number},v\n" for number in range(10)]
    source.write_text("".join(["key,value\n", *good[:7], 'k7,"v\n', *good[7:]]))

    error = shell.json("append", shell.name, source, "--checkpoint-every", 3, code=2)
    assert (error["facts"]["line"], error["facts"]["committed_rows"]) == (9, 6)
    source.write_text("".join(["value,key\n", *good]))
    assert shell.json("append", shell.name, source, "--checkpoint-every", 3, code=2)["error"] == "CheckpointMismatch"

    source.write_text("".join(["key,value\n", *good]))
    done = shell.json("append", shell.name, source, "--checkpoint-every", 3)
    assert (done["rows_before"], done["rows"]) == (6, 4)
    assert shell.state() == {f"k{number}": {"value": "v"} for number in range(10)}


def test_a_value_that_the_log_cannot_hold_is_named(shell: Shell, tmp_path: Path) -> None:
    """A row that parses but is no change of this log is named by its place, in JSON lines and in Parquet."""
    lines = write_lines(tmp_path / "a.jsonl", [{"key": "a", "value": "1"}, {"key": "b"}, {"key": "c", "value": "1"}])
    pq.write_table(pa.table({"key": ["a", None], "value": [b"1", b"2"]}), tmp_path / "b.parquet")

    assert shell.json("append", shell.name, lines, code=2)["facts"]["line"] == 2
    assert shell.json("append", shell.name, tmp_path / "b.parquet", code=2)["facts"]["row"] == 2
    assert shell.state() == {}


def test_text_in_another_encoding_is_named(shell: Shell, tmp_path: Path) -> None:
    """A text of a Parquet file that is no UTF-8 is refused with its row in the file."""
    keys = pa.array([b"a", b"b", b"caf\xe9"])
    text = pa.Array.from_buffers(pa.string(), 3, keys.buffers())
    pq.write_table(pa.table({"key": text, "value": [b"1", b"2", b"3"]}), tmp_path / "in.parquet")

    error = shell.json("append", shell.name, tmp_path / "in.parquet", "--checkpoint-every", 2, code=2)

    assert (error["error"], error["facts"]["field"], error["facts"]["row"]) == ("InvalidChange", "key", 3)
    assert shell.state() == {key: {"value": value} for key, value in (("a", "1"), ("b", "2"))}


def test_a_checkpoint_field_cuts_where_it_changes(shell: Shell, tmp_path: Path) -> None:
    """A checkpoint field cuts commits: one for each run of rows with one value."""
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
    """The daemon reports its rounds as JSON, says on SIGTERM that it stopped, and exits with 0."""
    shell.json("append", shell.name, write_lines(tmp_path / "in.jsonl", [{"key": "a", "value": "1"}]))
    process = shell.start("materialize", shell.name, "--interval", "50ms", "--now", "--json")
    with process:
        wait_for(lambda: shell.json("describe", shell.name)["newest_manifest"] == 1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)

    events = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, err) == (0, "")
    assert [event["event"] for event in events][:3] == ["started", "round-started", "round-completed"]
    assert events[-1]["event"] == "stopped"


def test_the_daemon_ends_once_nobody_reads_its_events(shell: Shell) -> None:
    """The daemon whose events nobody reads ends in order, with 1 and the reason on standard error."""
    process = shell.start("materialize", shell.name, "--interval", "50ms", "--now")
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(timeout=120), err) == (
            1,
            "warning: the daemon has ended because its output is no longer read\n",
        )


def test_the_daemon_waits_for_its_log(broker: Broker, tmp_path: Path, log_name: str) -> None:
    """With --wait a daemon finds a log made later, and SIGTERM ends its wait with 0; without, it is NotFound."""
    shell = Shell(broker.bootstrap, tmp_path, log_name)
    assert shell.json("materialize", log_name, code=3)["error"] == "NotFound"
    for is_made in (False, True):
        process = shell.start("materialize", log_name, "--wait", "--now")
        with process:
            assert process.stderr is not None
            assert process.stdout is not None
            assert f"waiting for the log {log_name}" in process.stderr.readline()
            if is_made:
                shell.json("init", log_name)
                assert "started, first round in" in process.stdout.readline()
                assert "round started" in process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)
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
        out, err = process.communicate(timeout=120)

    events = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, err) == (0, "")
    assert [event["cause"] for event in events if event["event"] == "round-started"] == ["trigger", "trigger"]


def test_a_fenced_append_has_its_own_code(shell: Shell) -> None:
    """A writer that another one takes over from exits with 5, and reports the valid rows."""
    process = shell.start(
        "append", shell.name, "-", "--writer", "old", "--checkpoint-every", 1, "--json", stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write('{"key":"a","value":"1"}\n')
    process.stdin.flush()
    wait_for(lambda: shell.state() == {"a": {"value": "1"}})
    with shell.open_log() as log, Writer(log, "new"):
        _, err = process.communicate('{"key":"b","value":"2"}\n', timeout=120)

    assert process.returncode == 5
    told = json.loads(err.splitlines()[-1])
    assert (told["error"], told["facts"]["committed_rows"]) == ("Fenced", 1)


@pytest.mark.usefixtures("busy_ledger")
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
    """A secret of the configuration is in no output and no error, whatever fails with it."""
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
