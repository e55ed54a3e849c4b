"""The subscription of a table's messages: truncation waits for what is not published, and for nothing else."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from statelog.environment import inline
from statelog.log import Log
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer import Writer
from statelog.reading import OutputReader
from statelog.schemas.snapshot.claims import SubscriptionCap
from statelog.tables import TableSettings
from statelog.tables.publishing.publisher import Publisher
from statelog.testing import Twin
from tests.support.rigs.log import settings_for
from tests.support.rigs.publishing import LOG, OUT, Life, new_twin, values

_KEYS = (b"other-%d" % number for number in count())


def _round(twin: Twin, scratch: Path, idle_s: float = 1e9) -> CompletedRound:
    """Roll up what is committed, and truncate what nothing needs."""
    settings = settings_for(scratch, subscriptions=SubscriptionCap(idle_s=idle_s))
    with twin.environment(), Log.open(LOG, twin.where()) as log:
        with Writer(log, "other", partitions=[1]) as writer:
            writer.append(3, next(_KEYS), b"1")
            writer.commit()
        found = run_round(log, settings)
    assert isinstance(found, CompletedRound)
    return found


def _ledger_start(twin: Twin) -> int:
    return twin.cluster.log(f"{LOG}.ledger", 0).start


@contextmanager
def _owning(twin: Twin, *, closes: bool) -> Generator[Life]:
    """Live on partition 0 alone, so that another writer may have the other."""
    with (
        twin.environment(start=inline),
        Log.open(LOG, twin.where()) as log,
        Writer(log, "w", partitions=[0]) as writer,
    ):
        publisher = Publisher(log, writer, TableSettings(), reader=OutputReader(log, "w"))
        yield Life(twin, log, writer, publisher)
        if closes:
            publisher.close(is_settled=True)


def test_truncation_waits_for_what_is_not_published(tmp_path: Path) -> None:
    """Rounds keep what a killed owner has left, however many come; the next owner publishes it, and lets go."""
    twin = new_twin("caller")
    with _owning(twin, closes=False) as life:
        position = life.commit(b"1", wakes=False).offset
        life.writer.send(OUT, bytes(1 << 16))
        life.writer.commit()
    for _ in range(5):
        _round(twin, tmp_path)
    assert _ledger_start(twin) <= position
    with _owning(twin, closes=True) as life:
        life.publisher.wake()
        life.publisher.check()
        assert values(twin) == [b"1", bytes(1 << 16)]
        life.commit(b"2")
    for _ in range(3):
        _round(twin, tmp_path)
    assert _ledger_start(twin) > position + 3
    with _owning(twin, closes=True) as life:
        life.publisher.wake()
        life.commit(b"3")
        life.publisher.check()
    assert values(twin) == [b"1", bytes(1 << 16), b"2", b"3"]


def test_the_hold_moves_on_while_the_table_is_open(tmp_path: Path) -> None:
    """An open table that publishes, or commits without messages, does not hold the log for ever."""
    twin = new_twin("caller")
    with _owning(twin, closes=True) as life:
        life.commit(b"1")
        first = _ledger_start(twin)
        for _ in range(4):
            twin.clock.advance(61.0)
            life.publisher.check()
            _round(twin, tmp_path)
        assert _ledger_start(twin) > first + 3
        life.commit(b"2")
        life.publisher.check()
    assert values(twin) == [b"1", b"2"]


def test_no_cap_ends_a_hold_on_messages(tmp_path: Path) -> None:
    """A round says that a subscription over its idle cap still holds messages, and ends it only once it holds none."""
    twin = new_twin("caller")
    with _owning(twin, closes=False) as life:
        life.commit(b"1")
        position = life.commit(b"2", wakes=False).offset
    _round(twin, tmp_path)
    twin.clock.advance(1000.0)
    with _warning("still holds messages that are not published, from position"):
        assert _round(twin, tmp_path, idle_s=10.0).cleanup.capped == ()
    assert _ledger_start(twin) <= position
    with _owning(twin, closes=False) as life:
        life.publisher.wake()
        assert values(twin) == [b"1", b"2"]
    twin.clock.advance(1000.0)
    assert [one.reader for one in _round(twin, tmp_path, idle_s=10.0).cleanup.capped] == ["outputs.w"]
    with _owning(twin, closes=True) as life:
        life.publisher.wake()
        life.commit(b"3")
        life.publisher.check()
    assert values(twin) == [b"1", b"2", b"3"]


@contextmanager
def _warning(match: str) -> Generator[None]:
    """Expect a line of the materializer."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign] # a function is enough
    logger = logging.getLogger("statelog.materializer")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert any(match in one for one in found), found
