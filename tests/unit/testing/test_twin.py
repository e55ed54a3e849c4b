"""The twin of Kafka and store shares inputs among workers, moves the clock by waiting, and sets environments."""

import signal
import threading

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

import statelog
from statelog.environment import Environment, current_environment, inline, repeated
from statelog.errors import ConfigError
from statelog.tables import InputTopic
from statelog.testing import Crash, StillClock, Twin, crash_at, environment
from tests.support.told import told


def _count(twin: Twin) -> None:
    with statelog.worker("counts", twin.where(), topic="words", create=True) as worker:
        twin.when_idle = worker.stop
        for message, table in worker:
            word = message.value() or b""
            table[word] = b"%d" % (int(table.get(word, b"0")) + 1)
            worker.commit_every(1.0)


def test_a_worker_goes_on_in_its_next_life() -> None:
    """Each message counts once over two incarnations, and the time of waiting has passed on the clock."""
    twin = Twin()
    twin.create_topic("words", partitions=2)
    with twin.environment():
        twin.send("words", b"to", b"be")
        twin.send("words", b"to", partition=1)
        _count(twin)
        twin.send("words", b"to")
        _count(twin)
    with statelog.open("counts", twin.where()) as log:
        assert statelog.recover(log).to_dict() == {(0, b"to"): b"2", (0, b"be"): b"1", (1, b"to"): b"1"}
    assert twin.clock() >= 1010.0


def test_a_message_has_its_time_and_headers() -> None:
    """A message has the time and headers that the test set, else the clock's time and no headers."""
    twin, found = Twin(), list[tuple[object, object, object]]()
    twin.send("words", b"to", key=b"k", headers=[("trace", b"1")], timestamp_ms=7)
    twin.cluster.delete("words")
    twin.send("words", b"be")
    twin.send("words", b"or", headers=[("trace", b"2"), ("trace", b"3")], timestamp_ms=0)
    with twin.environment(), statelog.worker("counts", twin.where(), topic="words", create=True) as worker:
        twin.when_idle = worker.stop
        found += [(one.key(), one.timestamp(), one.headers()) for one, _ in worker]
    created = TIMESTAMP_CREATE_TIME
    assert found == [
        (None, (created, 1_000_000), None),
        (None, (created, 0), [("trace", b"2"), ("trace", b"3")]),
    ]


def test_a_worker_is_refused_what_a_broker_refuses() -> None:
    """The twin checks the settings of a group's member, and uses the group that they name."""
    twin = Twin()
    twin.send("words", b"to")
    with pytest.raises(ConfigError, match="start="):
        statelog.worker("c", twin.where(), topic=InputTopic("words", {"auto.offset.reset": "earliest"}), create=True)
    with statelog.worker("c", twin.where(), topic=InputTopic("words", {"group.id": "g"}), create=True) as worker:
        twin.when_idle = worker.stop
        assert len(list(worker)) == 1
        worker.commit()
    assert (twin.group("g", "words").published, twin.group("c", "words").published) == ({0: 1}, {})


def test_two_workers_share_the_partitions() -> None:
    """A joining worker gets its partitions once the other has given them up. A leaving one hands them back."""
    twin = Twin()
    twin.create_topic("words", partitions=2)
    twin.send("words", b"a", partition=0)
    twin.send("words", b"b", partition=1)
    with twin.environment(start=inline):
        first = statelog.worker("counts", twin.where(), topic="words", create=True)
        twin.when_idle = first.stop
        assert [message.value() for message, _ in first] == [b"a", b"b"]
        second = statelog.worker("counts", twin.where(), topic="words")
        twin.group("counts", "words").share()
        owners = twin.group("counts", "words").owner
        assert len({*owners.values()}) == 2
        second.close()
        first.close()
    assert set(owners.values()) == {None}


def test_a_table_that_ended_is_opened_again() -> None:
    """A table that ended is opened again after a pause, which passes on the clock as all waiting does."""
    twin = Twin()
    twin.send("words", b"to", b"be")
    with twin.environment(), told("is opened again"):
        with statelog.worker("counts", twin.where(), topic="words", create=True) as worker:
            twin.when_idle = worker.stop
            for message, table in worker:
                if message.offset() == 0 and not table.get(b"fenced"):
                    with statelog.table("counts", twin.where(), writer="counts-0", key_group=0) as zombie:
                        zombie[b"fenced"] = b"yes"
                        zombie.commit(zombie.progress)
                table[message.value() or b""] = b"1"
                worker.commit_every(0.0)
        with statelog.table("counts", twin.where(), writer="counts-0", key_group=0) as found:
            assert dict(found) == {b"fenced": b"yes", b"to": b"1", b"be": b"1"}


def test_a_program_may_end_by_a_signal() -> None:
    """A program's idle callback may end it by a signal."""
    twin, heard = Twin(), list[int]()
    twin.send("words", b"a")
    with twin.environment(), statelog.worker("counts", twin.where(), topic="words", create=True) as worker:

        def end(number: int, _frame: object) -> None:
            heard.append(number)
            worker.stop()

        before = signal.signal(signal.SIGTERM, end)
        twin.when_idle = lambda: signal.raise_signal(signal.SIGTERM)
        assert len([*worker]) == 1
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_an_environment_holds_in_its_block_and_in_threads_begun_there() -> None:
    """An environment applies in its block and in statelog's threads begun there, but not in a test's own threads."""
    seen: dict[str, float] = {}
    clock = StillClock(7.0)
    with environment(clock=clock) as inside:
        assert current_environment() is inside
        assert (inside.clock(), inside.wall_clock()) == (7.0, 7.0)
        done = inside.begin(lambda: seen.update(ours=current_environment().clock()))
        done.result(60)
        theirs = threading.Thread(target=lambda: seen.update(theirs=current_environment().clock()))
        theirs.start()
        theirs.join()
        with environment(crash=crash_at("x")) as deeper:
            assert deeper.clock is clock
    assert seen["ours"] == 7.0
    assert seen["theirs"] != 7.0
    assert current_environment() == Environment()


def test_a_crash_comes_once_at_its_step() -> None:
    """A crash happens once, at the second time that its step is passed."""
    crash = crash_at("sent", times=2)
    for step in ("opened", "sent", "persisted"):
        crash(step)
    with pytest.raises(Crash, match="sent"):
        crash("sent")
    crash("sent")


def test_repeated_work_ends_with_a_ctrl_c_while_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while repeated work begins leaves nothing that would renew a lease for ever."""
    start, begun = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        begun.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), repeated(lambda: None, 0.001, "renews"):
        raise AssertionError("the block did not begin")
    (thread,) = begun
    thread.join(5.0)
    assert not thread.is_alive()
