"""The life cycle of a writer's change sets, from append to history, on the in-memory twins and on a real broker."""

import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from statelog.errors import CheckpointMismatch, KeyGroupMismatch, Misuse, SequenceAhead, SequenceTruncated
from statelog.log import Log
from statelog.pending import Pending
from statelog.producer.settings import WriterSettings, WriterTuning, tuning_of
from statelog.producer.writer import Writer
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import key_group_of
from statelog.schemas.ledger.handle import Handle
from tests.support.rigs.log import LogRig, TwinRig

pytestmark = pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")

AHEAD = WriterSettings(_tuning=WriterTuning(roll_rows=4, list_bytes=128, roll_bytes=1024, chunk_bytes=256))


@pytest.fixture
def log(rig: LogRig) -> Iterator[Log]:
    """Yield a new log of opaque values under bytes keys."""
    with rig.create(partitions=2, key_groups=4) as created:
        yield created


def sent_bytes(writer: Writer) -> int:
    """Return the bytes of record values that this writer has sent."""
    return int(writer.statistics().chunk_bytes.total)


def fill(writer: Writer, count: int, prefix: bytes = b"k") -> None:
    """Append changes of about a hundred bytes."""
    for i in range(count):
        writer.put(prefix + b"%d" % i, bytes(100))


def test_sequence_numbers_move_with_appends_only(log: Log) -> None:
    """The next sequence number grows by one if something was appended since the last call, and by nothing else."""
    with Writer(log, "w") as writer:
        first = writer.initial_sequence_number
        assert writer.next_sequence_number() == first
        assert writer.next_sequence_number() == first
        writer.put(b"a", b"1")
        writer.put(b"b", b"1")
        assert writer.next_sequence_number() == first + 1
        writer.truncate(first)
        assert writer.next_sequence_number() == first + 1
        writer.commit(checkpoint_id=1)
        assert writer.next_sequence_number() == first + 1
        writer.put(b"a", b"2")
        writer.persist(2).result()
        assert writer.next_sequence_number() == first + 2


def test_a_small_append_sends_nothing(log: Log) -> None:
    """Appending buffers, rolling over buffers, and only a persist sends."""
    with Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        writer.next_sequence_number()
        writer.put(b"l", b"w")
        assert writer.statistics().chunk_bytes.count == 0
        assert writer.statistics().buffered_changes == 2
        handle = writer.persist(1).result()

    assert sent_bytes(writer) == handle.size_bytes


def test_a_full_buffer_is_persisted_ahead(rig: LogRig, log: Log) -> None:
    """Changes above the threshold are sent before any checkpoint; it then sends the rest, and lists all once."""
    with Writer(log, "w", settings=AHEAD) as writer:
        fill(writer, 41)
        ahead = sent_bytes(writer)
        assert ahead >= tuning_of(AHEAD).roll_bytes
        assert writer.statistics().persists_ahead >= 1
        handle = writer.persist(1).result()
        assert ahead < sent_bytes(writer) == handle.size_bytes
        writer.confirm(handle)

    assert len(rig.state()) == 41


def test_what_was_rolled_over_is_sent_first(rig: LogRig, log: Log) -> None:
    """A full buffer does not overtake an older change set that no checkpoint has claimed."""
    with Writer(log, "w", settings=AHEAD) as writer:
        writer.put(b"k0", b"old")
        writer.next_sequence_number()
        fill(writer, 40)
        writer.put(b"k1", b"new")
        writer.commit(checkpoint_id=1)

    state = rig.state()
    assert state[b"k0"] == bytes(100)
    assert state[b"k1"] == b"new"


def test_rolling_over_holds_no_more_than_the_threshold(log: Log) -> None:
    """Rolling over holds no more than the threshold: change sets are sent once they are many."""
    with Writer(log, "w", settings=AHEAD) as writer:
        for i in range(100):
            writer.put(b"%d" % i, bytes(100))
            writer.next_sequence_number()
        assert writer.statistics().buffered_changes * 100 < 2 * tuning_of(AHEAD).roll_bytes
        assert writer.statistics().change_sets == 100


def test_nothing_is_sent_twice(rig: LogRig, log: Log) -> None:
    """A checkpoint sends only new changes, though it needs an earlier one's, durable or still in flight."""
    with Writer(log, "w") as writer:
        start = writer.initial_sequence_number
        fill(writer, 5)
        first = writer.persist(1, from_sqn=start)
        sent = sent_bytes(writer)
        again = writer.persist(2, from_sqn=start)
        assert sent_bytes(writer) == sent
        assert again.result().entries == first.result().entries
        writer.put(b"more", b"v")
        third = writer.persist(3, from_sqn=start).result()
        assert sent_bytes(writer) == third.size_bytes > sent
        writer.confirm(third)
        last = writer.persist(4, from_sqn=start).result()
        assert sent_bytes(writer) == third.size_bytes
        assert last.entries == ()

    assert len(rig.state()) == 6


def test_an_empty_range_is_complete_at_once(log: Log) -> None:
    """An empty range is complete at once: with nothing to send and nothing in flight, nobody waits."""
    with Writer(log, "w") as writer:
        persist = writer.persist(1, from_sqn=writer.next_sequence_number())
        assert persist.done()
        assert persist.result(0).entries == ()


def test_checkpoints_in_flight_side_by_side(rig: LogRig, log: Log) -> None:
    """Several checkpoints are in flight at the same time, may be asked in any order, and commit in theirs."""
    with Writer(log, "w") as writer:
        under_way: list[Pending[Handle]] = []
        for i in range(1, 6):
            writer.put(b"k", b"%d" % i)
            under_way.append(writer.persist(i))
        handles = [persist.result() for persist in reversed(under_way)][::-1]
        assert [len(handle.steps) for handle in handles] == [1, 2, 3, 4, 5]
        assert under_way[2].result() is handles[2]
        for i, handle in enumerate(handles, 1):
            writer.confirm(handle)
            assert rig.state() == {b"k": b"%d" % i}


def test_an_aborted_checkpoint_is_included_in_the_next(rig: LogRig, log: Log) -> None:
    """Reset loses nothing and sends nothing again; an older or unknown checkpoint changes nothing."""
    with Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        writer.persist(1).result()
        sent = sent_bytes(writer)
        writer.reset(1)
        writer.reset(1)
        writer.reset(77)
        second = writer.persist(2).result()
        assert sent_bytes(writer) == sent
        writer.confirm(second)

    assert rig.state() == {b"a": b"1"}


def test_a_wrong_start_is_refused_by_its_own_error(rig: LogRig, log: Log) -> None:
    """A start below the truncation and one above the next number each have their own error, and the writer goes on."""
    with Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        writer.commit(checkpoint_id=1)
        writer.truncate(writer.next_sequence_number())
        with pytest.raises(SequenceTruncated):
            writer.persist(2, from_sqn=writer.initial_sequence_number)
        with pytest.raises(SequenceAhead):
            writer.persist(2, from_sqn=writer.next_sequence_number() + 1)
        with pytest.raises(CheckpointMismatch):
            writer.persist(1, from_sqn=writer.next_sequence_number())
        writer.put(b"b", b"2")
        writer.confirm(writer.persist(2, from_sqn=2).result())

    assert rig.state() == {b"a": b"1", b"b": b"2"}


def test_truncation_never_drops_what_is_needed(rig: LogRig, log: Log) -> None:
    """Changes in no checkpoint cannot be truncated; an unconfirmed one's stay, and are committed."""
    with Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        first_end = writer.next_sequence_number()
        with pytest.raises(Misuse, match="no checkpoint"):
            writer.truncate(first_end)
        with pytest.raises(SequenceAhead):
            writer.truncate(first_end + 1)
        writer.persist(1)
        writer.truncate(first_end)
        writer.put(b"b", b"2")
        second = writer.persist(2).result()
        assert len(second.entries) == 2
        writer.confirm(second)
        writer.truncate(first_end)

    assert rig.state() == {b"a": b"1", b"b": b"2"}


def test_a_confirm_may_come_after_the_truncation(rig: LogRig, log: Log) -> None:
    """A truncation between does not keep a checkpoint from being confirmed."""
    with Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        first = writer.persist(1).result()
        writer.put(b"a", b"2")
        second = writer.persist(2).result()
        writer.truncate(writer.next_sequence_number())
        writer.confirm(first)
        writer.confirm(second)

    assert rig.state() == {b"a": b"2"}


def test_truncate_and_close_keeps_what_a_checkpoint_needs(rig: LogRig, log: Log) -> None:
    """The tail is dropped without a warning; a checkpoint in flight below it completes, for a later incarnation."""
    writer = Writer(log, "w")
    writer.put(b"a", b"1")
    persist = writer.persist(1)
    end = writer.next_sequence_number()
    writer.put(b"b", b"never in a checkpoint")
    writer.truncate_and_close(end)
    with rig.open() as again, Writer(again, "w") as later:
        later.adopt(persist.result())

    assert rig.state() == {b"a": b"1"}


def test_truncate_and_close_says_nothing_of_what_it_was_told_to_drop(log: Log) -> None:
    """Closing warns of uncommitted changes, unless they are the named ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer = Writer(log, "w")
        writer.put(b"a", b"1")
        writer.commit(checkpoint_id=1)
        end = writer.next_sequence_number()
        writer.put(b"b", b"2")
        with pytest.raises(SequenceAhead):
            writer.truncate_and_close(end + 1)
        writer.truncate_and_close(end)
        other = Writer(log, "w")
        other.put(b"b", b"2")
        with pytest.raises(UserWarning, match="uncommitted"):
            other.truncate_and_close(other.next_sequence_number())


@pytest.mark.usefixtures("busy_ledger")
def test_statistics_add_up(rig: LogRig, log: Log) -> None:
    """Counts, sizes and times of a short use add up: full and incremental bytes differ, and nothing stays in flight."""
    with Writer(log, "w") as writer:
        fill(writer, 10)
        first = writer.persist(1).result()
        fill(writer, 20, b"l")
        second = writer.persist(2).result()
        writer.confirm(second)
        fill(writer, 3, b"m")
        found = writer.statistics()
        writer.commit(checkpoint_id=3)
        with pytest.raises(CheckpointMismatch):
            writer.commit(checkpoint_id=3)
    after = writer.statistics()

    assert (found.changes, found.buffered_changes, found.change_sets) == (33, 3, 2)
    assert (found.full_bytes, found.incremental_bytes) == (second.size_bytes, second.size_bytes - first.size_bytes)
    assert (found.persist_s.count, found.confirm_s.count, found.confirm_failures) == (2, 1, 0)
    assert found.chunk_bytes.total == second.size_bytes
    assert found.chunk_s.count == found.chunk_bytes.count > 0
    assert found.chunk_s.total > 0 or isinstance(rig, TwinRig), "the twin takes no time"
    assert found.chunk_s.largest <= found.persist_s.largest
    assert 0 < found.persist_s.mean <= found.persist_s.largest
    assert (found.failed_chunks, found.in_flight_bytes, found.in_flight_chunks, found.available) == (0, 0, 0, True)
    assert (after.changes, after.buffered_changes, after.available) == (33, 0, False)
    assert (after.persist_s.count, after.confirm_s.count) == (3, 2)
    assert (after.commit_attempts.count, after.commit_attempts.largest) == (2, 1)


def test_statistics_are_for_any_thread(log: Log) -> None:
    """Another thread may read the statistics at any time while the writer's own works."""
    found: list[int] = []
    failures: list[BaseException] = []
    is_over = threading.Event()

    def watch() -> None:
        try:
            while not is_over.is_set():
                found.append(writer.statistics().buffered_changes)
        except RuntimeError as error:
            failures.append(error)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Writer(log, "w") as writer:
            thread = threading.Thread(target=watch)
            thread.start()
            for i in range(1_000):
                writer.put(b"%d" % i, b"v")
                writer.next_sequence_number()
            is_over.set()
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)

    assert not failures
    assert found


@pytest.mark.parametrize("hash_rule", [HashRule.CRC32, HashRule.CALLER])
def test_a_key_group_outside_the_writers_own_is_refused_at_append(rig: LogRig, hash_rule: HashRule) -> None:
    """A named or hashed change for another writer's partition is a typed refusal, and the writer goes on."""
    with rig.create(partitions=2, key_groups=4, hash_rule=hash_rule) as log, Writer(log, "w", partitions=[1]) as writer:
        by_group = {key_group_of(b"%d" % i, log.descriptor.key_type, 4): b"%d" % i for i in range(100)}
        for key_group in (0, 1, -1, 4):
            with pytest.raises(KeyGroupMismatch):
                writer.append(key_group, by_group.get(key_group, b"0"), b"v")
        for key_group in (2, 3):
            writer.append(key_group, by_group[key_group], b"v")
        writer.commit(checkpoint_id=1)

    assert rig.state() == {by_group[2]: b"v", by_group[3]: b"v"}


def test_a_meta_record_is_removed_by_none(rig: LogRig, log: Log) -> None:
    """None removes a meta record, in its own commit or before the record was ever committed; another writer's stays."""
    with Writer(log, "other", partitions=[0]) as other:
        other.append_meta("state", b"theirs")
        other.commit(checkpoint_id=1)
    with Writer(log, "w", partitions=[1]) as writer:
        writer.append_meta("state", b"v1")
        writer.append_meta("passing", b"x")
        writer.append_meta("passing", None)
        writer.append_meta("kept", b"y")
        writer.commit(checkpoint_id=1)
        assert writer.statistics().buffered_changes == 0
        writer.append_meta("state", None)
        writer.commit(checkpoint_id=2)
    with rig.open() as again:
        rows = again.describe().state.meta

    assert {(row.writer, row.key): row.value for row in rows} == {("other", "state"): b"theirs", ("w", "kept"): b"y"}
