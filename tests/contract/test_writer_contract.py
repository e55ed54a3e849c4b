"""The promises of a writer, on the in-memory twins and on a real broker alike."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from statelog.errors import (
    AlreadyExists,
    CheckpointMismatch,
    ClosedError,
    Fenced,
    Misuse,
    NotFound,
    ValueTooLarge,
)
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.schemas.ledger.handle import Handle
from tests.support.rigs.log import LogRig, key_in


def test_committed_changes_are_the_state(rig: LogRig, log: Log) -> None:
    """Puts, overwrites and deletes, over several commits, add up to the last value of each key."""
    with Writer(log, "w") as writer:
        for i in range(100):
            writer.put(b"k%d" % i, b"a%d" % i)
        writer.commit(checkpoint_id=1)
        writer.put(b"k1", b"b")
        writer.delete(b"k2")
        writer.delete(b"never there")
        writer.commit(checkpoint_id=2)

    state = rig.state()

    assert len(state) == 99
    assert state[b"k1"] == b"b"
    assert b"k2" not in state


def test_uncommitted_changes_are_never_seen(rig: LogRig, log: Log) -> None:
    """Persisted or sent changes without a commit are not part of the state, and closing says so."""
    writer = Writer(log, "w")
    writer.put(b"k", b"persisted")
    writer.persist(1).result()
    with pytest.warns(UserWarning, match="uncommitted"):
        writer.close()

    assert rig.state() == {}


def test_closing_after_an_error_does_not_hide_it(rig: LogRig, log: Log) -> None:
    """An exception inside the block discards the changes and comes out unchanged."""
    with pytest.raises(RuntimeError, match="mine"), Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        raise RuntimeError("mine")

    assert rig.state() == {}


def test_commit_without_changes_is_progress(rig: LogRig, log: Log) -> None:
    """A quiet stretch of input still moves the source position."""
    with Writer(log, "w") as writer:
        writer.commit({"offset": "10"}, checkpoint_id=1)
        writer.commit({"offset": "20"}, checkpoint_id=7)

    with rig.open() as again, Writer(again, "w", expect=7) as writer:
        last = writer.last_commit

    assert last is not None
    assert (last.checkpoint.id, last.metadata) == (7, {"offset": "20"})


def test_checkpoint_ids_grow(log: Log) -> None:
    """An id that is not greater than the last one is refused before anything is sent."""
    with Writer(log, "w") as writer:
        writer.commit(checkpoint_id=5)
        with pytest.raises(CheckpointMismatch):
            writer.commit(checkpoint_id=5)
        with pytest.raises(CheckpointMismatch):
            writer.persist(4).result()
        writer.commit(checkpoint_id=6)


def test_opening_at_an_unexpected_checkpoint_is_refused(rig: LogRig, log: Log) -> None:
    """A job that resumes from another checkpoint than the log's is refused, and fences nobody."""
    with Writer(log, "w") as writer:
        writer.commit(checkpoint_id=3)
        with rig.open() as other, pytest.raises(CheckpointMismatch) as caught:
            Writer(other, "w", expect=2)
        writer.commit(checkpoint_id=4)

    assert caught.value.facts["found"] == 3


def test_handle_includes_unconfirmed_checkpoints(rig: LogRig, log: Log) -> None:
    """Skipping a confirm loses nothing: the next handle lists the earlier change sets again."""
    with Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        writer.persist(1).result()
        writer.put(b"b", b"2")
        second = writer.persist(2).result()
        writer.confirm(second)

    assert rig.state() == {b"a": b"1", b"b": b"2"}
    assert [step.checkpoint_id for step in second.steps] == [1, 2]


def test_pipelined_persists_are_confirmed_in_order(rig: LogRig, log: Log) -> None:
    """Two handles persisted before the first confirm commit one after the other, each change once."""
    with Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        first = writer.persist(1).result()
        writer.put(b"a", b"2")
        second = writer.persist(2).result()
        writer.confirm(first)
        middle = rig.state()
        writer.confirm(second)

    assert middle == {b"a": b"1"}
    assert rig.state() == {b"a": b"2"}


def test_flip_158_worked_example(rig: LogRig, log: Log) -> None:
    """FLIP-158: a; CP1; b, c; CP2 re-uses CP1's part; d; CP3. After each checkpoint the state has every change once."""
    with Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        cp1 = writer.persist(1).result()
        writer.put(b"b", b"1")
        writer.put(b"c", b"1")
        cp2 = writer.persist(2).result()
        sent = {(entry.partition, entry.sqn) for entry in cp1.entries}
        assert sent < {(entry.partition, entry.sqn) for entry in cp2.entries}
        writer.confirm(cp1)
        assert rig.state() == {b"a": b"1"}
        writer.confirm(cp2)
        assert rig.state() == {b"a": b"1", b"b": b"1", b"c": b"1"}
        writer.put(b"d", b"1")
        cp3 = writer.persist(3).result()
        assert {entry.sqn for entry in cp3.entries}.isdisjoint({entry.sqn for entry in cp2.entries})
        writer.confirm(cp3)

    assert rig.state() == {b"a": b"1", b"b": b"1", b"c": b"1", b"d": b"1"}


def test_a_later_life_adopts_a_persisted_handle(rig: LogRig, log: Log) -> None:
    """A handle that was stored before a crash is committed by the next incarnation, from its bytes."""
    before = Writer(log, "w")
    before.put(b"k", b"v")
    stored = before.persist(1).result().to_bytes()
    with pytest.warns(UserWarning):
        before.close()
    with rig.open() as again, Writer(again, "w") as writer:
        writer.adopt(Handle.from_bytes(stored), {"offset": "1"})
        with pytest.raises(CheckpointMismatch):
            writer.adopt(Handle.from_bytes(stored))
        writer.put(b"l", b"w")
        writer.commit(checkpoint_id=2)

    assert rig.state() == {b"k": b"v", b"l": b"w"}


def test_adopting_after_an_append_is_refused(rig: LogRig, log: Log) -> None:
    """Adopting after an append is refused: the order of adopted and new changes would be arbitrary."""
    before = Writer(log, "w")
    before.put(b"k", b"v")
    handle = before.persist(1).result()
    with pytest.warns(UserWarning):
        before.close()
    with pytest.warns(UserWarning), rig.open() as again, Writer(again, "w") as writer:
        writer.put(b"x", b"y")
        with pytest.raises(Misuse):
            writer.adopt(handle)


def test_a_newer_writer_of_the_name_fences_the_older(rig: LogRig, log: Log) -> None:
    """A newer writer of the name fences the older: its changes never appear, and it accepts nothing any more."""
    old = Writer(log, "w")
    old.put(b"k", b"old")
    with rig.open() as other, Writer(other, "w") as new:
        new.put(b"k", b"new")
        new.commit(checkpoint_id=1)
        with pytest.raises(Fenced):
            old.commit(checkpoint_id=1)
        with pytest.raises(ClosedError):
            old.put(b"k", b"again")
        old.close()

    assert rig.state() == {b"k": b"new"}


def test_partial_overlap_fences_the_whole_epoch(rig: LogRig, log: Log) -> None:
    """A writer that lost one partition lost all: a change set spans its partitions."""
    old = Writer(log, "old")
    with rig.open() as other, Writer(other, "new", partitions=[0]) as new:
        old.put(key_in(log, 3), b"old")
        with pytest.raises(Fenced):
            old.commit(checkpoint_id=1)
        old.close()
        new.put(key_in(log, 0), b"new")
        new.commit(checkpoint_id=1)

    assert rig.state() == {key_in(log, 0): b"new"}


def test_writers_on_disjoint_partitions_share_a_log(rig: LogRig, log: Log) -> None:
    """Two writers on disjoint partitions, each with its own checkpoints, share a log undisturbed."""
    with rig.open() as other, Writer(log, "a", partitions=[0, 1]) as a, Writer(other, "b", partitions=[2, 3]) as b:
        for i in range(1, 4):
            a.put(key_in(log, 0), b"a%d" % i)
            b.put(key_in(log, 2), b"b%d" % i)
            a.commit(checkpoint_id=i)
            b.commit(checkpoint_id=i * 10)

    assert rig.state() == {key_in(log, 0): b"a3", key_in(log, 2): b"b3"}


def test_meta_records_are_committed_with_the_changes(rig: LogRig, log: Log) -> None:
    """The last meta record of a key wins, and only what is committed counts."""
    with Writer(log, "w") as writer:
        writer.append_meta("state", b"v1")
        writer.append_meta("state", b"v2")
        writer.commit(checkpoint_id=1)
        writer.append_meta("state", b"never")
        writer.persist(2).result()
        writer.append_meta("other", b"x")
        handle = writer.persist(3).result()
        writer.confirm(handle)
    with rig.open() as again:
        described = again.describe()

    assert {(row.writer, row.key): row.value for row in described.state.meta} == {
        ("w", "state"): b"never",
        ("w", "other"): b"x",
    }


def test_a_meta_record_that_is_replaced_makes_room(log: Log) -> None:
    """Only the last record of a meta key counts against the limit, not every one that it had."""
    with Writer(log, "w") as writer:
        for number in range(4):
            writer.append_meta("state", bytes([number]) * (5 << 20))
        with pytest.raises(ValueTooLarge):
            writer.append_meta("other", bytes(5 << 20))
        writer.append_meta("state", b"small")
        writer.append_meta("other", bytes(5 << 20))
        writer.commit(checkpoint_id=1)


def test_a_final_commit_ends_the_row(rig: LogRig, log: Log) -> None:
    """After a final commit the ledger does not know the writer, the state stays, and a new one has no checkpoint."""
    with Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        writer.commit(checkpoint_id=9, final=True)
    with rig.open() as again, Writer(again, "w", expect=0) as writer:
        assert writer.last_commit is None
        writer.commit(checkpoint_id=1)

    assert rig.state() == {b"k": b"v"}


def test_a_second_thread_is_refused(log: Log) -> None:
    """A writer belongs to one thread; another one's put is refused, not interleaved."""
    found: list[BaseException] = []

    def intrude() -> None:
        try:
            writer.put(b"k", b"v")
        except ClosedError as error:
            found.append(error)

    with Writer(log, "w") as writer:
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        writer.commit(checkpoint_id=1)

    assert len(found) == 1


def test_a_forked_child_is_refused(rig: LogRig, log: Log) -> None:
    """A forked child's copy of a writer closes without touching the parent's clients; the parent goes on."""
    writer = Writer(log, "w")
    writer.put(b"k", b"v")
    child = os.fork()
    if child == 0:
        try:
            writer.put(b"child", b"v")
        except ClosedError:
            writer.close()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    writer.commit(checkpoint_id=1)
    writer.close()

    assert os.waitstatus_to_exitcode(status) == 0
    assert rig.state() == {b"k": b"v"}


def test_close_is_idempotent_and_final(log: Log) -> None:
    """Closing a writer twice is fine, using it afterwards is not."""
    writer = Writer(log, "w")
    writer.close()
    writer.close()

    with pytest.raises(ClosedError):
        writer.put(b"k", b"v")
    with pytest.raises(ClosedError):
        writer.commit(checkpoint_id=1)


def test_create_open_delete(rig: LogRig, log: Log) -> None:
    """A log is made once, opened any number of times, and a delete removes it, topics included."""
    with pytest.raises(AlreadyExists):
        rig.create()
    with rig.open() as again:
        assert again.descriptor == log.descriptor
    Log.delete(rig.name, rig.where())

    with pytest.raises(NotFound):
        rig.open()
    assert rig.kafka().describe_topic(rig.name) is None


def test_writers_in_threads_share_a_log(rig: LogRig, log: Log) -> None:
    """Writers in threads share a log: each commits over and over in its own partition, and all commits count."""
    count, commits = 4, 25

    def work(number: int) -> list[int]:
        with Writer(log, f"w{number}", partitions=[number]) as writer:
            begun.wait(60)
            found: list[int] = []
            for i in range(commits):
                writer.put(key_in(log, number), b"%d of %d" % (i, number))
                found.append(writer.commit().offset)
        return found

    begun = threading.Barrier(count)
    with ThreadPoolExecutor(count) as threads:
        offsets = list(threads.map(work, range(count)))

    assert all(len(set(found)) == commits and found == sorted(found) for found in offsets)
    assert rig.state() == {key_in(log, number): b"%d of %d" % (commits - 1, number) for number in range(count)}
