"""`statelog dev start | stop | status` on a real broker."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statelog.testing import dev, process
from statelog.testing.broker import cache_directory
from statelog.testing.dev import start, status, stop
from statelog.testing.node import KAFKA_VERSION

pytestmark = pytest.mark.broker


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of this test's development broker; jars and classes are the user's cached ones, if any."""
    for cached in cache_directory().glob(f"kafka-{KAFKA_VERSION}*"):
        (tmp_path / cached.name).symlink_to(cached)
    return tmp_path


def test_two_starts_at_once_give_one_broker(directory: Path) -> None:
    """Of two starts at the same moment one starts the broker and the other finds it.

    Stop ends it for both, and retains its classes for the next.
    """
    for classes in directory.glob("*.jsa"):
        classes.unlink()
    try:
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(start, [directory] * 2, [0, 0])
        assert first.pid == second.pid
        assert {first.was_running, second.was_running} == {True, False}
        seen = status(directory)
        assert (seen.reason, seen.bootstrap, seen.pid) == ("", first.bootstrap, first.pid)
    finally:
        stopped = stop(directory)
    assert stopped
    assert list(directory.glob("*.jsa"))
    assert first.pid is not None
    assert process.identify(first.pid) is None
    assert status(directory).pid is None
    assert not stop(directory)


def test_a_killed_broker_is_started_again(directory: Path) -> None:
    """After a SIGKILL the dead broker's note is ignored, and start brings up a new one on the same data."""
    first = start(directory, 0)
    try:
        running = dev.read_running(directory)
        assert running is not None
        process.kill(running.process_id)
        assert status(directory).pid is None
        second = start(directory, 0)
        assert not second.was_running
        assert second.pid != first.pid
    finally:
        stop(directory)
