"""The `statelog` command as a person types it, against one broker and one root; the fixture `shell` brings a log."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import admin

from statelog.cli.program import program
from statelog.cli.session import Session
from statelog.log import Log
from tests.support.rigs.log import UNSAFE, LogRig, TwinLog, where_at
from tests.support.services.broker import Broker

__all__ = ["Shell", "commands_open", "doctors_topics", "shell", "write_csv", "write_lines", "writer_row"]


def commands_open(twin: TwinLog | LogRig, monkeypatch: pytest.MonkeyPatch, *, patience_s: float | None = None) -> None:
    """Make every command of this process open this log from now on."""

    @contextmanager
    def open_log(_session: Session, _name: str) -> Generator[Log]:
        with twin.open() as log:
            if patience_s is not None:
                log.patience_s = patience_s
            yield log

    monkeypatch.setattr(Session, "open_log", open_log)


@dataclass(slots=True)
class Shell:
    """A shell that types commands against one broker and one root, in this process or in a process of its own."""

    bootstrap: str
    root: Path
    name: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a user would have set."""
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
        result = self.run(args[0], "--json", *args[1:], **options)
        assert result.exit_code == code, result.output
        text = result.stdout if code == 0 else result.stderr
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def start(self, *args: object, **options: Any) -> "subprocess.Popen[str]":
        """Start a command as a process of its own, which gets Ctrl-C even if this run, in the background, does not."""
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
        """Return the log, through the library."""
        return Log.open(self.name, where_at(self.bootstrap, self.root))

    def state(self) -> dict[str, Any]:
        """Return the recovered state, by way of JSON lines: key to all other fields."""
        result = self.run("recover", self.name, "--to-json", "-")
        assert result.exit_code == 0, result.output
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        return {row.pop("key"): row for row in rows}


@pytest.fixture
def shell(broker: Broker, tmp_path: Path, log_name: str) -> Iterator[Shell]:
    """Yield a shell with a log of bytes by string keys; the log is deleted at the end, if the test did not."""
    made = Shell(broker.bootstrap, tmp_path / "root", log_name)
    made.root.mkdir()
    assert made.run("init", log_name, "--partitions", 2, "--key-groups", 16, "--key-type", "string").exit_code == 0
    yield made
    made.run("delete", log_name, "--yes")


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    """Return a file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path: Path, rows: list[dict[str, object]]) -> Path:
    """Return a file of CSV, under a header of the first row's fields."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def writer_row(shell: Shell, writer: str) -> Mapping[str, Any] | None:
    """Return a writer's row of describe."""
    rows = shell.json("describe", shell.name)["writers"]
    return next((row for row in rows if row["writer"] == writer), None)


def doctors_topics(bootstrap: str) -> list[str]:
    """Return the topics that a doctor made and has not removed."""
    topics = admin.AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics
    return [name for name in topics if name.startswith("statelog-doctor-")]
