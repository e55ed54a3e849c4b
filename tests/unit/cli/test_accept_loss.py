"""`statelog accept-loss`: what is given up is named, confirmed by the log's name, and stays in the ledger."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statelog.cli.program import program
from statelog.cli.session import Session
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.storage.log.log import Log
from tests.support.rigs.log import TwinLog, settings_for

WHO = ("--reason", "a disk died", "--operator", "ann")


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> TwinLog:
    """A log with three commits that every command opens."""
    twin = TwinLog(partitions=1)
    for i in range(3):
        twin.write({b"k%d" % i: b"v"})

    @contextmanager
    def open_log(_session: Session, _name: str) -> Generator[Log]:
        with twin.open() as log:
            log.patience_s = 0.0
            yield log

    monkeypatch.setattr(Session, "open_log", open_log)
    return twin


def run(*arguments: str, typed: str = "log\n") -> Result:
    """The command, with what a person types."""
    places = ("--bootstrap", "nowhere:1", "--root", "memory://nowhere")
    return CliRunner().invoke(program, ["accept-loss", "log", *arguments, *places], input=typed)


def test_offsets_that_were_given_up_let_writers_go_on(twin: TwinLog) -> None:
    """The range is the one that the error named; the answer is the place of the record."""
    twin.cluster.lose_tail("log", 0, 2)
    assert run("--range", "0:2-3", *WHO, typed="another\n").exit_code == 2
    done = run("--range", "0:2-3", *WHO)
    assert done.exit_code == 0, done.output
    with twin.open() as log, Writer(log, "writer", expect=3) as writer:
        writer.put(b"new", b"v")
        writer.commit(checkpoint_id=4)
        assert recover(log).to_dict() == {b"k0": b"v", b"k1": b"v", b"new": b"v"}


def test_a_ledger_that_lost_its_tail_goes_on_from_the_snapshot(twin: TwinLog, tmp_path: Path) -> None:
    """With --ledger, and only then."""
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
    ],
)
def test_what_cannot_be_given_up_is_misuse(twin: TwinLog, arguments: tuple[str, ...]) -> None:
    """Nothing named, both, no range, offsets that are not committed, nothing lost, no reason: nothing is written."""
    before = len(twin.cluster.records("log.ledger", 0))
    assert run(*arguments).exit_code == 2
    assert len(twin.cluster.records("log.ledger", 0)) == before
