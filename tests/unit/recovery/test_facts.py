"""Facts of a recovery before any target is filled cost no lease, and no target contradicts them."""

import gc
import warnings
from pathlib import Path
from threading import Event

import pytest

from statelog.errors import CorruptRun, Misuse, NotFound
from statelog.log import Where
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.reading.hold import needed
from statelog.reading.sorted_tail import SortedTail
from statelog.recovery.recover import Recovery, recover, recover_snapshot
from statelog.recovery.settings import RecoverySettings
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from tests.support.rigs.history import HistoryRig, history_rig
from tests.support.told import told

_KEYS = [b"key-%d" % i for i in range(20)]
_MANY = [(b"key-%d" % i, b"v" * 500) for i in range(2000)]


class _World:
    """A rig with a commit, its snapshot and a tail. Its store records every file that is put."""

    def __init__(self) -> None:
        self.puts: list[str] = []
        self.disk = MemoryDisk(lambda: 1000.0)
        store = MemoryStore(self.disk, "rig", faults=self._note)
        self.rig: HistoryRig = history_rig(kafka=MemoryKafka(cluster=MemoryCluster()), store=store)
        self.log = self.rig.log
        self.commit(1)
        self.rig.snapshot()
        self.commit(2)
        self.puts.clear()

    def _note(self, method: str, path: str) -> Fault | None:
        if method in ("put", "put_if_absent"):
            self.puts.append(path)
        return None

    def commit(self, checkpoint_id: int) -> None:
        """Write every key with the checkpoint's number."""
        with Writer(self.log, "w") as writer:
            self.rig.commit(writer, checkpoint_id, [(key, b"%d" % checkpoint_id) for key in _KEYS], {"at": "x"})

    def truncate_past_all(self) -> None:
        """Commit, snapshot everything, and remove what came before in Kafka and on the store."""
        self.commit(3)
        self.rig.snapshot(merge=True)
        for manifest in self.rig.manifests[:-1]:
            self.rig.drop(manifest)
        self.rig.truncate(self.rig.manifests[-1])


def test_facts_leave_nothing_on_the_store() -> None:
    """Position, commits, metadata and the plan are available without writing a file."""
    world = _World()
    assert recover(world.log).position == world.rig.end()
    last = recover(world.log).last_commit("w")
    assert last is not None
    assert last.checkpoint.id == 2
    with recover(world.log) as recovery:
        assert recovery.plan.manifest_number == 1
        assert list(recovery.commits) == ["w"]
        assert dict(recovery.meta) == {}
    assert world.puts == []


def test_a_recovery_holds_a_lease_only_for_its_targets() -> None:
    """A recovery holds one lease while it fills a target, and none before or after."""
    world = _World()
    recovery = recover(world.log)
    for filled in (1, 2):
        assert recovery.to_dict() == world.rig.state_at(recovery.position)
        assert len(world.puts) == filled
        assert list_leases(world.log.store) == []
    assert recovery.statistics().has_lease


@pytest.mark.parametrize("target", ["to_dict", "to_arrow", "stream", "follow"])
def test_a_state_that_was_shown_is_that_of_the_target_or_an_error(target: str) -> None:
    """A shown position that was truncated is NotFound with a hint, and never a newer state."""
    world = _World()
    recovery = recover(world.log)
    shown = recovery.position
    world.truncate_past_all()
    with pytest.raises(NotFound, match=f"position {shown}") as caught:
        getattr(recovery, target)()
    assert "recover again" in caught.value.hint
    assert list_leases(world.log.store) == []


def test_a_shown_state_that_is_still_held_is_filled() -> None:
    """A shown state that still exists is filled, even after a newer snapshot and a truncation up to the older one."""
    world = _World()
    recovery = recover(world.log)
    shown = recovery.position
    world.commit(3)
    world.rig.snapshot()
    world.rig.truncate(world.rig.manifests[0])
    assert recovery.to_dict() == world.rig.state_at(shown)
    assert recovery.position == shown


def test_a_state_that_nobody_has_seen_may_be_a_newer_one() -> None:
    """A recovery of the newest state plans again if it was truncated unseen.

    Its facts are those of the state it filled.
    """
    world = _World()
    recovery = recover(world.log)
    world.truncate_past_all()
    assert recovery.to_dict() == world.rig.state_at(world.rig.end())
    assert recovery.position == world.rig.end()
    assert recovery.statistics().plans == 2


@pytest.mark.parametrize("seen", [False, True])
def test_a_follower_begins_where_the_log_still_reaches(*, seen: bool) -> None:
    """A follower of a state that was truncated behind begins later, or raises if the state was shown."""
    rig = history_rig()
    recovery = recover(rig.log)
    if seen:
        assert recovery.position == rig.end()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", b"1")])
    rig.truncate(rig.snapshot())
    if seen:
        with pytest.raises(NotFound):
            recovery.follow()
        return
    with recovery.follow() as stream:
        portion = next(stream)
        assert portion.changes.column("key").to_pylist() == [b"a"]


def test_a_reserved_state_is_held_without_anybody_renewing_it() -> None:
    """Reserving a state leaves one lease that names its needs, and that outlives the recovery."""
    world = _World()
    recovery = recover(world.log, settings=RecoverySettings(holder="planner", lease_ttl_s=300.0))
    recovery.reserve()
    plan = recovery.plan
    recovery.close()
    del recovery
    gc.collect()
    (held,) = list_leases(world.log.store)
    assert (held.lease.holder, held.lease.ttl_s) == ("planner", 300.0)
    assert (held.lease.manifest_number, held.lease.position) == (plan.manifest_number, plan.base_position)
    assert dict(held.lease.next_offsets) == needed(plan).next_offsets


def test_the_lease_of_an_open_stream_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state with an open stream cannot be reserved, since its reading thread renews the lease."""
    world, begun, go = _World(), Event(), Event()
    finish = SortedTail.finish

    def finish_later(tail: SortedTail) -> None:
        begun.set()
        assert go.wait(60.0)
        finish(tail)

    monkeypatch.setattr(SortedTail, "finish", finish_later)
    recovery = recover(world.log)
    with recovery.stream() as stream:
        assert begun.wait(60.0)
        with pytest.raises(Misuse, match="a stream of this recovery is open"):
            recovery.reserve()
        assert len(list_leases(world.log.store)) == 1
        go.set()
        assert sum(changes.num_rows for changes, _ in stream) == len(_KEYS)
    recovery.reserve()()


def test_a_snapshot_alone_that_was_shown_is_filled_or_damaged() -> None:
    """A recovery of a snapshot falls back to an older one only until the position was shown."""
    world = _World()
    world.rig.snapshot()
    store = MemoryStore(world.disk, "rig")
    path = world.rig.manifests[-1].runs[-1].path

    def planned() -> Recovery:
        return recover_snapshot("rig", Where(None, store))

    seen, unseen = planned(), planned()
    assert seen.position == world.rig.manifests[-1].position
    world.disk.write(f"rig/{path}", b"damaged", absent=False)
    with told(), pytest.raises(CorruptRun):
        seen.to_dict()
    with told():
        assert unseen.to_dict() == world.rig.state_at(world.rig.manifests[0].position)


# ---- forgotten


def test_a_stream_that_is_forgotten_open_is_told() -> None:
    """A stream that is forgotten open is a ResourceWarning, and its lease is removed."""
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, _MANY)
    stream = recover(rig.log).stream()
    next(stream)
    with pytest.warns(ResourceWarning, match="unclosed stream of statelog"):
        del stream
        gc.collect()


def test_nothing_is_told_of_what_was_closed(tmp_path: Path) -> None:
    """Closed streams, filled recoveries and recoveries that were only asked do not warn."""
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, _MANY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(recover(rig.log).stream())) > 1
        with recover(rig.log).follow() as followed:
            next(followed)
        closed = recover(rig.log).stream()
        closed.close()
        filled = recover(rig.log)
        filled.to_parquet(tmp_path / "state.parquet")
        assert recover(rig.log).position == filled.position
        del followed, closed, filled
        gc.collect()
