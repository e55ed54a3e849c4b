"""A member of a consumer group on a real broker: it ends, whatever the group decides meanwhile."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from statelog.errors import Fenced, Unreadable
from statelog.kafka import member as members
from statelog.kafka.group import Taken, group_settings
from statelog.kafka.member import ConfluentMember
from statelog.kafka.native import native
from tests.support.processes.starts import quick_start
from tests.support.services import stranger
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

QUICK = {"heartbeat.interval.ms": "300", "session.timeout.ms": "6000"}
STORM_S = 60.0


class _Listener:
    """A listener that records its calls, and inside of which call of the client they come."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self.told: list[tuple[str, str]] = []

    def assigned(self, partitions: Sequence[int]) -> None:
        """Record it."""
        self._note("assigned", partitions)

    def revoked(self, partitions: Sequence[int]) -> None:
        """Record it."""
        self._note("revoked", partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        """Record it."""
        self._note("lost", partitions)

    def refused(self, partition: int, reason: str) -> None:
        """Fail: the member reads nothing."""

    def ended(self, partition: int, end_offset: int) -> None:
        """Fail: the member reads nothing."""

    def _note(self, what: str, partitions: Sequence[int]) -> None:
        if partitions and self._calls:
            self.told.append((what, self._calls[-1]))


@pytest.fixture
def topic(broker: Broker, topic_name: str) -> Iterator[str]:
    """Yield a topic of four partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic_name, 4, 1)])[topic_name].result()
    yield topic_name
    admin.delete_topics([topic_name])[topic_name].result()


def _member(bootstrap: str, topic: str, listener: _Listener, **consumer: str) -> ConfluentMember:
    connection = {"bootstrap.servers": bootstrap}
    settings = group_settings({**QUICK, **consumer}, connection, default_group=topic)
    return ConfluentMember(settings, topic, listener, lambda _: None)


@pytest.mark.parametrize(
    ("name", "revoked_in"),
    [({}, "poll"), ({"group.instance.id": "a"}, "close")],
    ids=["leaves", "may-come-back"],
)
def test_decisions_are_answered_before_the_client_closes(
    name: dict[str, str], revoked_in: str, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions are answered before the client closes.

    Inside of `close` the client may get the answer to the first of two, and wait for the second for ever.
    """
    calls: list[str] = []

    def noting(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        calls.append(call.__name__)
        try:
            return native(call, *args, **kwargs)
        finally:
            calls.pop()

    monkeypatch.setattr(members, "native", noting)
    listener = _Listener(calls)
    member = _member(broker.bootstrap, topic, listener, **name)
    watching = AdminClient({"bootstrap.servers": broker.bootstrap})
    _wait_until_assigned(watching, topic)
    member.close()
    assert listener.told == [("assigned", "poll"), ("revoked", revoked_in)]


def _wait_until_assigned(admin: AdminClient, group: str) -> None:
    """Wait until the group has given all partitions to its one member, which then learns it at once."""
    deadline = time.monotonic() + 60
    while True:
        found = admin.describe_consumer_groups([group])[group].result()
        if found.members and len(found.members[0].assignment.topic_partitions) == 4:
            time.sleep(0.5)
            return
        assert time.monotonic() < deadline, "the group gave nothing"
        time.sleep(0.1)


class _Reading(_Listener):
    """A member that reads all its partitions from positions of its own, and now and then stops one, or moves it.

    Each record has to be the next of its partition.
    """

    def __init__(self, bootstrap: str, topic: str, **consumer: str) -> None:
        super().__init__([])
        self._chance = random.Random()
        self.new: set[int] = set()
        self.places: dict[int, int] = {}
        self.times_revoked = self.decisions = 0
        self.member = _member(bootstrap, topic, self, **consumer)

    def assigned(self, partitions: Sequence[int]) -> None:
        """Read them soon."""
        self.decisions += 1
        self.new.update(partitions)

    def revoked(self, partitions: Sequence[int]) -> None:
        """Forget them."""
        self.times_revoked += len(partitions)
        for one in partitions:
            self.places.pop(one, None)
            self.new.discard(one)

    lost = revoked

    def go_on(self) -> None:
        """Read some records, and move to other positions."""
        self._take(self.member.poll(0.05))
        for _ in range(self._chance.randrange(20)):
            self._take(self.member.at_hand())
        places = {one: self._chance.randrange(1_000) for one in self.new}
        if places:
            self.new.clear()
            self.places.update(places)
            self.member.read_from(places)
        if self.places and self._chance.random() < 0.2:
            gone = self._chance.choice(list(self.places))
            del self.places[gone]
            self.member.stop([gone])
            self.new.add(gone)

    def _take(self, taken: Taken | None) -> None:
        if taken is not None:
            message, partition, offset = taken
            assert (message.partition(), message.offset()) == (partition, offset)
            assert offset == self.places[partition]
            self.places[partition] += 1


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_partitions_that_go_and_come_in_the_middle_of_a_batch(strategy: str, broker: Broker, topic: str) -> None:
    """Waiting records of a revoked partition are not given; a returning one begins at the named position.

    Others go on without a gap, and without a record that comes twice.
    """
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(4 * 3_000):
        producer.produce(topic, b"x" * 100, partition=number % 4)
        producer.poll(0)
    producer.flush(60)
    settings = {"partition.assignment.strategy": strategy, "fetch.message.max.bytes": "4000"}
    reading, rivals = _Reading(broker.bootstrap, topic, **settings), list[ConfluentMember]()

    def until(is_over: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 60
        while not is_over():
            assert time.monotonic() < deadline_s
            reading.go_on()
            for rival in rivals:
                rival.poll(0.0)

    try:
        until(lambda: len(reading.places) == 4)
        rivals.append(_member(broker.bootstrap, topic, _Listener([]), **settings))
        until(lambda: reading.times_revoked > 0 and len(reading.places) <= 2)
        rivals.pop().close()
        until(lambda: len(reading.places) == 4)
        for _ in range(200):
            reading.go_on()
    finally:
        for one in (reading.member, *rivals):
            one.close()


@pytest.mark.parametrize("behind", [0, 3])
def test_what_cannot_be_unpacked_is_not_passed_over(behind: int, broker: Broker, topic: str) -> None:
    """An unreadable record comes out with its offset, behind the record before it; it does not count as an end."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"before", partition=0)
    producer.flush(60)
    stranger.send(broker.bootstrap, topic, 0, stranger.junk_behind_a_frame(b"x" * 50))
    for _ in range(behind):
        producer.produce(topic, b"behind", partition=0)
        producer.flush(60)
    reading = _Reading(broker.bootstrap, topic)
    deadline_s = time.monotonic() + 60
    try:
        while len(reading.new) < 4:
            assert time.monotonic() < deadline_s
            assert reading.member.poll(0.05) is None
        reading.member.read_from({0: 0})
        with pytest.raises(Unreadable, match="cannot be unpacked") as told:
            while (taken := reading.member.poll(0.05)) is None or taken[2] == 0:
                assert time.monotonic() < deadline_s
        assert (told.value.facts["partition"], told.value.facts["start_offset"]) == (0, 1)
        assert "accept that loss" in told.value.hint
    finally:
        reading.member.close()


def test_a_name_that_another_takes(broker: Broker, topic: str) -> None:
    """The first of two members of one name gets an error, and does not go on without messages."""
    first = _member(broker.bootstrap, topic, _Listener([]), **{"group.instance.id": "a"})
    _wait_until_assigned(AdminClient({"bootstrap.servers": broker.bootstrap}), topic)
    second = _member(broker.bootstrap, topic, _Listener([]), **{"group.instance.id": "a"})
    try:
        with pytest.raises(Fenced, match="another member"):
            _poll(first, second)
    finally:
        first.close()
        second.close()


class _Dying(_Listener):
    """A listener whose process dies as soon as it has to revoke partitions."""

    def revoked(self, partitions: Sequence[int]) -> None:
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)


def _die_giving_up(bootstrap: str, topic: str) -> None:
    _poll(_member(bootstrap, topic, _Dying([]), **{"group.instance.id": "a"}))


def test_partitions_whose_member_died_while_it_gave_them_up_find_another(broker: Broker, topic: str) -> None:
    """The group redistributes partitions whose member died while it revoked them, once that member is back."""
    dying, readers = quick_start().Process(target=_die_giving_up, args=(broker.bootstrap, topic)), list[_Reading]()
    try:
        dying.start()
        _wait_until_assigned(AdminClient({"bootstrap.servers": broker.bootstrap}), topic)
        readers.append(_Reading(broker.bootstrap, topic))
        wait_for(lambda: readers[0].member.poll(0.05) is None and not dying.is_alive())
        readers.append(_Reading(broker.bootstrap, topic, **{"group.instance.id": "a"}))
        _until(lambda: [len(one.new) for one in readers] == [2, 2], readers)
    finally:
        dying.kill()
        for one in readers:
            one.member.close()


def test_a_member_that_comes_back_into_its_share_changes_nothing(broker: Broker, topic: str) -> None:
    """A member that restarts under its name changes nothing for the others, while every partition has a member."""
    named = {"group.instance.id": "a"}
    readers = [_Reading(broker.bootstrap, topic), _Reading(broker.bootstrap, topic, **named)]
    try:
        _until(lambda: [len(one.new) for one in readers] == [2, 2], readers)
        _until(lambda: _shares(broker, topic) == [2, 2], readers)
        readers.pop().member.close()
        before = readers[0].decisions
        readers.append(_Reading(broker.bootstrap, topic, **named))
        _until(lambda: len(readers[1].new) == 2, readers)
        settled_s = time.monotonic() + 2
        _until(lambda: time.monotonic() > settled_s, readers)
        assert readers[0].decisions == before
    finally:
        for one in readers:
            one.member.close()


def _shares(broker: Broker, group: str) -> list[int]:
    watching = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = watching.describe_consumer_groups([group])[group].result()
    return [len(one.assignment.topic_partitions) for one in found.members]


def _until(is_so: Callable[[], bool], readers: Sequence[_Reading]) -> None:
    def asked() -> bool:
        for one in readers:
            one.member.poll(0.02)
        return is_so()

    wait_for(asked, timeout_s=60)


def _poll(*polled: ConfluentMember) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for member in polled:
            member.poll(0.05)


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
@pytest.mark.parametrize("named", [True, False])
def test_a_storm_of_members(strategy: str, named: bool, broker: Broker, topic: str) -> None:
    """Members come and end at any moment without a hang, which would hold the interpreter's lock: hence a process."""
    process = quick_start().Process(target=_storm, args=(broker.bootstrap, topic, strategy, named))
    process.start()
    process.join(STORM_S + 60)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()


def _storm(bootstrap: str, topic: str, strategy: str, named: bool) -> None:
    end_s = time.monotonic() + STORM_S

    def lives(number: int) -> None:
        chance = random.Random(number)
        name = {"group.instance.id": str(number)} if named else {}
        while time.monotonic() < end_s:
            member = _member(bootstrap, topic, _Listener([]), **{"partition.assignment.strategy": strategy}, **name)
            hears_until_s = time.monotonic() + chance.choice([0, 0.1, 0.5, 1, 2, 3.5])
            while time.monotonic() < hears_until_s:
                member.poll(0.05)
            time.sleep(chance.choice([0, 0, 0.1, 0.5, 1, 3.2]))
            member.close()

    threads = [Thread(target=lives, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
