"""Followers and recoveries retry while their broker or store is away for a moment, and lose nothing."""

import threading
from collections.abc import Generator
from contextlib import closing, contextmanager

import pytest

from statelog.environment import Environment
from statelog.errors import BrokerUnavailable
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.recovery.changes import CommitFeed
from statelog.recovery.plan_reader import PlanReader
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.recovery.targets import fill_dict, values_of
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from tests.support.faults.breaking_kafka import BreakingKafka
from tests.support.rigs.history import HistoryRig, Reader, history_rig
from tests.support.rigs.log import where_at

_VALUE = '{"type":"record","name":"V","fields":[{"name":"n","type":"long"}]}'
_WIDER = """{"type":"record","name":"V","fields":[{"name":"n","type":"long"},
       {"name":"s","type":["null","string"],"default":null}]}"""
_PATIENCE_S = 30.0


@contextmanager
def _live(rig: HistoryRig, now: list[float]) -> Generator[CommitFeed]:
    """Return a stream of commits behind the present state, by the test's own clock."""
    settings = RecoverySettings(_tuning=RecoveryTuning(stall_timeout_s=30.0))
    with (
        recover(rig.log) as recovery,
        closing(CommitFeed(rig.log, recovery.plan, None, settings, Environment(clock=lambda: now[0]))) as live,
    ):
        recovery.close()
        yield live


def test_a_broker_that_is_away_is_asked_again_until_the_stall_timeout_is_over() -> None:
    """A poll without an answer brings nothing, and its commits come later. A longer silence raises."""
    cluster, now = MemoryCluster(), [1000.0]
    rig = history_rig(kafka=MemoryKafka(cluster=cluster))
    with Writer(rig.log, "w") as writer, _live(rig, now) as live:
        assert live.commits() == []
        now[0] = 1060.0  # An idle follower's time does not count, since it was answered.
        cluster.set_down(is_down=True)
        for now[0] in (1061.0, 1070.0, 1090.0):
            assert live.commits() == []
        cluster.set_down(is_down=False)
        end = rig.commit(writer, 1, [(b"a", b"1")])
        assert [commit.position for commit in live.commits()] == [end]
        cluster.set_down(is_down=True)
        now[0] = 1100.0
        assert live.commits() == []
        now[0] = 1130.0
        with pytest.raises(BrokerUnavailable):
            live.commits()
        cluster.set_down(is_down=False)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_tail_goes_on_where_its_broker_broke_off(after: int) -> None:
    """Every change set of a tail is read once, whole and verified, although each reader breaks off in its middle."""
    cluster = MemoryCluster()
    rig = history_rig(kafka=MemoryKafka(cluster=cluster), partitions=1)
    with Writer(rig.log, "w") as writer:
        for number in range(1, 5):
            rig.commit(writer, number, [(b"a", b"%d" % number), (b"b-%d" % number, b"x")])
    plan = recover(rig.log).plan
    rig.log.kafka = BreakingKafka(cluster, after, BrokerUnavailable("the test's broker broke off"))
    reading = PlanReader(rig.log, plan, RecoverySettings(), lambda _: None)
    assert fill_dict(reading, with_group=False, values_of=values_of)[0] == rig.state_at(rig.end())
    assert reading.tail_read.changes == 8


def test_a_broker_that_stays_away_ends_a_tail() -> None:
    """Without a record for `stall_timeout_s`, the last error is raised unchanged."""
    cluster = MemoryCluster()
    rig = history_rig(kafka=MemoryKafka(cluster=cluster))
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", b"1")])
    plan = recover(rig.log).plan
    cluster.set_down(is_down=True)
    reading = PlanReader(rig.log, plan, RecoverySettings(_tuning=RecoveryTuning(stall_timeout_s=0.3)), lambda _: None)
    with pytest.raises(BrokerUnavailable):
        list(reading.slices())


class _Away:
    """A store on a disk that does not answer while `is_away`. With `after_lease` it goes away after the first lease."""

    def __init__(self, *, after_lease: bool = False) -> None:
        self.is_away = False
        self.refused = threading.Event()
        self._after_lease = after_lease

    def __call__(self, method: str, path: str) -> Fault | None:
        if self._after_lease and method == "put" and path.startswith("leases/"):
            self.is_away, self._after_lease = True, False
            return None
        if self.is_away:
            self.refused.set()
            return Fault.BEFORE
        return None


def test_a_typed_follower_asks_the_store_for_nothing_that_it_knows() -> None:
    """Commits whose value schema is known do not need the store."""
    away, now = _Away(), [1000.0]
    rig = history_rig(store=MemoryStore(MemoryDisk(lambda: now[0]), "rig", faults=away), value_schema=_VALUE)
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", {"n": 1})])
        reader = Reader()
        with recover(rig.log).follow(poll_s=0) as stream:
            while not reader.state or not reader.cursor.is_complete:
                reader.apply(next(stream))
            assert stream.wait_fetched(_PATIENCE_S)
            away.is_away = True
            rig.commit(writer, 2, [(b"a", {"n": 2})])
            portion = stream.take(_PATIENCE_S)
            assert portion is not None
            reader.apply(portion)
            assert reader.state == {b"a": {"n": 2}}
            away.is_away = False


def test_a_new_value_schema_is_waited_for_while_the_lease_stands() -> None:
    """A commit whose schema the store cannot give yet is read later, in the new columns, and never lost."""
    away, now = _Away(), [1000.0]
    disk = MemoryDisk(lambda: now[0])
    rig = history_rig(store=MemoryStore(disk, "rig"), value_schema=_VALUE)
    cluster_view = rig.log.kafka
    assert isinstance(cluster_view, MemoryKafka)
    follower = Log.open(
        "rig",
        where_at(cluster_view.join(), MemoryStore(disk, "rig", faults=away)),
    )
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", {"n": 1})])
    reader = Reader()
    with recover(follower).follow(poll_s=0) as stream:
        while not reader.state or not reader.cursor.is_complete:
            reader.apply(next(stream))
        assert stream.wait_fetched(_PATIENCE_S)
        away.is_away = True
        rig.log.value_schemas.add(_WIDER)
        with Writer(rig.log, "w") as writer:
            rig.commit(writer, 2, [(b"b", {"n": 2, "s": "x"}), (b"c", {"n": 3, "s": None})])
        assert away.refused.wait(_PATIENCE_S)
        away.is_away = False
        portion = stream.take(_PATIENCE_S)
        assert portion is not None
        reader.apply(portion)
    assert reader.state == {b"a": {"n": 1}, b"b": {"n": 2, "s": "x"}, b"c": {"n": 3, "s": None}}


def test_the_lease_of_a_follower_is_tried_again_while_that_of_its_state_stands() -> None:
    """A store that goes away between the state and the first commit does not end a follower."""
    away, now = _Away(after_lease=True), [1000.0]
    rig = history_rig(store=MemoryStore(MemoryDisk(lambda: now[0]), "rig", faults=away))
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", b"1")])
        with recover(rig.log).follow(poll_s=0) as stream:
            assert away.refused.wait(_PATIENCE_S)
            away.is_away = False
            rig.commit(writer, 2, [(b"a", b"2")])
            reader = Reader()
            while reader.state != {b"a": b"2"}:
                reader.apply(next(stream))
