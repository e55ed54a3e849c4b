"""`statelog doctor --kafka` on a real broker: its findings, its exit codes, and no topic left behind."""

import json
import re
import signal
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from statelog.kafka.port import TopicSpec
from statelog.operate.kafka_needs import Need
from statelog.schemas.topic_policy import TopicRole, topic_config
from tests.support.rigs.kafka import broker_world
from tests.support.rigs.shell import Shell, doctors_topics
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker


@pytest.fixture
def shell(broker: Broker, tmp_path: Path) -> Iterator[Shell]:
    """Yield a shell without a log, and check that no topic is left behind."""
    yield Shell(broker.bootstrap, tmp_path / "root", "unused")
    assert doctors_topics(broker.bootstrap) == []


def examined(shell: Shell, *args: object, code: int = 0, **environment: Any) -> dict[str, Any]:
    """Return the report, with the findings by name."""
    result = shell.run("doctor", "--kafka", *args, "--json", **environment)
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return {**found, "findings": {one["name"]: one for one in found["findings"]}}


def bad(found: dict[str, Any]) -> dict[str, str]:
    """Return the severities of all findings that are not OK."""
    return {name: one["severity"] for name, one in found["findings"].items() if one["severity"] != "ok"}


def test_one_broker_whose_checks_are_waived(shell: Shell) -> None:
    """One broker whose checks are waived is fine otherwise; produces and commits are measured, with client settings."""
    found = examined(shell, "--kafka", "client.id=doctor")
    assert bad(found) == {Need.REPLICAS: "note"}
    assert (found["worst"], found["replication_factor"]) == ("note", 1)
    assert 0 < found["produce_p50_s"] <= found["produce_p99_s"]
    assert found["produce_p50_s"] < found["commit_p50_s"] <= found["commit_p99_s"]
    assert found["findings"][Need.LARGEST]["facts"]["largest_bytes"] == 16 << 20


def test_one_broker_where_three_are_asked_for(shell: Shell) -> None:
    """One broker where three are required is examined with one replica, with a hint that people can type."""
    result = shell.run("doctor", "--kafka", STATELOG_REPLICATION_FACTOR="3", STATELOG_ALLOW_UNSAFE="")
    assert result.exit_code == 2, result.output
    assert "Pass --replication-factor 1" in result.stdout
    assert "--allow-unsafe min-insync,replication" in result.stdout
    assert re.findall(r"^(.*)\trefused\t", result.stdout, re.MULTILINE) == [Need.REPLICAS.value]


def test_topics_of_somebody_else(shell: Shell) -> None:
    """Somebody else's topics are used once, and stay."""
    name = f"given-{uuid.uuid4().hex[:8]}"
    with closing(broker_world(shell.bootstrap).kafka) as kafka:
        for role, topic, count in ((TopicRole.DATA, name, 2), (TopicRole.LEDGER, f"{name}.ledger", 1)):
            config = topic_config(role, 1)
            kafka.create_topic(TopicSpec(name=topic, partitions=count, replication_factor=1, config=config))
        assert bad(examined(shell, "--topics", name)) == {Need.REPLICAS: "note"}
        found = examined(shell, "--topics", name, code=2)["findings"][Need.TOPICS]
        assert (found["found"], found["severity"]) == ("the topic is not empty", "refused")
        assert kafka.describe_topic(name) is not None
        for topic in (name, f"{name}.ledger"):
            kafka.delete_topic(topic)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: str(one.name))
def test_an_interrupted_doctor_leaves_no_topic(shell: Shell, number: signal.Signals) -> None:
    """A doctor leaves no topic, however often it is interrupted once its topics exist."""
    with shell.start("doctor", "--kafka") as process:
        wait_for(lambda: len(doctors_topics(shell.bootstrap)) == 2, tick_s=0.01)
        process.send_signal(number)
        process.send_signal(number)
        printed = "".join(process.communicate(timeout=120))
    assert process.returncode == 130, printed
    assert "Traceback" not in printed


def test_no_broker(shell: Shell) -> None:
    """A missing cluster is the command's own error, without any check."""
    error = shell.json(
        "doctor", "--kafka", "--kafka", "socket.timeout.ms=1000", code=4, STATELOG_BOOTSTRAP="127.0.0.1:1"
    )
    assert error["error"] == "BrokerUnavailable"
