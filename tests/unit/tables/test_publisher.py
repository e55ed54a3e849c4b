"""A table's publisher on the twins: every message of every commit once, in order, whatever fails and whoever dies."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress

import pytest

from statelog.environment import CrashPoint, start_thread
from statelog.errors import BeyondEnd, Fenced, PublishFailed, StatelogError
from statelog.log import Log, LogOptions
from statelog.schemas.snapshot.claims import PUBLISHED
from statelog.tables.publishing import publisher as publishing
from statelog.tables.publishing.publisher import Publisher
from statelog.testing import Crash, Twin, crash_at
from statelog.testing.faults import LOST, TRUE, UNAVAILABLE, Answer, Call
from statelog.testing.store import Fault, no_store_faults
from tests.support.rigs.publishing import (
    GROUP,
    LOG,
    OUT,
    Outputs,
    living,
    marks,
    new_twin,
    stored,
    subscriptions,
    values,
)
from tests.support.told import lines, told
from tests.support.waiting import wait_for

_STEPS = ("outputs-started", "outputs-sent", "outputs-committed")


@pytest.fixture
def twin() -> Twin:
    """Return a cluster with a log and a target topic of one partition."""
    return new_twin()


def test_a_commit_is_published_with_its_place(twin: Twin) -> None:
    """Messages come in order, each with its mark, and the group's offset is the position behind the commit."""
    with living(twin) as life:
        first = life.commit(b"1", b"2")
        second = life.commit(b"3")
        assert values(twin) == [b"1", b"2", b"3"]
        assert marks(twin) == [
            b"log/w/%d/0" % (first.offset + 1),
            b"log/w/%d/1" % (first.offset + 1),
            b"log/w/%d/0" % (second.offset + 1),
        ]
        assert stored(twin).offset == second.offset + 1
        found = life.publisher.statistics()
        assert (found.published_position, found.published_messages) == (second.offset + 1, 3)
        assert (found.unpublished_commits, found.unpublished_messages, found.oldest_s) == (0, 0, 0.0)


def test_the_next_owner_publishes_the_rest(twin: Twin) -> None:
    """What a killed owner has committed and not published, the next one publishes, behind what it has."""
    with living(twin, closes=False) as life:
        life.commit(b"1")
        life.commit(b"2", wakes=False)
        life.commit(b"3", b"4", wakes=False)
    with living(twin) as life:
        life.publisher.wake()
        assert values(twin) == [b"1", b"2", b"3", b"4"]
        life.commit(b"5")
    with living(twin) as life:
        life.publisher.wake()
    assert values(twin) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_close_publishes_what_is_committed(twin: Twin) -> None:
    """A close publishes, and ends the subscription; a later life begins a new one, and publishes nothing again."""
    with living(twin) as life:
        life.commit(b"1", wakes=False)
        ((reader, position, ended),) = subscriptions(life)
        assert (reader, ended) == ("outputs.w", "")
    assert values(twin) == [b"1"]
    with living(twin) as life:
        assert [(reader, PUBLISHED)] == [(found, why) for found, _, why in subscriptions(life)]
        life.publisher.wake()
        assert values(twin) == [b"1"]
        life.commit(b"2")
        ((_, later, ended),) = subscriptions(life)
        assert (later > position, ended) == (True, "")
    assert values(twin) == [b"1", b"2"]


def test_a_life_without_messages_makes_no_request(twin: Twin) -> None:
    """A publisher that has nothing to publish makes no producer, and writes no file."""
    with living(twin) as life:
        life.commit(b"1")
    asked: list[str] = []

    def hook(call: Call) -> Answer:
        asked.append(call.method)
        return TRUE

    with living(twin) as life:
        twin.cluster.questions = hook
        life.writer.put(b"a", b"b")
        life.writer.commit()
        life.publisher.wake()
        assert [ended for _, _, ended in subscriptions(life)] == [PUBLISHED]
    assert not {"init_transactions", "published", "send_offsets"} & {*asked}


@pytest.mark.parametrize("outputs", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("step", _STEPS)
def test_a_death_after_each_step(twin: Twin, step: str, times: int, outputs: Outputs) -> None:
    """After a death at any step the next life goes on exactly there; without transactions it may repeat, in order."""
    expected: list[bytes] = []
    for number in range(4):
        crash: CrashPoint = crash_at(step, times) if number == 1 else lambda _: None
        with living(twin, closes=number == 3, outputs=outputs, crash=crash) as life:
            with suppress(Crash):
                life.publisher.wake()
                for one in range(3):
                    life.commit(b"%d.%d" % (number, one))
                    life.publisher.check()
            expected += life.committed
    if outputs == "exactly-once":
        assert values(twin) == expected
    else:
        seen = dict.fromkeys(zip(marks(twin), values(twin), strict=True))
        assert [value for _, value in seen] == expected


def _lives(twin: Twin) -> list[bytes]:
    """Live three times, with and without a close. Return what was committed."""
    expected: list[bytes] = []
    for number in range(3):
        with suppress(StatelogError), living(twin, closes=number % 2 == 1) as life:
            try:
                life.publisher.wake()
                for one in range(2):
                    life.commit(b"%d.%d" % (number, one), wakes=one == 0 or number % 2 == 0)
                    life.publisher.check()
            finally:
                expected += life.committed
    twin.cluster.questions, twin.store_faults = None, no_store_faults
    with living(twin) as life:
        life.publisher.wake()
        life.publisher.check()
    return expected


def _kafka_calls() -> list[str]:
    """Return the methods of all calls to Kafka of the lives without a fault."""
    twin, asked = new_twin(), list[str]()

    def hook(call: Call) -> Answer:
        asked.append(call.method)
        return TRUE

    twin.cluster.questions = hook
    _lives(twin)
    return asked


@pytest.mark.parametrize("answer", [UNAVAILABLE, LOST], ids=["before", "after"])
def test_each_operation_of_kafka_fails(answer: Answer) -> None:
    """Each call to Kafka fails before or after its effect: every committed message is published once, in order.

    A life may end by it; a commit of unknown outcome counts if the next life finds it, as the messages then show.
    """
    calls = _kafka_calls()
    assert {"init_transactions", "published", "flush", "send_offsets", "commit_transaction"} <= {*calls}
    for failing in range(len(calls)):
        twin, count = new_twin(), -1

        def hook(_: Call, failing: int = failing) -> Answer:
            nonlocal count
            count += 1
            return answer if count == failing else TRUE

        twin.cluster.questions = hook
        with lines():
            expected = _lives(twin)
        found = values(twin)
        assert len({*found}) == len(found), (failing, calls[failing])
        assert [one for one in found if one in expected] == expected, (failing, calls[failing])
        assert len(found) <= len(expected) + 1, (failing, calls[failing])


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_each_operation_of_the_store_fails(fault: Fault) -> None:
    """Each call to the store fails before or after its effect, with the same result."""
    twin, asked = new_twin(), list[str]()
    twin.store_faults = lambda method, _: asked.append(method)
    _lives(twin)
    assert len(asked) > 20
    for failing in range(len(asked)):
        twin, count = new_twin(), -1

        def hook(method: str, path: str, failing: int = failing) -> Fault | None:
            nonlocal count
            count += 1
            return fault if count == failing else None

        twin.store_faults = hook
        with lines():
            expected = _lives(twin)
        assert values(twin) == expected, (failing, asked[failing])


def test_a_successor_is_not_fenced_by_its_predecessor(twin: Twin) -> None:
    """An owner that lost its table publishes nothing more: its publisher ends as fenced, and the next one goes on."""
    with living(twin, closes=False) as old:
        old.commit(b"1")
        with living(twin) as new:
            new.publisher.wake()
            new.commit(b"2")
            old.publisher.wake()
            new.commit(b"3", wakes=False)
            old.log.history.read()
            old.publisher.wake()
            with pytest.raises(Fenced):
                old.publisher.check()
            new.publisher.wake()
            new.publisher.check()
            assert values(twin) == [b"1", b"2", b"3"]


def test_an_old_owner_without_a_producer_starts_none(twin: Twin) -> None:
    """An owner that was fenced before it ever published asks the ledger first, and starts no producer."""
    with living(twin, closes=False) as old:
        old.commit(b"1", wakes=False)
        with living(twin) as new:
            new.publisher.wake()
            new.commit(b"2")
            producers = dict(twin.cluster.output_producers)
            old.publisher.wake()
            with pytest.raises(Fenced):
                old.publisher.check()
            assert twin.cluster.output_producers == producers
            new.commit(b"3")
            new.publisher.check()
    assert values(twin) == [b"1", b"2", b"3"]


def test_a_stranger_of_the_same_name_is_fenced_back(twin: Twin) -> None:
    """A producer of the same name that is not the table's owner costs a new start, and no message."""
    with living(twin) as life:
        life.commit(b"1")
        stranger = life.log.kafka.output_producer(GROUP, life.log.ledger_topic)
        stranger.start()
        with told("tried again: a later output producer has started"):
            life.commit(b"2")
        life.publisher.check()
        stranger.close()
    assert values(twin) == [b"1", b"2"]


def test_a_topic_that_is_gone_ends_it_by_name(twin: Twin) -> None:
    """A missing topic is tried again for the patience, then it is the error, with topic and position; commits stay."""
    with living(twin, closes=False) as life:
        first = life.commit(b"1")
        with twin.cluster.lock:
            twin.cluster.delete(OUT)
        began_s = twin.clock()
        with told("tried again: no such topic"):
            life.commit(b"2")
        assert twin.clock() - began_s >= 10.0
        with pytest.raises(PublishFailed):
            life.publisher.check()
        with pytest.raises(PublishFailed) as met:
            life.publisher.check()
        assert met.value.facts["topic"] == OUT
        assert met.value.facts["position"] == first.offset + 1
        assert life.publisher.statistics().unpublished_messages == 1
    twin.create_topic(OUT)
    with living(twin) as life:
        life.publisher.wake()
    assert values(twin) == [b"2"]


def test_a_topic_that_comes_back_in_time(twin: Twin) -> None:
    """A target that takes messages again within the patience costs time alone."""
    refused = 0

    def hook(call: Call) -> Answer:
        nonlocal refused
        refused += call.method == "flush"
        return UNAVAILABLE if call.method == "flush" and refused < 5 else TRUE

    with living(twin) as life:
        twin.cluster.questions = hook
        with told("tried again"):
            life.commit(b"1")
        life.publisher.check()
        assert values(twin) == [b"1"]
    assert refused >= 5


def test_a_close_waits_for_a_while_and_no_longer(twin: Twin) -> None:
    """A close gives up after its patience; what is left is held, and the next owner publishes it."""

    def hook(call: Call) -> Answer:
        return UNAVAILABLE if call.method == "flush" else TRUE

    with living(twin, closes=False) as life:
        life.commit(b"1", wakes=False)
        twin.cluster.questions = hook
        began_s = twin.clock()
        with told("outputs behind position . are not published yet"):
            life.publisher.close(3.0)
        assert 3.0 <= twin.clock() - began_s < 8.0
        assert [ended for _, _, ended in subscriptions(life)] == [""]
        twin.cluster.questions = None
    with living(twin) as life:
        life.publisher.wake()
    assert values(twin) == [b"1"]


def test_an_unknown_commit_is_held(twin: Twin) -> None:
    """The subscription of a table that does not know the outcome of a commit holds on, for the next owner."""
    with living(twin, closes=False) as life:
        life.commit(b"1")
        life.publisher.close()
        ((_, position, ended),) = subscriptions(life)
        assert (position <= stored(twin).offset, ended) == (True, "")


def test_a_large_backlog_takes_several_transactions(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction ends with the commit that fills it, and stores its place; a death in between repeats nothing."""
    monkeypatch.setattr("statelog.tables.publishing.sender._MOST_MESSAGES", 3)
    with living(twin, closes=False) as life:
        for number in range(10):
            life.commit(b"%d" % number, b"%d'" % number, wakes=False)
        expected: Sequence[bytes | None] = life.committed
    with living(twin, closes=False, crash=crash_at("outputs-committed", 3)) as life:
        life.publisher.wake()
        with pytest.raises(Crash):
            life.publisher.check()
        assert values(twin) == expected[:12]
    with living(twin) as life:
        life.publisher.wake()
    assert values(twin) == expected


def test_a_lost_ledger_is_loud(twin: Twin, at_once: None) -> None:
    """A ledger that ends below the stored place has lost what was published: that is an error, and nothing is sent."""
    with living(twin, closes=False) as life:
        life.commit(b"1")
    end = stored(twin).offset
    with living(twin, closes=False) as life:
        life.commit(b"2", wakes=False)
        twin.cluster.published[GROUP, f"{LOG}.ledger", 0] = end + 100, ""
        life.publisher.wake()
        with pytest.raises(BeyondEnd):
            life.publisher.check()
    assert values(twin) == [b"1"]


def test_a_person_may_move_the_place_on(twin: Twin) -> None:
    """An offset without a text, as Kafka's tools store it, counts: messages below it are given up."""
    with living(twin, closes=False) as life:
        life.commit(b"1")
        last = life.commit(b"2", wakes=False)
    twin.cluster.published[GROUP, f"{LOG}.ledger", 0] = last.offset + 1, ""
    with living(twin) as life:
        life.publisher.wake()
        life.commit(b"3")
    assert values(twin) == [b"1", b"3"]


def test_the_place_of_an_older_log_does_not_count(twin: Twin) -> None:
    """The group's offset of a deleted log of the same name is not taken for a place in the new one."""
    with living(twin, closes=False) as life:
        for number in range(5):
            life.commit(b"old %d" % number)
    with twin.environment():
        Log.delete(LOG, twin.where())
        Log.create(LOG, twin.where(), LogOptions(partitions=2, key_groups=4)).close()
    with living(twin) as life:
        life.commit(b"new")
        life.publisher.check()
    assert values(twin)[-1] == b"new"


def test_a_thread_publishes_beside_the_loop(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    """With threads, `wake` waits for nothing; the thread and the producer end after a while without messages."""
    monkeypatch.setattr(publishing, "_MOVE_S", 0.05)
    has_failed, may_go_on = threading.Event(), threading.Event()

    def hook(call: Call) -> Answer:
        has_failed.set()
        return TRUE if may_go_on.is_set() else UNAVAILABLE

    def pause(event: threading.Event, timeout_s: float) -> None:
        event.wait(min(timeout_s, 0.01))

    with living(twin, start=start_thread, wait=pause) as life:
        with _only("flush", hook, twin), told("tried again"):
            life.commit(b"1")
            life.commit(b"2")
            found = life.publisher.statistics()
            assert (found.unpublished_commits, found.unpublished_messages) == (2, 2)
            assert has_failed.wait(30.0)
            may_go_on.set()
            wait_for(lambda: values(twin) == [b"1", b"2"], "nothing was published")
        wait_for(lambda: _ended(life.publisher), "the thread did not end")
        life.commit(b"3")
        wait_for(lambda: len(values(twin)) == 3, "nothing was published")
        life.commit(b"4")
    assert values(twin) == [b"1", b"2", b"3", b"4"]


@contextmanager
def _only(method: str, hook: Callable[[Call], Answer], twin: Twin) -> Generator[None]:
    def ask(call: Call) -> Answer:
        return hook(call) if call.method == method else TRUE

    twin.cluster.questions = ask
    try:
        yield
    finally:
        twin.cluster.questions = None


def _ended(publisher: Publisher) -> bool:
    return not publisher._is_running  # pyright: ignore[reportPrivateUsage] # nothing else tells
