"""Spark on a broker that grants nothing by itself: the rights of docs/security.md suffice.

Missing rights and wrong settings are named at once through Spark's own exceptions, and no secret is in anything that
Spark shows or writes.

One Spark program does it all, because a session takes long to start (`tests/support/spark/secrets.py`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from statelog.log import Log, LogOptions, Where
from statelog.recovery import recover
from statelog.spark.option_texts import address_options
from tests.support.canary import CANARY, files_with_canary
from tests.support.rigs.log import UNSAFE, where_at
from tests.support.services.s3_faulty import faulty_s3
from tests.support.services.secure_broker import Right, SecureBroker, reading, topic, writing
from tests.support.services.tokens import token_server
from tests.support.spark.rig import AVSC
from tests.support.spark.secrets import Met, SecretRun, Step
from tests.support.spark.session import PRELOADED

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]

_LOG, _ROOT = "by-spark", "s3://bucket/logs"
_LEDGER = f"{_LOG}.ledger"
_ROBOT = "robot"
_BY_TOKEN = 3
"""The number of steps with tokens: a driver alone would ask once for each."""
_LACKS: dict[str, tuple[str, list[Right], Right]] = {
    "lacks-read": ("read", reading(_LOG), topic(_LOG, "READ")[0]),
    "lacks-ledger-read": ("read", reading(_LOG), topic(_LEDGER, "READ")[0]),
    "lacks-configs": ("read", reading(_LOG), topic(_LOG, "DESCRIBE_CONFIGS")[0]),
    "lacks-write": ("write", writing(_LOG), topic(_LOG, "WRITE")[0]),
    "lacks-ledger-write": ("sink", writing(_LOG), topic(_LEDGER, "WRITE")[0]),
}
"""Users without one right of a role, and the action that they try."""
_PATIENCE_S = 280
"""The request time-out of every client here: a refusal before it did not run into it."""
_AT_ONCE_S = 200.0


class Ran(NamedTuple):
    """The program's results: its steps, the directory that holds all that it left, and the log's state."""

    met: Mapping[str, Met]
    directory: Path
    state: Mapping[object, Mapping[str, object]]


@pytest.fixture(scope="module")
def ran(secure_node: SecureBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Yield the program, run once, with an S3 store and a log of this module's own."""
    directory = tmp_path_factory.mktemp("secured-spark")
    program = directory / "program"
    users = {name: f"{CANARY}kafka{name}" for name in ("reader", "writer", *_LACKS)}
    broker = secure_node.serve(users)
    with faulty_s3() as s3, token_server(broker.issuer, {}) as tokens:
        program.mkdir()
        token = f"{tokens.module(program, _ROBOT)}:{_ROBOT}"
        storage = {**s3.options, "secret": f"{CANARY}store"}
        kafka = {"bootstrap.servers": broker.plain}
        place = where_at(kafka, _ROOT, storage_options=storage)
        Log.create(_LOG, place, LogOptions(partitions=2, key_type="long", value_schema=AVSC)).close()
        broker.grant("reader", reading(_LOG))
        broker.grant("writer", writing(_LOG))
        broker.grant(_ROBOT, writing(_LOG))
        for user, (_, rights, missing) in _LACKS.items():
            broker.grant(user, [right for right in rights if right != missing])
        met = _run(program, [*_steps(broker, storage), *_token_steps(broker, storage, token)])
        assert len(tokens.asked) > _BY_TOKEN, "the tasks asked for no tokens"
        (program / "objects").write_bytes(b"\n".join(data for data, _ in s3.objects.values()))
        with Log.open(_LOG, place) as log:
            state = recover(log).to_dict()
        (program / "broker.log").write_bytes(broker.log_path.read_bytes())
        yield Ran(met, program, state)


def _steps(broker: SecureBroker, storage: Mapping[str, object]) -> list[Step]:
    """Return the program's steps: the use of every right, an error of a task, and all refusals."""

    def options(user: str, writer: str = "", **settings: str) -> dict[str, str]:
        kafka = broker.client(user, socket_timeout_ms=str(_PATIENCE_S * 1000), **settings)
        return {
            **({"writerId": writer, "takeOver": "true"} if writer else {}),
            **address_options(_LOG, Where(kafka, _ROOT, storage_options=storage, allow_unsafe=UNSAFE)),
        }

    wrong = {"sasl_password": f"{CANARY}wrong"}
    return [
        Step("write", "write", options("writer", "load")),
        Step("sink", "sink", options("writer", "job")),
        Step("upsert", "upsert", options("writer", "counts")),
        Step("read", "read", options("reader")),
        Step("misfits", "misfits", options("writer", "load")),
        Step("read, wrong password", "read", options("reader", **wrong)),
        Step("sink, wrong password", "sink", options("writer", "wrong", **wrong)),
        Step("read, unknown authority", "read", options("reader", ssl_ca_location="/etc/ssl/certs")),
        *(Step(user, act, options(user, "" if act == "read" else user)) for user, (act, *_) in _LACKS.items()),
    ]


def _token_steps(broker: SecureBroker, storage: Mapping[str, object], token: str) -> list[Step]:
    """Return the steps with a login by tokens: only the function's name goes to the executors."""
    where = Where(broker.token_client(), _ROOT, storage_options=storage, allow_unsafe=UNSAFE, kafka_token=token)
    options = address_options(_LOG, where)
    writes = {"takeOver": "true", **options}
    return [
        Step("write by token", "write", {"writerId": "load", **writes}),
        Step("upsert by token", "upsert", {"writerId": "counts-by-token", **writes}),
        Step("read by token", "read", options),
        Step("read by no token", "read", {**options, "kafka.token": token.replace(":", ":no_")}),
    ]


def _run(directory: Path, steps: list[Step]) -> dict[str, Met]:
    """Run the program; all output of it and its workers, every logger at DEBUG, is a file below `directory`."""
    logs, temporary = directory / "logs", directory / "tmp"
    for one in (logs, temporary):
        one.mkdir(parents=True)
    (directory / "sitecustomize.py").write_text(
        "import logging, os, runpy\n"
        f"logging.basicConfig(level='DEBUG', filename=f'{logs}/{{os.getpid()}}.log')\n"
        f"runpy.run_path({str(PRELOADED)!r})\n",
        "utf-8",
    )
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join([str(directory), *filter(None, sys.path)]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with (directory / "out.txt").open("wb") as out, (directory / "err.txt").open("wb") as err:
        subprocess.run(
            [sys.executable, "-m", "tests.support.spark.secrets"],
            input=SecretRun(directory=str(directory), steps=steps).to_json().encode(),
            stdout=out,
            stderr=err,
            env=environment,
            check=True,
        )
    lines = (directory / "out.txt").read_text("utf-8").splitlines()
    found = [Met(**json.loads(line)) for line in lines if line.startswith('{"name": ')]
    return {met.name: met for met in found}


def test_the_rights_of_the_page_are_enough_for_spark(ran: Ran) -> None:
    """A batch write, a streaming sink and `upsert` need only a writer's rights, a read only a reader's."""
    assert {name: ran.met[name].error for name in ("write", "sink", "upsert", "read")} == dict.fromkeys(
        ("write", "sink", "upsert", "read"), ""
    )
    assert {key: value["n"] for key, value in ran.state.items()} == {1: 1, 2: 2, 7: 7}


def test_tasks_log_in_by_tokens(ran: Ran) -> None:
    """Each process calls the token function by its name; a missing function is named in the error."""
    names = ("write by token", "upsert by token", "read by token")
    assert {name: ran.met[name].error for name in names} == dict.fromkeys(names, "")
    assert f"no_{_ROBOT}" in _told(ran.met["read by no token"])


@pytest.mark.parametrize("user", _LACKS)
def test_a_right_that_is_missing_is_told_through_sparks_exception(ran: Ran, user: str) -> None:
    """A missing right is reported at once by our error's name, the operation and the topic, before any write."""
    _, _, missing = _LACKS[user]
    told = _told(ran.met[user])
    assert missing.operation.name in told
    assert f"on topic {missing.name}" in told


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("read, wrong password", "Authentication failed"),
        ("sink, wrong password", "Authentication failed"),
        ("read, unknown authority", "certificate"),
    ],
)
def test_who_is_refused_is_told_why_through_sparks_exception(ran: Ran, step: str, reason: str) -> None:
    """A refused client gets the reason, not "Kafka does not answer", and not after the request time-out."""
    assert reason in _told(ran.met[step])


def _told(met: Met) -> str:
    """Return the line of our error, which must have come at once."""
    assert met.seconds < _AT_ONCE_S
    lines = [line for line in met.error.splitlines() if "[statelog.ConfigError]" in line]
    assert lines, met.error
    return lines[0]


def test_no_secret_is_in_anything_that_spark_shows_or_writes(ran: Ran) -> None:
    """No secret is in plans, progress, event log, checkpoints, logs, errors, temporary files or processes' arguments.

    The logs are the driver's, the workers' and the broker's; the store is searched, too.
    """
    assert "InvalidChange" in ran.met["misfits"].error
    for part in ("events", "checkpoints", "logs", "local-before-the-end"):
        assert any(path.is_file() for path in (ran.directory / part).rglob("*")), f"nothing was found in {part}"
    events = b"".join(path.read_bytes() for path in (ran.directory / "events").rglob("events_*"))
    assert b"SparkListenerSQLExecutionStart" in events
    assert "BatchScan statelog" in (ran.directory / "out.txt").read_text("utf-8")
    assert "batchId" in (ran.directory / "progress.txt").read_text("utf-8")
    assert files_with_canary(ran.directory) == []
