"""The spare producer of a log is made ahead of need, re-created when it is old or broken, and never handed out then."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from statelog.errors import BrokerUnavailable
from statelog.kafka.port import Producer
from statelog.log.producers import WarmProducer
from statelog.testing.kafka import MemoryKafka, MemoryProducer


class _Client(MemoryProducer):
    """A producer whose soundness the test sets."""

    is_closed = False
    is_well = True
    looked_at: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__(MemoryKafka())

    @property
    def is_sound(self) -> bool:
        """The soundness that the test has set."""
        self.looked_at()
        return self.is_well

    def close(self) -> None:
        """Record the close."""
        self.is_closed = True
        super().close()


@dataclass
class _Maker:
    """A factory that makes clients until the test stops it."""

    made: list[_Client] = field(default_factory=list[_Client])
    can: bool = True

    def __call__(self) -> Producer:
        if not self.can:
            raise BrokerUnavailable("away")
        self.made.append(_Client())
        return self.made[-1]


def test_it_is_kept_and_taken_once() -> None:
    """There is one spare at most. It is handed out once, and made again after a pause."""
    make = _Maker()
    spare = WarmProducer(make)
    assert spare.take(0.0) is None
    for now_s in range(100):
        spare.keep(float(now_s))
    assert len(make.made) == 1
    assert spare.take(100.0) is make.made[0]
    assert spare.take(100.0) is None
    assert not make.made[0].is_closed, "it belongs to the taker"
    spare.keep(101.0)
    assert len(make.made) == 2
    assert spare.take(101.0) is make.made[1]
    spare.keep(102.0)
    assert len(make.made) == 2, "repeated failures of an Open do not make a client each time"


def test_an_old_one_is_made_anew() -> None:
    """An old spare is re-created before a network silently drops its connection.

    One that nobody checked is not handed out.
    """
    make = _Maker()
    spare = WarmProducer(make)
    spare.keep(0.0)
    spare.keep(179.0)
    assert len(make.made) == 1
    spare.keep(180.0)
    assert [one.is_closed for one in make.made] == [True, False]
    assert spare.take(360.0) is None
    assert make.made[1].is_closed


def test_one_that_went_bad_is_never_taken() -> None:
    """A broken spare is re-created, each time after a longer pause: the cause, such as a missing right, may persist."""
    make = _Maker()
    spare, made_s = WarmProducer(make), list[int]()
    for now_s in range(4000):
        before = len(make.made)
        spare.keep(float(now_s))
        if len(make.made) > before:
            made_s.append(now_s)
            make.made[-1].is_well = False
    assert made_s[:6] == [0, 10, 30, 70, 150, 310]
    assert len(made_s) == 9
    assert spare.take(4000.0) is None
    assert all(one.is_closed for one in make.made)


def test_one_that_was_closed_under_it_is_never_taken() -> None:
    """A spare that was closed meanwhile, or cannot be asked, as in a fork, is never handed out."""
    make = _Maker()
    spare = WarmProducer(make)
    spare.keep(0.0)
    make.made[0].close()
    assert spare.take(1.0) is None


def test_where_none_can_be_made_there_is_none() -> None:
    """A failing factory leaves no spare and raises nothing. As soon as it works again there is one."""
    make = _Maker(can=False)
    spare = WarmProducer(make)
    spare.keep(0.0)
    assert spare.take(0.0) is None
    make.can = True
    spare.keep(10.0)
    assert spare.take(10.0) is make.made[0]


def test_close() -> None:
    """Close releases the spare, and nothing the second time."""
    make = _Maker()
    spare = WarmProducer(make)
    spare.keep(0.0)
    spare.close()
    spare.close()
    assert make.made[0].is_closed


@pytest.mark.parametrize("is_new", [True, False])
def test_one_that_comes_back_behind_the_end_is_closed(is_new: bool) -> None:
    """A spare is closed if the log was closed while a thread made or checked it."""
    make = _Maker()

    def made() -> Producer:
        if is_new:
            spare.close()
        return make()

    spare = WarmProducer(made)
    spare.keep(0.0)
    make.made[0].looked_at = spare.close
    spare.keep(1.0)
    assert all(one.is_closed for one in make.made)
