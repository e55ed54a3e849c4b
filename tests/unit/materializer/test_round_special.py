"""Rounds on special logs: values of an older schema, accepted losses, and a ledger without commits."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.errors import AnchorMismatch, BeyondEnd, CorruptRun, Damaged
from statelog.log import Log, LogOptions, accept_data_loss
from statelog.materializer.outcome import CompletedRound, SkippedRound
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.schemas.ledger.records import LossRange
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.rigs.log import TwinLog, settings_for, state_of, state_of_snapshot, where_at


def _avsc(*fields: Mapping[str, str]) -> str:
    return json.dumps({"type": "record", "name": "V", "fields": list(fields)})


A = {"name": "a", "type": "long"}
B = {"name": "b", "type": "string", "default": "new"}


def test_values_of_an_older_schema_are_rewritten_by_the_round_that_reads_them(tmp_path: Path) -> None:
    """Delta and merge convert values to the newest schema, so that all runs of a merge have one shape."""
    log = Log.create(
        "typed",
        where_at(MemoryKafka(), MemoryStore(MemoryDisk(lambda: 1.0), "typed")),
        LogOptions(partitions=2, key_groups=4, value_schema=_avsc(A)),
    )
    settings = settings_for(tmp_path, fanout=2)
    with Writer(log, "w") as out:
        out.put(b"x", {"a": 1})
        out.put(b"y", {"a": 2})
        out.commit(checkpoint_id=1)
    run_round(log, settings)
    with Writer(log, "w") as out:
        out.put(b"y", {"a": 3})
        out.commit(checkpoint_id=2)
    log.value_schemas.add(_avsc(A, B))
    with Writer(log, "w") as out:
        out.put(b"z", {"a": 4, "b": "own"})
        out.delete(b"x")
        out.commit(checkpoint_id=3)
    outcome = run_round(log, settings)

    assert isinstance(outcome, CompletedRound)
    assert outcome.runs_merged == 2
    manifest = log.manifests.read(2)
    assert [run.value_schema_id for run in manifest.runs] == [2]
    assert state_of_snapshot(log, manifest) == {b"y": {"a": 3, "b": "new"}, b"z": {"a": 4, "b": "own"}}


@pytest.mark.usefixtures("busy_ledger")
def test_a_round_goes_on_after_a_person_accepted_a_loss(tmp_path: Path) -> None:
    """A log that lost its committed end stops rounds with a typed error until the loss is accepted in the ledger."""
    twin = TwinLog(partitions=1)
    twin.write({b"a": b"1"})
    log = twin.open()
    settings = settings_for(tmp_path)
    twin.environment.run(run_round, log, settings)
    twin.write({b"b": b"2"})
    twin.cluster.lose_tail(log.data_topic, 0, 0)
    with pytest.raises(BeyondEnd):
        twin.environment.run(run_round, log, settings)

    accept_data_loss(log, [LossRange(0, 0, 2)], reason="a disk died", operator="me")
    outcome = twin.environment.run(run_round, log, settings)
    assert isinstance(outcome, CompletedRound)
    assert state_of(log) == {b"a": b"1"}


@pytest.mark.usefixtures("busy_ledger")
def test_a_budget_does_not_end_a_round_before_the_acceptance_of_a_loss(tmp_path: Path) -> None:
    """A round's budget extends to the acceptance of a loss that it reads, however far away.

    Without one, the round raises.
    """
    twin = TwinLog(partitions=1)
    log = twin.open()
    settings = settings_for(tmp_path, budget_commits=1)
    for number in range(4):
        twin.write({b"key-%d" % number: b"1"})
    lost = twin.cluster.records(log.data_topic, 0)[1].offset
    twin.cluster.overwrite(log.data_topic, 0, lost, b"a stranger's")
    assert isinstance(twin.environment.run(run_round, log, settings), CompletedRound)
    with pytest.raises(Damaged):
        twin.environment.run(run_round, log, settings)

    accept_data_loss(log, [LossRange(0, lost, lost + 1)], reason="a disk died", operator="me")
    twin.write({b"key-4": b"1"})
    outcome = twin.environment.run(run_round, log, settings)
    assert isinstance(outcome, CompletedRound)
    assert (outcome.commits, outcome.behind) == (4, False)
    assert state_of_snapshot(log, log.manifests.read(2)) == {b"key-%d" % n: b"1" for n in (0, 2, 3, 4)}


@pytest.mark.usefixtures("busy_ledger")
def test_damage_that_is_found_after_the_put_is_no_reason_to_begin_again(tmp_path: Path) -> None:
    """Damage that is found after the put is raised, even if a loss was accepted behind the budget.

    Another try would lose to its own manifest.
    """
    twin = TwinLog(partitions=1)
    log = twin.open()
    for number in range(3):
        twin.write({b"key-%d" % number: b"1"})
    lost = twin.cluster.records(log.data_topic, 0)[-1].offset
    twin.cluster.overwrite(log.data_topic, 0, lost, b"a stranger's")
    accept_data_loss(log, [LossRange(0, lost, lost + 1)], reason="a disk died", operator="me")

    def crash(name: str) -> None:
        if name == "after-win":
            raise CorruptRun("found by the clean-up")

    with pytest.raises(CorruptRun, match="found by the clean-up"):
        replace(twin.environment, crash=crash).run(run_round, log, settings_for(tmp_path, budget_commits=1))
    assert log.manifests.numbers() == [1]


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("topic", ["log", "log.ledger"])
def test_a_record_that_changed_behind_its_offset_is_an_anchor_mismatch(topic: str, tmp_path: Path) -> None:
    """Another record at an anchored offset is an anchor mismatch: the snapshot belongs to another history."""
    twin = TwinLog(partitions=1)
    twin.write({b"a": b"1"})
    settings = settings_for(tmp_path)
    log = twin.open()
    twin.environment.run(run_round, log, settings)
    twin.write({b"a": b"2"})
    last = log.manifests.read(1).anchors[0 if topic == "log" else 1].offset
    twin.cluster.overwrite(topic, 0, last, b"a stranger's")
    with pytest.raises(AnchorMismatch) as mismatch:
        twin.environment.run(run_round, log, settings)
    assert mismatch.value.facts["topic"] == topic
    assert log.manifests.numbers() == [1]


def test_the_anchors_of_a_round_are_those_of_the_records_that_are_there(tmp_path: Path) -> None:
    """The anchors of a round come from the records that it read, and equal those of a second reading."""
    twin = TwinLog()
    log, settings = twin.open(), settings_for(tmp_path, keep=9)  # None is truncated.
    for changes in ({b"%d" % number: b"1" for number in range(50)}, {b"7": b"2"}, {b"8": b"3", b"9": None}):
        twin.write(dict(changes))
        twin.environment.run(run_round, log, settings)
        newest = log.manifests.newest()
        assert newest is not None
        assert newest.anchors == log.evidence.take_anchors(newest.state, None)


def test_a_quiet_ledger_is_skipped_until_records_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few Opens make no snapshot. Many do, so that the ledger can be truncated."""
    monkeypatch.setattr("statelog.materializer.round.QUIET_RECORDS", 20)
    twin = TwinLog(partitions=1)
    settings = settings_for(tmp_path)
    log = twin.open()
    assert twin.environment.run(run_round, log, settings) == SkippedRound(number=0, position=0)
    for _ in range(18):
        Writer(log, "writer").close()
    assert isinstance(twin.environment.run(run_round, log, settings), SkippedRound)
    Writer(log, "writer").close()
    outcome = twin.environment.run(run_round, log, settings)
    assert isinstance(outcome, CompletedRound)
    assert (outcome.number, outcome.position, outcome.rows) == (1, 20, 0)
    twin.write({b"a": b"1"})
    assert isinstance(twin.environment.run(run_round, log, settings), CompletedRound)
    assert state_of(log) == twin.model
