"""The hold of a stream's position: a lease that moves and is re-created, or a subscription."""

from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import BrokerUnavailable, NotFound, ReaderInUse
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.reading.claims import list_leases, list_subscriptions
from statelog.schemas.ledger.fold import Folded
from statelog.spark.options import Limit, stream_options
from statelog.spark.stream_offset import StreamOffset
from statelog.spark.stream_planner import StreamHold, StreamPlanner
from tests.support.rigs.log import TwinLog, settings_for

_OPTIONS = {"log": "l", "root": "r", "kafka.bootstrap.servers": "b", "startingPosition": "latest"}


def _base(log: Log, position: int) -> Folded:
    with log.replay(None, position) as ledger:
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
    """A stream has one lease at a time.

    It moves at most twice a minute, is re-created hourly, and is removed at the end.
    """
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
    """A reading whose take-up failed tries again later. Until then another one may take its reader id."""
    _, log, hold = _scene(readerId="lake")

    def fail() -> Folded:
        raise BrokerUnavailable("no answer")

    with pytest.raises(BrokerUnavailable):
        hold.take_up(fail)
    hold.take_up(lambda: _base(log, 0))
    (stored,) = list_subscriptions(log.store).files
    assert stored.subscription.is_taken_up


def test_no_lease_is_none() -> None:
    """With leaseSeconds 0, nothing is on the store."""
    _, log, hold = _scene(leaseSeconds="0")
    hold.move(0, Folded)
    assert list_leases(log.store) == []


def test_a_subscription_is_written_when_it_has_to_be() -> None:
    """A subscription is written at the start and once Spark has it, then twice a minute at most, or hourly if idle."""
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
    kept = hold.subscribed_base()
    assert kept is not None
    assert Folded(kept.state, kept.place) == _base(log, end)
    hold.close()
    assert len(list_subscriptions(log.store).files) == 1, "a subscription stays"


@pytest.mark.parametrize("held", [{"readerId": "lake"}, {}])
def test_a_query_that_lags_goes_on_from_what_it_holds(held: dict[str, str], tmp_path: Path) -> None:
    """A lagging query continues from its hold, with all snapshots above it and the ledger truncated right up to it."""
    twin = TwinLog()
    for number in range(6):
        twin.write({b"k": b"%d" % number})
    options, one = stream_options({**_OPTIONS, "startingPosition": "earliest", **held}), Limit(changes=1)
    with twin.open() as log, Environment(clock=twin.clock).run(StreamPlanner, log, options) as planner:
        begun = read = planner.begin()
        for _ in range(5):
            begun, read = read, planner.end_of(read, one)
            assert len(planner.plan(begun, read, 0).commits) == 1
            twin.now_s += 40
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
            twin.write({b"k": b"newer"})
        assert 0 < log.kafka.offsets(log.ledger_topic, [0])[0].start <= begun.position


@pytest.mark.parametrize("dies", [False, True])
def test_a_reader_whose_place_is_gone_begins_anew_with_its_id(dies: bool, tmp_path: Path) -> None:
    """A reader whose position was truncated in spite of its hold begins a new reading with its id.

    A foreign one is refused.

    It does so also if the query dies before the reset is in Spark's checkpoint.
    """
    twin = TwinLog()
    twin.write({b"k": b"0"})
    wanted = {"startingPosition": "earliest", "readerId": "lake", "onTruncation": "snapshot"}
    options = stream_options({**_OPTIONS, **wanted})
    with twin.open() as log, StreamPlanner(log, options) as planner:
        read = planner.end_of(planner.begin())
        planner.plan(planner.begin(), read, 0)
        planner.end_of(read)
        twin.write({b"k": b"1"})
        twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
        newest = log.manifests.newest()
        assert newest is not None
        twin.cluster.truncate(log.ledger_topic, 0, newest.position)
        for partition, offsets in log.data_offsets().items():
            twin.cluster.truncate(log.data_topic, partition, offsets.end)
    if dies:
        with twin.open() as log, StreamPlanner(log, options) as planner:
            assert planner.end_of(read).is_reset
    with twin.open() as log, StreamPlanner(log, options) as planner:
        anew = planner.end_of(read)
        assert (anew.is_reset, anew.position) == (True, newest.position)
        planner.plan(read, anew, 0)
        assert planner.end_of(anew) == anew
        with pytest.raises(ReaderInUse):
            StreamPlanner(log, options).end_of(planner.begin())


def test_a_driver_that_stood_still_ends_no_subscription_of_its_successor(tmp_path: Path) -> None:
    """A delayed driver does not end its successor's subscription.

    Both share the reading. The records that the first one lacks were read by the second: that is no loss, and the
    second one's hold stays.
    """
    twin = TwinLog()
    wanted = {"startingPosition": "earliest", "readerId": "lake", "onTruncation": "snapshot"}
    options = stream_options({**_OPTIONS, **wanted})
    with twin.open() as log, Environment(clock=twin.clock).run(StreamPlanner, log, options) as planner:
        read = old = planner.begin()
        for number in range(3):
            twin.write({b"k": b"%d" % number})
            old, read = read, planner.end_of(read)
            planner.plan(old, read, 0)
            twin.now_s += 60
        planner.end_of(read)
        for value in (b"newer", b"newest"):
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
            twin.write({b"k": value})
        twin.cluster.truncate(log.ledger_topic, 0, read.position)
        with pytest.raises(ReaderInUse):
            StreamPlanner(log, options).end_of(old)
        (stored,) = list_subscriptions(log.store).files
        assert (stored.subscription.position, stored.subscription.ended) == (read.position, "")
        assert not planner.end_of(read).is_reset


@pytest.mark.parametrize("rests_s", [10, 4000])
def test_two_drivers_of_one_query_keep_what_they_hold(rests_s: float, tmp_path: Path) -> None:
    """Two drivers of one query preserve the hold of the later one, with the log truncated up to it.

    A delayed driver at the same position continues from the subscription. One behind it is refused, and moves nothing
    back. The second driver continues, also after a restart.
    """
    twin = TwinLog()
    wanted = {"startingPosition": "earliest", "readerId": "lake", "onTruncation": "snapshot"}
    options, environment = stream_options({**_OPTIONS, **wanted}), Environment(clock=twin.clock)

    def goes_on(planner: StreamPlanner, read: StreamOffset, *, after_s: float = 60) -> StreamOffset:
        twin.write({b"k": b"%d" % read.position})
        found = planner.end_of(read)
        assert (len(planner.plan(read, found, 0).commits), found.is_reset) == (1, False)
        twin.now_s += after_s
        return found

    with twin.open() as log, environment.run(StreamPlanner, log, options) as first:
        begun = goes_on(first, first.begin())
        read = goes_on(first, begun, after_s=rests_s)
        with twin.open() as other, environment.run(StreamPlanner, other, options) as second:
            second.end_of(read)
            for _ in range(3):
                twin.write({b"k": b"newer"})
                twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
        assert begun.position < log.kafka.offsets(log.ledger_topic, [0])[0].start <= read.position
        twin.now_s += 40
        if rests_s > 3600:
            with pytest.raises(ReaderInUse):
                first.end_of(begun)
        else:
            assert not first.end_of(read).is_reset
    (stored,) = list_subscriptions(twin.open().store).files
    assert (stored.subscription.position, stored.subscription.ended) == (read.position, "")
    with twin.open() as log, environment.run(StreamPlanner, log, options) as second:
        found = second.end_of(read)
        assert (len(second.plan(read, found, 0).commits), found.is_reset) == (3, False)


@pytest.mark.parametrize("start", ["snapshot", "earliest"])
def test_a_snapshot_that_goes_while_it_is_claimed_is_no_beginning(start: str, tmp_path: Path) -> None:
    """A snapshot that is removed while a delayed process claims it is no beginning.

    Spark's checkpoint never gets an unreadable start: the next incarnation begins with a newer snapshot, also after a
    reset.
    """
    twin = TwinLog()
    twin.write({b"k": b"0"})
    stalled = [False]

    def roll_up() -> None:
        for _ in range(3):
            twin.write({b"k": b"1"})
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path))

    def stall(method: str, path: str) -> None:
        if stalled[0] and method == "put" and path.startswith("leases/"):
            stalled[0] = False
            roll_up()

    options = stream_options({**_OPTIONS, "startingPosition": start, "onTruncation": "snapshot"})
    with twin.open(stall) as log, StreamPlanner(log, options) as planner:
        read = planner.begin()
        roll_up()
        read, stalled[0] = (planner.begin() if start == "snapshot" else read), True
        with pytest.raises(NotFound, match="dropped at the same moment"):
            planner.end_of(read)
        found = planner.end_of(planner.begin() if start == "snapshot" else read)
        assert planner.plan(read, found, 0).manifest is not None
