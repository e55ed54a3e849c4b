"""`statelog copy` between two real brokers, killed on the way or concurrent with a writer: all state arrives.

The writers' progress arrives, too.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from statelog.cli.output import DAMAGED, NOT_FOUND
from statelog.errors import Fenced
from statelog.producer.writer import Writer
from statelog.testing.broker import EmbeddedBroker
from tests.support.rigs.log import UNSAFE
from tests.support.rigs.shell import Shell, write_lines, writer_row
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

ROWS = 60_000


@pytest.fixture
def there(shell: Shell, tmp_path: Path) -> Iterator[Shell]:
    """Yield another cluster and another root, where the log has the same name."""
    broker = EmbeddedBroker(tmp_path / "broker")
    broker.start()
    made = Shell(broker.bootstrap, tmp_path / "elsewhere", shell.name)
    made.root.mkdir()
    yield made
    broker.stop()


def rows(first: int, last: int) -> list[dict[str, object]]:
    """Return rows of two thirds as many keys."""
    return [{"key": f"k{number % (ROWS * 2 // 3)}", "value": str(number)} for number in range(first, last)]


def test_a_copy_that_is_killed_goes_on(shell: Shell, there: Shell, tmp_path: Path) -> None:
    """A copy that is killed is closed, and goes on: once the new log or runs exist, and at any other moment."""
    source = write_lines(tmp_path / "in.jsonl", rows(0, ROWS))
    assert shell.run("append", shell.name, source, "--checkpoint-every", 20_000).exit_code == 0
    assert shell.run("materialize", shell.name, "--once").exit_code == 0
    with source.open("a", encoding="utf-8") as file:
        file.write(write_lines(tmp_path / "more.jsonl", rows(ROWS, ROWS + 500)).read_text("utf-8"))
    assert shell.run("append", shell.name, source).exit_code == 0
    config = tmp_path / "there.toml"
    unsafe = ", ".join(f'"{name}"' for name in UNSAFE)
    config.write_text(
        f'bootstrap = "{there.bootstrap}"\nroot = "{there.root}"\nreplication_factor = 1\nallow_unsafe = [{unsafe}]\n',
        encoding="utf-8",
    )
    command = ("copy", shell.name, there.name, "--to-config", config)
    home = there.root / there.name
    moments: tuple[Callable[[], bool], ...] = (
        (home / "descriptor.avro").exists,
        lambda: any((home / "runs").glob("*")),
        lambda: any((home / "manifests").glob("*")),
    )
    for moment in moments:
        process = shell.start(*command)
        wait_for(lambda: moment() or process.poll() is not None)  # noqa: B023 - called at once
        process.kill()
        process.communicate()
        assert there.run("recover", there.name).exit_code in (NOT_FOUND, DAMAGED)  # The former before its first record.
    assert shell.json(*command)["is_finished"] is False
    assert there.json("get", there.name, "k1", code=DAMAGED)["error"] == "OffsetGone"
    done = shell.json(*command, "--finish")
    assert (done["is_finished"], done["verified_rows"]) == (True, ROWS * 2 // 3)
    assert shell.json(*command, code=NOT_FOUND)["error"] == "AlreadyExists"
    assert there.state() == shell.state()
    ours, theirs = writer_row(there, "in"), writer_row(shell, "in")
    assert ours is not None
    assert theirs is not None
    assert (ours["checkpoint"], ours["metadata"]) == (theirs["checkpoint"], theirs["metadata"])
    with source.open("a", encoding="utf-8") as file:
        file.write('{"key": "last", "value": "x"}\n')
    appended = there.json("append", there.name, source)
    assert (appended["rows_before"], appended["rows"]) == (ROWS + 500, 1)
    assert there.run("materialize", there.name, "--once").exit_code == 0
    assert there.state() == {**shell.state(), "last": {"value": "x"}}


@pytest.mark.parametrize("turn", range(3))
def test_what_a_living_writer_was_told_is_in_the_finished_copy(shell: Shell, turn: int) -> None:
    """The finished copy on the same broker has every acknowledged commit of a busy writer, which is Fenced."""
    copy = f"{shell.name}-{turn}"
    told: list[int] = []
    ends: list[Fenced] = []
    is_over: list[bool] = []

    def write() -> None:
        with shell.open_log() as log, Writer(log, "w") as writer:
            while not is_over:
                number = len(told) + 1
                writer.put(f"k{number % 50}", f"{number}".encode())
                try:
                    writer.commit({"n": number})
                except Fenced as fenced:
                    ends.append(fenced)
                    return
                told.append(number)

    thread = Thread(target=write)
    thread.start()
    try:
        wait_for(lambda: len(told) > 20)
        begun = shell.json("copy", shell.name, copy, "--replication-factor", 1, STATELOG_REPLICATION_FACTOR="")
        assert begun["is_finished"] is False
        wait_for(lambda: len(told) > 100)
        assert shell.json("copy", shell.name, copy, "--finish")["is_finished"] is True
        wait_for(lambda: bool(ends))
    finally:
        is_over.append(True)
        thread.join()
    there = Shell(shell.bootstrap, shell.root, copy)
    row = writer_row(there, "w")
    assert row is not None
    assert row["metadata"] == {"n": len(told)}
    assert there.state() == {f"k{number % 50}": {"value": str(number)} for number in told}
    assert there.run("delete", copy, "--yes").exit_code == 0
