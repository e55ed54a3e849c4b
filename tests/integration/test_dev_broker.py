"""`statelog dev start | stop | status` on a real broker."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statelog.testing import dev, process
from statelog.testing.broker import cache_directory
from statelog.testing.dev import DevSettings, start, status, stop
from statelog.testing.node import KAFKA_VERSION

pytestmark = pytest.mark.broker


@pytest.fixture
def settings(tmp_path: Path) -> DevSettings:
    """A development broker of this test alone; jars and classes are those of the user's cache, if they are there."""
    for cached in cache_directory().glob(f"kafka-{KAFKA_VERSION}*"):
        (tmp_path / cached.name).symlink_to(cached)
    return DevSettings(directory=tmp_path, port=0)


def test_two_starts_at_once_give_one_broker(settings: DevSettings) -> None:
    """Of two starts at the same moment one starts the broker and the other finds it; stop ends it for both, and
    keeps its classes for the next.
    """
    for classes in settings.directory.glob("*.jsa"):
        classes.unlink()
    try:
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(start, [settings, settings])
        assert first.pid == second.pid
        assert {first.was_running, second.was_running} == {True, False}
        seen = status(settings)
        assert (seen.reason, seen.bootstrap, seen.pid) == ("", first.bootstrap, first.pid)
    finally:
        stopped = stop(settings)
    assert stopped
    assert list(settings.directory.glob("*.jsa"))
    assert first.pid is not None
    assert process.identify(first.pid) is None
    assert status(settings).pid is None
    assert not stop(settings)


def test_a_killed_broker_is_started_again(settings: DevSettings) -> None:
    """After a SIGKILL the note of the dead broker is ignored, and start brings up a new one on the same data."""
    first = start(settings)
    try:
        running = dev.read_running(settings.directory)
        assert running is not None
        process.kill(running.process_id)
        assert status(settings).pid is None
        second = start(settings)
        assert not second.was_running
        assert second.pid != first.pid
    finally:
        stop(settings)
