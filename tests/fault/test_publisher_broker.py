"""A broker that dies, or stands still, in the middle of transactions: each committed message comes once, in order."""

import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from statelog.errors import OutcomeUnknown, PersistFailed, Unavailable
from statelog.producer import Writer
from statelog.reading import OutputReader
from statelog.tables import TableSettings
from statelog.tables.publishing.publisher import Publisher
from tests.support.rigs.kafka import read_committed, spec_of
from tests.support.rigs.log import LogRig, ports_closed, real_rig
from tests.support.services.broker import OwnBroker
from tests.support.told import lines

pytestmark = pytest.mark.broker
_COMMITS = 60
_LIVES = 12


class _Sender:
    """Commits messages of ascending numbers, in as many lives as it takes, and strikes at some of them."""

    def __init__(self, rig: LogRig, topic: str, strike: "dict[int, threading.Thread]") -> None:
        self._rig, self._topic, self._strikes = rig, topic, strike
        self.next = 0
        self.known: list[int] = []

    def live(self) -> None:
        """Live until all is committed and published, or an error."""
        settings = TableSettings(outputs_patience_s=60.0)
        with self._rig.open() as log, Writer(log, "w") as writer:
            publisher = Publisher(log, writer, settings, reader=OutputReader(log, "w"))
            try:
                publisher.wake()
                while self.next < _COMMITS:
                    self._commit(writer, publisher)
            finally:
                publisher.close(60.0 if self.next == _COMMITS else 0.0, is_settled=self.next == _COMMITS)
            publisher.check()

    def _commit(self, writer: Writer, publisher: Publisher) -> None:
        strike = self._strikes.pop(self.next, None)
        if strike is not None:
            strike.start()
        number, self.next = self.next, self.next + 1
        publisher.claim()
        writer.send(self._topic, b"%d" % number)
        writer.put(b"n", b"%d" % number)
        writer.commit()
        self.known.append(number)
        publisher.wake(1)
        publisher.check()
        time.sleep(0.02)


@pytest.mark.parametrize("strike", ["kill", "pause"])
def test_a_broker_that_goes_and_comes_back(own_broker: OwnBroker, log_name: str, tmp_path: Path, strike: str) -> None:
    """Messages of known commits come once and in order; so do those of commits of unknown outcome, if at all."""

    def kill() -> None:
        own_broker.kill()
        own_broker.restart()

    def pause() -> None:
        own_broker.pause()
        time.sleep(8.0)
        own_broker.resume()

    act = kill if strike == "kill" else pause
    with ports_closed(real_rig(log_name, own_broker.bootstrap, tmp_path / "root")) as rig, lines():
        rig.create().close()
        topic = f"{log_name}-out"
        with closing(rig.kafka()) as kafka:
            kafka.create_topic(spec_of(topic, 1))
        strikes = [threading.Thread(target=act, daemon=True) for _ in range(2)]
        sender = _Sender(rig, topic, {15: strikes[0], 40: strikes[1]})
        for _ in range(_LIVES):
            with suppress(Unavailable, OutcomeUnknown, PersistFailed):
                sender.live()
                break
            time.sleep(1.0)
        for one in strikes:
            one.join(120.0)
        found = [int(one.value or b"") for one in read_committed(own_broker.bootstrap, topic, 0)]
    assert found == sorted(set(found))
    assert set(sender.known) <= set(found)
    assert len(found) - len(sender.known) <= _LIVES
