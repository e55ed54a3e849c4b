"""Streams on the twins: their key groups, value schemas added meanwhile, and the cache of runs."""

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from statelog.environment import Environment
from statelog.errors import NotFound, StoreUnavailable
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.reading.hold import HeldPlan
from statelog.reading.planner import SnapshotFailed
from statelog.recovery import stream as streams
from statelog.recovery.changes import CommitFeed
from statelog.recovery.recover import recover
from statelog.recovery.run_cache import CacheSettings
from statelog.recovery.settings import RecoverySettings, terms_of
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from tests.support.rigs.history import Reader, history_rig
from tests.support.told import told
from tests.support.waiting import wait_for

_PATIENCE_S = 30.0
_V1 = '{"type":"record","name":"V","fields":[{"name":"n","type":"long"}]}'
_V2 = """{"type":"record","name":"V","fields":[{"name":"n","type":"long"},
       {"name":"s","type":["null","string"],"default":null}]}"""


def test_an_empty_log_is_one_empty_portion() -> None:
    """A stream of an empty log is one empty portion that completes the state, with the log's columns."""
    rig = history_rig()
    with recover(rig.log).stream() as stream:
        (portion,) = stream
        assert (portion.changes.num_rows, portion.changes.schema.names) == (0, ["key_group", "op", "key", "value"])
        assert (stream.cursor, stream.has_ended, stream.wait_fetched(0)) == (portion.cursor, True, True)
        assert stream.take() is None


def test_a_follower_of_some_key_groups_gets_only_those() -> None:
    """State and live changes are of the wanted key groups. Commits of others only move the position."""
    rig, reader, wanted = history_rig(), Reader(), frozenset({0, 3})
    keys = [b"key-%d" % i for i in range(60)]
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(key, b"1") for key in keys[:40]])
        with recover(rig.log, key_groups=wanted).stream() as stream:
            for portion in stream:
                reader.apply(portion)
        rig.commit(writer, 2, [(key, None) for key in keys[20:30]])
        rig.commit(writer, 3, [(key, b"3") for key in keys if rig.key_group(key) == 1])
        rig.commit(writer, 4, [(key, b"4") for key in keys[30:]])
    with recover(rig.log, resume=reader.cursor).follow(poll_s=0) as stream:
        while reader.cursor.position < rig.end():
            reader.apply(next(stream))
    assert reader.state == rig.state_at(rig.end(), wanted)
    assert {row[0] for row in reader.rows} == wanted
    assert reader.cursor.key_groups == wanted


def test_a_follower_goes_on_with_a_new_value_schema() -> None:
    """A value schema added while a follower runs gives later portions the new columns."""
    rig, reader = history_rig(value_schema=_V1), Reader()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", {"n": 1})])
    with recover(rig.log).follow(poll_s=0) as stream:
        while not reader.state or not reader.cursor.is_complete:
            reader.apply(next(stream))
        rig.log.value_schemas.add(_V2)
        with Writer(rig.log, "w") as writer:
            rig.commit(writer, 2, [(b"b", {"n": 2, "s": "x"})])
        portion = next(stream)
        reader.apply(portion)
    assert reader.state == {b"a": {"n": 1}, b"b": {"n": 2, "s": "x"}}
    assert pa.types.is_struct(portion.changes.schema.field("value").type)


def test_a_stream_reads_through_the_cache_and_leaves_it(tmp_path: Path) -> None:
    """A stream reads runs from local copies, and leaves the cache once the state was fetched."""
    asked: list[str] = []
    store = MemoryStore(MemoryDisk(lambda: 1000.0), "rig", faults=lambda method, _: asked.append(method))
    rig, reader = history_rig(store=store), Reader()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"1") for i in range(100)])
        rig.snapshot()
    asked.clear()
    settings = RecoverySettings(cache=CacheSettings(directory=tmp_path, idle_s=0))
    recover(rig.log, settings=settings).stream().apply(reader.apply)
    assert reader.state == rig.state_at(rig.end())
    assert list_leases(store) == []
    assert ("download" in asked, "open" in asked) == (True, False)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 0] == []


def test_a_follower_that_is_not_stuck_gets_a_new_lease_before_the_cap() -> None:
    """A follower that is up to date or moves on gets a new lease before the cap of age. A stuck one does not."""
    rig, now = history_rig(), [0.0]
    with (
        recover(rig.log) as recovery,
        closing(
            CommitFeed(rig.log, recovery.plan, None, RecoverySettings(), Environment(clock=lambda: now[0]))
        ) as live,
    ):
        recovery.close()
        (first,) = list_leases(rig.log.store)
        with Writer(rig.log, "w") as writer:
            rig.commit(writer, 1, [(b"a", b"1")])
        (commit,) = live.commits()
        now[0] = 3600.0
        live.renew()
        assert [held.lease.id for held in list_leases(rig.log.store)] == [first.lease.id]
        live.passed([commit])
        (second,) = list_leases(rig.log.store)
        assert (second.lease.id != first.lease.id, second.lease.position) == (True, rig.end())
        now[0] = 7200.0
        assert live.commits() == []
        (third,) = list_leases(rig.log.store)
        assert third.lease.id not in (first.lease.id, second.lease.id)
    assert list_leases(rig.log.store) == []


def test_a_store_that_is_away_for_a_moment_ends_no_follower() -> None:
    """While its lease is valid, a follower tries renewals and new leases again, so a short outage does not end it."""
    now, is_away = [1000.0], [False]
    store = MemoryStore(MemoryDisk(lambda: now[0]), "rig", faults=lambda _m, _p: Fault.BEFORE if is_away[0] else None)
    rig = history_rig(store=store)
    with (
        recover(rig.log) as recovery,
        closing(
            CommitFeed(rig.log, recovery.plan, None, RecoverySettings(), Environment(clock=lambda: now[0]))
        ) as live,
    ):
        recovery.close()
        for now[0] in [1000.0 + 100.0 * i for i in range(1, 36)]:
            assert live.commits() == []
        (first,) = list_leases(store)
        now[0], is_away[0] = 4600.0, True
        with told("could not be renewed"):
            assert live.commits() == []
        now[0], is_away[0] = 4610.0, False
        assert list_leases(store) == [first]
        assert live.commits() == []
        (second,) = list_leases(store)
        assert second.lease.id != first.lease.id
        now[0] = 4620.0
        assert live.commits() == []
        assert list_leases(store) == [second]
    assert list_leases(store) == []


def test_a_failure_while_a_snapshot_is_judged_leaves_no_lease() -> None:
    """A store that goes away while a damaged snapshot is judged raises its own error, and no lease remains."""
    is_away = [False]
    disk = MemoryDisk(lambda: 1000.0)
    store = MemoryStore(disk, "rig", faults=lambda m, _p: Fault.BEFORE if is_away[0] and m == "list" else None)
    log = history_rig(store=store).log
    held = HeldPlan(log, terms_of(RecoverySettings()), environment=Environment())
    held.take()
    is_away[0] = True
    with pytest.raises(StoreUnavailable):
        held.replan(SnapshotFailed(NotFound("a run is gone")))
    held.close()
    is_away[0] = False
    assert list_leases(store) == []


def test_a_stalled_follower_renews_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """While live changes wait for an idle reader, their lease is renewed."""
    monkeypatch.setattr(streams, "_OFFER_S", 0.01)
    now, puts = [1000.0], list[str]()

    def count(method: str, path: str) -> None:
        if method == "put":
            puts.append(path)

    rig = history_rig(store=MemoryStore(MemoryDisk(lambda: now[0]), "rig", faults=count))
    settings = RecoverySettings(memory_bytes=64 * 1024, lease_ttl_s=60.0)
    with (
        Writer(rig.log, "w") as writer,
        Environment(clock=lambda: now[0]).run(recover, rig.log, settings=settings).follow(poll_s=0) as stream,
    ):
        assert stream.wait_fetched(_PATIENCE_S)
        for number in range(1, 5):
            rig.commit(writer, number, [(b"a", b"%d" % number * 40_000)])
        wait_for(lambda: stream.statistics().memory_bytes > 30_000)
        for now[0] in (1100.0, 1200.0, 1300.0):
            puts.clear()
            wait_for(lambda: len(puts) > 0)
        (held,) = list_leases(rig.log.store)
        assert held.lease.position < rig.end()


@pytest.mark.usefixtures("busy_ledger")
def test_the_lease_of_a_follower_moves_on_with_it() -> None:
    """A follower's renewal names the offsets and the position behind what it has passed, and releases the rest."""
    now = [1000.0]
    rig = history_rig(store=MemoryStore(MemoryDisk(lambda: now[0]), "rig"))
    with (
        Writer(rig.log, "w") as writer,
        recover(rig.log) as recovery,
        closing(
            CommitFeed(rig.log, recovery.plan, None, RecoverySettings(), Environment(clock=lambda: now[0]))
        ) as live,
    ):
        recovery.close()
        rig.commit(writer, 1, [(b"key-%d" % i, b"1") for i in range(50)])
        end, ends = rig.end(), {p: offsets.end for p, offsets in rig.log.data_offsets().items()}
        (commit,) = live.commits()
        live.passed([commit])
        now[0] += RecoverySettings().lease_ttl_s
        live.renew()
        (held,) = list_leases(rig.log.store)
        assert (held.lease.position, held.lease.next_offsets) == (end, ends)
        assert min(ends.values()) > 0
