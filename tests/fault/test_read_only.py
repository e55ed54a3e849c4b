"""Recovery by a reader that may not write to the store: without a lease, with a warning, and exact all the same."""

from collections.abc import Iterator

import pytest

from statelog.errors import StoreRefused, StoreUnavailable
from statelog.log import Log, LogOptions
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.recovery import newest_changes, plan_changes, recover
from statelog.recovery.settings import RecoverySettings
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore
from tests.support.rigs.history import HistoryRig, history_rig
from tests.support.rigs.log import where_at
from tests.support.samples.folds import apply_to_dict
from tests.support.services.s3_faulty import FaultyS3, Told, faulty_s3
from tests.support.told import told

WRITES = ("put", "put_if_absent", "upload", "delete", "now_s")


@pytest.fixture
def rig() -> HistoryRig:
    """Return a log with a snapshot and a tail."""
    made = history_rig()
    with Writer(made.log, "w") as writer:
        made.commit(writer, 1, [(b"a", b"1"), (b"b", b"2")])
        made.snapshot()
        made.commit(writer, 2, [(b"a", b"3")])
    return made


def _reader(rig: HistoryRig, error: Exception) -> Log:
    """Return the log as a process sees it that may only read."""
    store = rig.log.store
    assert isinstance(store, MemoryStore)

    def refuse(method: str, _path: str) -> None:
        if method in WRITES:
            raise error

    assert isinstance(rig.log.kafka, MemoryKafka)
    reading = MemoryStore(store.disk, rig.log.name, faults=refuse)
    return Log.open(rig.log.name, where_at(rig.log.kafka, reading))


def test_a_reader_without_the_right_to_write_recovers(rig: HistoryRig) -> None:
    """A reader without the right to write gets the whole state, a warning, and statistics; a follower reads on."""
    with told(), recover(_reader(rig, StoreRefused("403"))) as recovery:
        assert recovery.to_dict() == rig.state_at(rig.end())
        assert not recovery.statistics().has_lease
        assert any("without a lease" in text for text in recovery.warnings)


def test_a_follower_without_the_right_to_write_goes_on(rig: HistoryRig) -> None:
    """A follower without the right to write also gets later commits."""
    state = dict[object, object]()
    with told(), recover(_reader(rig, StoreRefused("403"))).follow(poll_s=0.01) as stream:
        with Writer(rig.log, "w") as writer:
            rig.commit(writer, 3, [(b"c", b"4")])
        for portion in stream:
            for row in portion.changes.to_pylist():
                state[row["key"]] = row["value"]
            if b"c" in state:
                break
    assert state == rig.state_at(rig.end())


def test_a_store_that_is_away_is_still_an_error(rig: HistoryRig) -> None:
    """An unavailable store is still an error: a lease that could be written is not skipped for it."""
    with pytest.raises(StoreUnavailable):
        recover(_reader(rig, StoreUnavailable("silence"))).to_dict()


def test_without_a_lease_truncation_is_noticed(rig: HistoryRig) -> None:
    """A reader without a lease that truncation overtakes plans again, from the newer snapshot, to the same state."""
    with recover(rig.log, settings=RecoverySettings(lease=False)) as recovery:
        position = recovery.position
        assert list_leases(rig.log.store) == []
        oldest = rig.manifests[0]
        newest = rig.snapshot(merge=True)
        rig.truncate(newest)
        rig.drop(oldest)
        assert recovery.to_dict() == rig.state_at(position)
        assert recovery.statistics().plans == 2
        assert not recovery.statistics().has_lease
        assert recovery.warnings == ()


def test_newest_changes_that_want_no_lease_write_nothing(rig: HistoryRig) -> None:
    """Newest changes without a lease write nothing, like a recovery: every write to the store would fail."""
    log = _reader(rig, StoreUnavailable("silence"))
    state = dict[bytes, bytes]()
    for table in newest_changes(log, plan_changes(log), settings=RecoverySettings(lease=False)):
        apply_to_dict(table, state)
    assert state == rig.state_at(rig.end())


@pytest.fixture
def service() -> Iterator[FaultyS3]:
    """Yield an S3 service."""
    with faulty_s3() as running:
        yield running


def test_s3_credentials_that_may_only_read(service: FaultyS3) -> None:
    """The real client's 403 for every write costs the lease, and nothing else."""
    log = history_rig().log
    assert isinstance(log.kafka, MemoryKafka)
    options = service.options
    where = where_at(log.kafka, "s3://bucket/logs", storage_options=options)
    made = Log.create("s3log", where, LogOptions(partitions=2))
    with Writer(made, "w") as writer:
        writer.put(b"a", b"1")
        writer.commit(checkpoint_id=1)
    service.faults += [Told("PUT", 403)] * 20 + [Told("DELETE", 403)] * 20
    with told("403|AccessDenied|told to"), recover(made) as recovery:
        assert recovery.to_dict() == {b"a": b"1"}
        assert not recovery.statistics().has_lease
