"""`statelog accept-loss` names the loss, asks for the log's name, and records the decision in the ledger."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from statelog.cli.program import program
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.ledger.records import AcceptLoss, LossRange, decode
from statelog.schemas.names import LOSSES
from statelog.store.files import put_loss
from statelog.testing.store import MemoryStore
from tests.support.rigs.log import TwinLog, settings_for
from tests.support.rigs.shell import commands_open

WHO = ("--reason", "a disk died", "--operator", "ann")


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> TwinLog:
    """Return a log with three commits that every command opens."""
    twin = TwinLog(partitions=1)
    for i in range(3):
        twin.write({b"k%d" % i: b"v"})

    commands_open(twin, monkeypatch, patience_s=0.0)
    return twin


def run(*arguments: str, typed: str = "log\n") -> Result:
    """Run the command with what a person types."""
    places = ("--bootstrap", "nowhere:1", "--root", "memory://nowhere")
    return CliRunner().invoke(program, ["accept-loss", "log", *arguments, *places], input=typed)


@pytest.mark.usefixtures("busy_ledger")
def test_offsets_that_were_given_up_let_writers_go_on(twin: TwinLog) -> None:
    """The command shows the error's range and the commits that go with it; the operator types the log's name."""
    twin.cluster.lose_tail("log", 0, 2)
    assert run("--range", "0:2-3", *WHO, typed="another\n").exit_code == 2
    assert run("--range", "0:2-3", *WHO, typed="log\n").exit_code == 2
    done = run("--range", "0:2-3", *WHO, typed="0:2-3\n")
    assert "0:2-3\twriter\t3\t" in done.stderr
    assert done.exit_code == 0, done.output
    with twin.open() as log, Writer(log, "writer", expect=3) as writer:
        writer.put(b"new", b"v")
        writer.commit(checkpoint_id=4)
        assert recover(log).to_dict() == {b"k0": b"v", b"k1": b"v", b"new": b"v"}


def test_a_ledger_that_lost_its_tail_goes_on_from_the_snapshot(twin: TwinLog, tmp_path: Path) -> None:
    """`--ledger` alone restarts a truncated ledger from the snapshot."""
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    twin.cluster.lose_tail("log.ledger", 0, 4)
    done = run("--ledger", *WHO, "--yes", typed="")
    assert done.exit_code == 0, done.output
    with twin.open() as log:
        assert recover(log).to_dict() == twin.model


@pytest.mark.parametrize(
    "arguments",
    [
        (*WHO,),
        ("--ledger", "--range", "0:0-1", *WHO),
        ("--range", "0:5", *WHO),
        ("--range", "0:0-9", *WHO),
        ("--ledger", *WHO),
        ("--ledger", "--reason", "", "--operator", "ann"),
        ("--ledger", "--operator", "ann"),
        ("--range", "0:2-3", "--yes", "--reason", "\udcff", "--operator", "ann"),
        ("--range", "0:2-3", "--yes", "--reason", "a disk died", "--operator", "\udcff"),
    ],
)
def test_what_cannot_be_given_up_is_misuse(twin: TwinLog, arguments: tuple[str, ...]) -> None:
    """A wrong or incomplete acceptance is misuse and writes nothing."""
    before = twin.disk.files(""), len(twin.cluster.records("log.ledger", 0))
    assert run(*arguments).exit_code == 2
    assert (twin.disk.files(""), len(twin.cluster.records("log.ledger", 0))) == before


@pytest.mark.usefixtures("busy_ledger")
def test_what_is_lost_is_named_where_no_range_is_given(twin: TwinLog) -> None:
    """A refusal without a range lists the lost offsets as options to type. Truncated offsets are not listed."""
    twin.cluster.lose_tail("log", 0, 2)
    twin.cluster.truncate("log", 0, 1)
    refused = run(*WHO)
    assert refused.exit_code == 2
    assert "--range 0:0-1 --range 0:2-3" in refused.stderr


@pytest.mark.usefixtures("busy_ledger")
def test_what_would_go_is_shown_alone(twin: TwinLog) -> None:
    """`--dry-run` asks nothing and writes nothing. A ledger has no ranges, so it is misuse there."""
    twin.cluster.lose_tail("log", 0, 1)
    before = twin.disk.files(""), len(twin.cluster.records("log.ledger", 0))
    shown = json.loads(run("--range", "0:1-3", *WHO, "--dry-run", "--json", typed="").stdout)
    rows = [(one["writer"], one["checkpoint"], one["changes"]) for one in shown["commits_taken_along"]]
    assert rows == [("writer", 2, 1), ("writer", 3, 1)]
    assert (twin.disk.files(""), len(twin.cluster.records("log.ledger", 0))) == before
    assert run("--ledger", *WHO, "--dry-run").exit_code == 2


def described(twin: TwinLog) -> list[dict[str, Any]]:
    """Return the losses as `describe` prints them."""
    places = ("--bootstrap", "nowhere:1", "--root", "memory://nowhere")
    found = CliRunner().invoke(program, ["describe", "log", "--json", *places])
    assert found.exit_code == 0, found.output
    losses: list[dict[str, Any]] = json.loads(found.stdout)["losses"]
    return losses


@pytest.mark.usefixtures("busy_ledger")
def test_who_accepted_outlives_the_next_truncation(twin: TwinLog, tmp_path: Path) -> None:
    """`describe` shows operator and reason after truncation has removed the record from the ledger."""
    twin.cluster.lose_tail("log", 0, 2)
    assert run("--range", "0:2-3", *WHO, "--yes", typed="").exit_code == 0
    for number in range(3):
        twin.write({b"more%d" % number: b"v"})
        with twin.open() as log:
            twin.environment.run(run_round, log, settings_for(tmp_path))
    left = [decode(record.value) for record in twin.cluster.records("log.ledger", 0)]
    assert not any(isinstance(one, AcceptLoss) for one in left)
    (told,) = described(twin)
    assert (told["operator"], told["reason"], told["given_up"], told["counts"]) == ("ann", "a disk died", "0:2-3", True)


@pytest.mark.usefixtures("busy_ledger")
def test_what_the_ledger_never_heard_does_not_count(twin: TwinLog) -> None:
    """An acceptance that reached only the store does not count. Accepting the same loss again counts, as one entry."""
    twin.cluster.lose_tail("log", 0, 2)
    record = AcceptLoss(ranges=(LossRange(0, 2, 3),), reason="a disk died", operator="ann")
    put_loss(MemoryStore(twin.disk, "log"), record)
    assert [one["counts"] for one in described(twin)] == [False]
    assert run("--range", "0:2-3", *WHO, "--yes", typed="").exit_code == 0
    assert [one["counts"] for one in described(twin)] == [True]


def test_a_ledger_that_was_given_up_is_told_by_its_restart(twin: TwinLog, tmp_path: Path) -> None:
    """`describe` names the operator who restarted a ledger."""
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    twin.cluster.lose_tail("log.ledger", 0, 4)
    assert run("--ledger", *WHO, "--yes", typed="").exit_code == 0
    (told,) = described(twin)
    assert (told["operator"], told["counts"]) == ("ann", True)
    assert told["given_up"].startswith("the ledger below position")


@pytest.mark.usefixtures("busy_ledger")
def test_a_record_of_a_loss_that_is_damaged_stops_nobody(twin: TwinLog) -> None:
    """A damaged loss record is reported as damaged and decides nothing."""
    assert run("--range", "0:2-3", *WHO, "--yes", typed="").exit_code == 0
    twin.disk.truncate(f"log/{LOSSES.path(1)}", 20)
    (told,) = described(twin)
    assert (told["operator"], told["counts"]) == (None, None)
    assert told["reason"].startswith("UNREADABLE: ")
