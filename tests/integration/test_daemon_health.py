"""The daemon as a process on a real broker, asked over HTTP for liveness, readiness and metrics."""

import json
import signal
from pathlib import Path

import pytest

from statelog.testing.broker import free_port
from tests.support.rigs.shell import Shell, shell, write_lines
from tests.support.services.broker import OwnBroker
from tests.support.services.http import asked
from tests.support.waiting import wait_for

__all__ = ["shell"]
pytestmark = pytest.mark.broker


def test_a_daemon_tells_how_it_is(shell: Shell, tmp_path: Path) -> None:
    """A daemon is live at once, with its rounds and requests at /metrics; its lines are objects with time and level."""
    lines = write_lines(tmp_path / "lines.jsonl", [{"key": "a", "value": "1"}])
    assert shell.run("append", shell.name, lines).exit_code == 0
    port = free_port()
    options = ["--listen", f"127.0.0.1:{port}", "--log-format", "json", "--now", "--traces"]
    process = shell.start("materialize", shell.name, *options)
    try:
        completed = f'statelog_rounds_total{{log="{shell.name}",outcome="completed"}} 1.0'
        wait_for(lambda: completed in asked(port, "/metrics")[1], "no round was seen to complete")
        assert asked(port, "/livez") == (200, "live\n")
        assert asked(port, "/readyz") == (200, "ready\n")
        _, metrics = asked(port, "/metrics")
        for wanted in (
            'statelog_request_seconds_count{operation="upload",port="store"} 1.0',
            f'statelog_rolled_up_changes_total{{log="{shell.name}"}} 1.0',
            f'statelog_round_seconds_count{{log="{shell.name}"}} 1.0',
            f'statelog_restore_estimate_seconds{{log="{shell.name}",part="snapshot"}}',
            'statelog_disk_free_bytes{path="',
        ):
            assert wanted in metrics, metrics
    finally:
        process.send_signal(signal.SIGTERM)
        told, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    events = [json.loads(line) for line in told.splitlines()]
    assert [one["event"] for one in events[:3]] == ["started", "round-started", "round-completed"]
    assert {one["level"] for one in events} == {"info"}
    assert all(one["time"] and one["log"] == shell.name for one in events)


def test_a_daemon_without_its_broker_is_live_and_not_ready(
    own_broker: OwnBroker, log_name: str, tmp_path: Path
) -> None:
    """A daemon without its broker says why it is not ready, and is ready again once the broker answers."""
    shell = Shell(own_broker.bootstrap, tmp_path / "root", log_name)
    shell.root.mkdir()
    assert shell.run("init", log_name, "--partitions", 2, "--key-groups", 16).exit_code == 0
    port, probes = free_port(), free_port()
    options = ["--interval", "500ms", "--now", "--kafka", "socket.timeout.ms=2000"]
    options += ["--probes", f"0.0.0.0:{probes}"]
    process = shell.start("materialize", log_name, "--listen", f"127.0.0.1:{port}", *options)
    try:
        wait_for(lambda: asked(port, "/readyz")[0] == 200, "it is never ready")
        own_broker.pause()
        wait_for(lambda: asked(port, "/readyz")[0] == 503, "it stays ready without its broker")
        _, why = asked(port, "/readyz")
        assert "in a row failed" in why
        assert "BrokerUnavailable" in why
        assert asked(probes, "/readyz") == (503, "not ready\n"), "the kubelet gets the state, and not the reason"
        assert asked(port, "/livez") == (200, "live\n")
        own_broker.resume()
        wait_for(lambda: asked(port, "/readyz")[0] == 200, "it never gets ready again")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_others_are_not_served_in_the_clear(shell: Shell) -> None:
    """An address that others reach is refused before anything is opened, with the remedy."""
    error = shell.json("materialize", shell.name, "--listen", "0.0.0.0:9400", code=2)
    assert error["error"] == "ConfigError"
    assert "a certificate" in error["hint"]
    shell.json("materialize", shell.name, "--once", "--listen", "0.0.0.0:0", "--guarded-network")


def test_one_daemon_rolls_up_all_logs_below_a_root(shell: Shell, tmp_path: Path) -> None:
    """One daemon rolls up all logs below a root, also a new and a deleted one, and names a damaged one."""
    names = [f"{shell.name}-{letter}" for letter in "abc"]
    rows = write_lines(tmp_path / "lines.jsonl", [{"key": "a", "value": "1"}])
    options = ["--partitions", 1, "--key-groups", 4, "--key-type", "string"]
    port = free_port()

    def make(name: str) -> None:
        assert shell.run("init", name, *options).exit_code == 0
        assert shell.run("append", name, rows).exit_code == 0

    def is_rolled_up(name: str) -> bool:
        return f'statelog_rounds_total{{log="{name}",outcome="completed"}} 1.0' in asked(port, "/metrics")[1]

    make(names[0])
    make(names[1])
    descriptor = shell.root / names[1] / "descriptor.avro"
    whole = descriptor.read_bytes()
    descriptor.write_bytes(whole[:-1])
    # Nobody reads its lines before the end: they are few enough for a pipe.
    paced = ["--interval", "3s", "--now", "--log-format", "json", "--listen", f"127.0.0.1:{port}"]
    process = shell.start("materialize", "--all", *paced)
    try:
        wait_for(lambda: is_rolled_up(names[0]), "the whole log is not rolled up")
        wait_for(lambda: f"{names[1]}: " in asked(port, "/readyz")[1], "the damaged log is not named")
        assert asked(port, "/livez") == (200, "live\n")
        assert asked(port, f"/readyz?log={names[0]}") == (200, "ready\n")
        make(names[2])
        wait_for(lambda: is_rolled_up(names[2]), "a log that was made meanwhile is not rolled up")
        descriptor.write_bytes(whole)
        wait_for(lambda: is_rolled_up(names[1]), "the mended log is not rolled up")
        assert shell.run("delete", names[0], "--yes").exit_code == 0
        wait_for(
            lambda: f'age_seconds{{log="{names[0]}"' not in asked(port, "/metrics")[1], "the deleted log is still there"
        )
    finally:
        process.send_signal(signal.SIGTERM)
        told, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    events = [json.loads(line) for line in told.splitlines()]
    assert {one["log"] for one in events if one["event"] == "log-set-aside"} <= {names[0], names[1]}
    assert [one["log"] for one in events if one["event"] == "log-gone"] == [names[0]]
    for name in names[1:]:
        shell.run("delete", name, "--yes")


def test_logs_are_named_or_all(shell: Shell) -> None:
    """Either logs are named or all are chosen, and a single round is one log's."""
    assert shell.json("materialize", code=2)["error"] == "Misuse"
    assert shell.json("materialize", "--all", shell.name, code=2)["error"] == "Misuse"
    assert "one log" in shell.json("materialize", shell.name, "other", "--once", code=2)["message"]
