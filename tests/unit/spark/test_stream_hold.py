"""What holds a stream's place: a lease that moves and is made anew, or a subscription, written when it has to be."""

from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import BrokerUnavailable
from statelog.materializer.round import run_round
from statelog.schemas.ledger.fold import Folded
from statelog.spark.options import Limit, stream_options
from statelog.spark.stream_planner import StreamHold, StreamPlanner
from statelog.storage.claims import list_leases, list_subscriptions
from statelog.storage.log.log import Log
from tests.support.rigs.log import TwinLog, settings_for

_OPTIONS = {"log": "l", "root": "r", "kafka.bootstrap.servers": "b", "startingPosition": "latest"}


def _base(log: Log, position: int) -> Folded:
    with log.ledger.client(None, position) as ledger:
        return ledger.folded


def _scene(**options: str) -> tuple[TwinLog, Log, StreamHold]:
    twin = TwinLog()
    for number in range(3):
        twin.write({b"k": str(number).encode()})
    log = twin.open()
    return (
        twin,
        log,
        Environment(clock=twin.clock).run(StreamHold, log, stream_options({**_OPTIONS, **options}), "one"),
    )


def test_a_lease_moves_with_the_stream_and_never_grows_old() -> None:
    """One lease at a time: moved at most twice a minute, made anew every hour, gone at the end."""
    twin, log, hold = _scene()
    first, later = log.ledger.end() - 2, log.ledger.end()
    hold.move(first, lambda: _base(log, first))
    hold.move(later, lambda: _base(log, later))
    (held,) = list_leases(log.store)
    assert held.lease.position == first, "too early to move"
    twin.now_s += 30
    hold.move(later, lambda: _base(log, later))
    (held,) = list_leases(log.store)
    assert (held.lease.position, held.lease.manifest_number) == (later, 0)
    assert set(held.lease.next_offsets) == {0, 1, 2}
    twin.now_s += 3600
    hold.move(later, lambda: _base(log, later))
    (again,) = list_leases(log.store)
    assert again.created_s == held.created_s + 3600
    hold.close()
    assert list_leases(log.store) == []


def test_a_reading_that_could_not_be_taken_up_is_taken_up_later() -> None:
    """Until it is, another one may have its reader id: what failed once is tried again."""
    _, log, hold = _scene(readerId="lake")

    def fail() -> Folded:
        raise BrokerUnavailable("no answer")

    with pytest.raises(BrokerUnavailable):
        hold.take_up(fail)
    hold.take_up(lambda: _base(log, 0))
    (stored,) = list_subscriptions(log.store).files
    assert stored.subscription.is_taken_up


def test_no_lease_is_none() -> None:
    """With leaseSeconds 0 nothing lies on the store."""
    _, log, hold = _scene(leaseSeconds="0")
    hold.move(0, Folded)
    assert list_leases(log.store) == []


def test_a_subscription_is_written_when_it_has_to_be() -> None:
    """At once when the reading begins and when Spark has it, then at most twice a minute, and hourly while it rests."""
    twin, log, hold = _scene(readerId="lake")
    end = log.ledger.end()
    numbers: list[int] = []
    for wait_s, position in ((0, 0), (0, 0), (29, end), (1, end), (1800, end), (1800, end)):
        twin.now_s += wait_s
        hold.move(position, lambda at=position: _base(log, at))  # type: ignore[misc]  # a default binds the loop's value
        if not numbers:
            hold.take_up(lambda: _base(log, 0))
            hold.take_up(lambda: _base(log, 0))
        (stored,) = list_subscriptions(log.store).files
        numbers.append(stored.subscription.number)
    assert numbers == [2, 2, 2, 3, 3, 4]
    assert (stored.subscription.position, stored.subscription.is_taken_up) == (end, True)
    kept = hold.kept_base()
    assert kept is not None
    assert Folded(kept.state, kept.place) == _base(log, end)
    hold.close()
    assert len(list_subscriptions(log.store).files) == 1, "a subscription stays"


@pytest.mark.parametrize("held", [{"readerId": "lake"}, {}])
def test_a_query_that_lags_goes_on_from_what_it_holds(held: dict[str, str], tmp_path: Path) -> None:
    """All snapshots that are left lie above it, and the ledger is truncated right up to what it held last, with the
    record below that: it reads on from there, and moves its hold.
    """
    twin = TwinLog()
    for number in range(6):
        twin.write({b"k": b"%d" % number})
    options, one = stream_options({**_OPTIONS, "startingPosition": "earliest", **held}), Limit(changes=1)
    with twin.open() as log, Environment(clock=twin.clock).run(StreamPlanner, log, options) as planner:
        read = planner.begin()
        for _ in range(5):
            begun, read = read, planner.end_of(read, one)
            assert len(planner.plan(begun, read, 0).commits) == 1
            twin.now_s += 40
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
            twin.write({b"k": b"newer"})
        assert 0 < log.kafka.offsets(log.ledger_topic, [0])[0].start <= begun.position
