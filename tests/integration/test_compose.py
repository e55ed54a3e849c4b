"""The stack of docker-compose.yml: a log goes through Kafka, the materializer daemon and S3, and comes back."""

from collections.abc import Callable

import pytest

from statelog.errors import AlreadyExists
from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.schemas.names import DESCRIPTOR_PATH
from statelog.storage.log.log import Log
from statelog.testing.process import wait_for
from tests.support.services.broker import choices
from tests.support.services.compose import Stack, compose_reason, open_stack

pytestmark = [pytest.mark.docker, pytest.mark.broker, pytest.mark.timeout(540)]

COMMITS = 3
KEYS = 1000


@pytest.fixture
def stack_can_run() -> None:
    """A machine with an engine and docker compose; on another one the run says what it did not test, and why."""
    reason = compose_reason()
    if reason:
        choices.append(f"stack of docker-compose.yml: NOT TESTED in this run: {reason}")
        pytest.skip(f"docker-compose.yml is not tested in this run: {reason}")
    choices.append("stack of docker-compose.yml: built and brought up by docker compose")


def test_a_log_goes_through_the_stack(stack_can_run: None) -> None:
    """Commits on Kafka become snapshots on S3, are truncated, and come back; the daemon exits with 0; nothing stays."""
    with open_stack() as stack:
        expect(stack, lambda: "waiting for the log example" in stack.compose("logs", "materializer"))
        stack.statelog("init", "example", "--partitions", "2", "--key-groups", "16")
        with stack.open_log() as log:
            check_conditional_put(log)
            model = commit_and_roll_up(log, stack)
            check_recovery(log, model)
        stack.compose("stop", "materializer")
        assert stack.exit_code("materializer") == 0, stack.compose("logs", "materializer")
        assert len(stack.leftovers()) >= 5, "three containers, two volumes, a network"
    assert stack.leftovers() == []


def check_conditional_put(log: Log) -> None:
    """The store refuses to create a file that is there."""
    log.store.check()
    before = log.store.read(DESCRIPTOR_PATH)
    with pytest.raises(AlreadyExists):
        log.store.put_if_absent(DESCRIPTOR_PATH, b"another")
    assert log.store.read(DESCRIPTOR_PATH) == before


def commit_and_roll_up(log: Log, stack: Stack) -> dict[bytes, bytes]:
    """Commit changes, each time when the daemon has rolled up the ones before; returns what the state must be."""
    model: dict[bytes, bytes] = {}
    with Writer(log, "test") as writer:
        for checkpoint in range(1, COMMITS + 1):
            for number in range(checkpoint * 100, KEYS):
                model[b"k%d" % number] = b"v%d.%d" % (checkpoint, number)
                writer.put(b"k%d" % number, model[b"k%d" % number])
            del model[b"k%d" % (KEYS - checkpoint)]
            writer.delete(b"k%d" % (KEYS - checkpoint))
            writer.commit(checkpoint, {"source": str(checkpoint)})
            await_snapshot(log, stack)
    expect(stack, lambda: all(offsets.start > 0 for offsets in log.data_offsets().values()))
    return model


def await_snapshot(log: Log, stack: Stack) -> None:
    """Return when a snapshot covers all that is committed."""
    position = log.describe().state.position
    expect(stack, lambda: covered(log) >= position)


def check_recovery(log: Log, model: dict[bytes, bytes]) -> None:
    """What is recovered is the model, and was read from the runs on S3."""
    with recover(log) as recovery:
        assert recovery.to_dict() == model
        statistics = recovery.statistics()
        assert statistics.run_rows >= len(model)
        assert statistics.tail_changes == 0
        last = recovery.last_commit("test")
    assert last is not None
    assert last.metadata == {"source": str(COMMITS)}


def covered(log: Log) -> int:
    """The position of the newest snapshot, 0 before the first."""
    newest = log.manifests.newest()
    return newest.manifest.position if newest else 0


def expect(stack: Stack, condition: Callable[[], bool]) -> None:
    """Wait for what the daemon is to do; if it does not, show what it says."""
    if not wait_for(condition, 60.0, pause_s=0.2):
        pytest.fail(stack.compose("logs", "materializer"))
