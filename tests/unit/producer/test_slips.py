"""Common mistakes of programs: uncommitted changes, writers that are not closed, and wrong arguments."""

import gc
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from statelog.environment import Environment
from statelog.errors import (
    ConfigError,
    IdentityChanged,
    InvalidChange,
    StatelogError,
    StatelogWarning,
    UncommittedChanges,
)
from statelog.log import Log
from statelog.producer.change_writer import ChangeWriter
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.guard import Life
from statelog.producer.settings import WriterSettings
from statelog.producer.writer import Writer
from statelog.schemas.descriptor import HashRule
from statelog.testing.cluster import MemoryCluster
from tests.support.rigs.log import TwinRig, twin_rig

HERE = Path(__file__)
Make = Callable[[Log], ChangeWriter]


@pytest.fixture
def rig() -> TwinRig:
    """Return the Kafka and the store of a log, in memory."""
    return twin_rig("log")


@pytest.fixture
def log(rig: TwinRig) -> Iterator[Log]:
    """Return a new log of opaque values under bytes keys."""
    with rig.create(partitions=2) as created:
        yield created


def task_writer(log: Log) -> TaskWriter:
    """Return a task writer for the next checkpoint."""
    with Coordinator(log, "c") as coordinator:
        return TaskWriter(log.kafka.producer(), coordinator.task(), slot=0)


def coordinator(log: Log) -> Coordinator:
    """Return a coordinator that has committed nothing."""
    return Coordinator(log, "c")


def writer(log: Log) -> Writer:
    """Return a writer of all partitions."""
    return Writer(log, "w")


both = pytest.mark.parametrize("make", [writer, task_writer])


def leave(make: Make, log: Log) -> int:
    """Leave a block with uncommitted changes, and return the line to blame."""
    with make(log) as changed:
        changed.put(b"k", b"v")
    return _line_of("with make(log) as changed:")


def leave_stack(make: Make, log: Log) -> int:
    """Leave an exit stack with uncommitted changes, and return the line to blame."""
    with ExitStack() as stack:
        stack.enter_context(make(log)).put(b"k", b"v")
    return _line_of("with ExitStack() as stack:")


def close(make: Make, log: Log) -> int:
    """Close with uncommitted changes, and return the line to blame."""
    changed = make(log)
    changed.put(b"k", b"v")
    changed.close()
    return _line_of("changed.close()")


def _line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(HERE.read_text("utf-8").splitlines()) if line.strip() == text)


@both
@pytest.mark.parametrize("end", [leave, leave_stack, close])
def test_every_loss_is_told_where_it_happens(make: Make, end: Callable[[Make, Log], int], log: Log) -> None:
    """Each loss warns at its own line of the program. By Python's default rules a line would be shown once."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=ResourceWarning)
        lines = [end(make, log) for _ in range(3)]

    assert [(one.category, one.filename, one.lineno) for one in told] == [
        (UncommittedChanges, str(HERE), line) for line in lines
    ]


@both
def test_a_loss_is_an_error_for_who_wants_one(make: Make, log: Log) -> None:
    """A program's filter can turn the warning into an error, and the writer is closed all the same."""
    changed = make(log)
    changed.put(b"k", b"v")
    with warnings.catch_warnings():
        warnings.simplefilter("error", StatelogWarning)
        with pytest.raises(UncommittedChanges, match="are discarded"):
            changed.close()
    assert changed.life is Life.CLOSED


@both
def test_nothing_is_told_beside_an_error(make: Make, log: Log) -> None:
    """A block that ends with an error does not warn about its changes."""
    with pytest.raises(RuntimeError, match="mine"), make(log) as changed:
        changed.put(b"k", b"v")
        raise RuntimeError("mine")
    assert changed.life is Life.CLOSED


def test_a_finished_task_loses_nothing(log: Log) -> None:
    """A finished task does not warn, since its handle holds the changes."""
    with task_writer(log) as task:
        task.put(b"k", b"v")
        task.finish()
    task.close()


def test_a_task_places_keys_itself(rig: TwinRig) -> None:
    """A task accepts key groups like a writer, in a log whose callers name them."""
    with rig.create(hash_rule=HashRule.CALLER) as log, Coordinator(log, "c") as coordinator:
        with TaskWriter(log.kafka.producer(), coordinator.task(), slot=0) as task:
            task.append(5, b"k", b"v")
            handle = task.finish()
        coordinator.commit([handle])
    assert rig.state() == {b"k": b"v"}


def forget(log: Log, make: Callable[[Log], object]) -> list[str]:
    """Return the warnings when an object is made and dropped."""
    gc.collect()  # earlier tests' leftovers would be reported here
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        make(log)
        gc.collect()
    return [str(one.message) for one in told if one.category is ResourceWarning]


@pytest.mark.parametrize(
    ("make", "name"),
    [(writer, "writer w"), (task_writer, "task writer c"), (coordinator, "coordinator c")],
    ids=["writer", "task writer", "coordinator"],
)
def test_what_is_forgotten_open_is_told(make: Callable[[Log], object], name: str, log: Log) -> None:
    """An object that is dropped open warns under the program's name for it, like Python's files."""
    assert f"unclosed {name} (log {log.name}) of statelog" in forget(log, make)


def test_what_was_closed_or_never_opened_is_not_told(log: Log) -> None:
    """An object that was closed, or whose opening failed, does not warn."""

    def refused(log: Log) -> None:
        with pytest.raises(StatelogError):
            Writer(log, "w", expect=7)

    def dies(step: str) -> None:
        raise RuntimeError(step)

    def killed(log: Log) -> None:
        with pytest.raises(RuntimeError):
            Environment(crash=dies).run(Writer, log, "w")

    assert forget(log, refused) == []
    assert forget(log, killed) == []
    assert forget(log, lambda log: writer(log).close()) == []


def test_a_fork_forgets_nothing(log: Log) -> None:
    """A child does not warn about its copy, since the parent has the writer and closes it."""
    held = [writer(log)]
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            held.clear()
            gc.collect()
        os._exit(len(told))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.pop().close()


@pytest.mark.parametrize("value", ["text", None, 7, {"x": 1}])
def test_a_wrong_key_is_blamed_as_a_key(value: object, log: Log) -> None:
    """A wrong key is reported as a key, also where the value is wrong, and nothing is buffered."""
    with writer(log) as changed:
        with pytest.raises(InvalidChange, match="a key of this log is bytes, not str"):
            changed.put("k", value)  # type: ignore[arg-type]  # that is the slip
        with pytest.raises(InvalidChange, match="a value of this log is bytes"):
            changed.put(b"k", "v")


SLIPS: dict[str, Callable[[Writer, Coordinator, Any], object]] = {
    "a pending handle": lambda writer, _, log: writer.confirm(cast("Any", writer.persist())),
    "a pending handle, unwaited": lambda writer, _, log: writer.confirm_async(cast("Any", writer.persist())),
    "bytes of a handle": lambda writer, _, log: writer.adopt(cast("Any", b"SLHD")),
    "text for a number": lambda writer, _, log: writer.persist(from_sqn=cast("Any", "1")),
    "no number": lambda writer, _, log: writer.truncate(cast("Any", None)),
    "half a number": lambda writer, _, log: writer.truncate_and_close(cast("Any", 1.5)),
    "one handle": lambda _, coordinator, log: coordinator.commit(
        cast("Any", TaskWriter(log.kafka.producer(), coordinator.task(), slot=0).finish())
    ),
    "tasks": lambda _, coordinator, log: coordinator.commit(cast("Any", [coordinator.task()])),
    "a task": lambda _, coordinator, log: Coordinator(log, "task", grant=cast("Any", coordinator.task())),
    "another's grant": lambda _, coordinator, log: Coordinator(log, "another", grant=coordinator.grant),
    "a grant": lambda _, coordinator, log: TaskWriter(log.kafka.producer(), cast("Any", coordinator.grant), slot=0),
    "half a slot": lambda _, coordinator, log: TaskWriter(
        log.kafka.producer(), coordinator.task(), slot=cast("Any", 0.5)
    ),
    "a dict of settings": lambda _, __, log: Writer(log, "other", settings=cast("Any", {})),
    "no bound": lambda _, __, log: WriterSettings(in_flight_bytes_max=cast("Any", math.nan)),
    "text for bytes": lambda _, __, log: WriterSettings(inline_bytes=cast("Any", "1")),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_what_is_passed_by_mistake_is_told(slip: str, log: Log) -> None:
    """A wrong argument is refused with what belongs there, and writer and coordinator continue."""
    with Writer(log, "w", partitions=[0]) as writer, Coordinator(log, "c", partitions=[1]) as coordinator:
        with pytest.raises(ConfigError) as refused:
            SLIPS[slip](writer, coordinator, log)
        assert refused.value.hint
        writer.commit()
        coordinator.commit()


def test_a_grant_of_another_log_is_none(log: Log) -> None:
    """A grant of another log is refused as such, and not reported as a loss of this log."""
    elsewhere = twin_rig("another", cluster=MemoryCluster(cluster_id="elsewhere"))
    with elsewhere.create() as another, Coordinator(another, "c") as coordinator:
        coordinator.commit()
        with pytest.raises(IdentityChanged):
            Coordinator(log, "c", grant=coordinator.task().grant)
