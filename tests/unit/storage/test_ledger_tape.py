"""Many who follow one ledger through one log: each record is read once, whatever becomes of one of them."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import BeyondEnd, DataLoss, Fenced, UncommittedChanges
from statelog.producer.writer import Writer
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint
from statelog.schemas.ledger.place import ORIGIN, LastRecord
from statelog.schemas.ledger.records import Commit
from statelog.schemas.topic_policy import Truncation
from statelog.storage import ledger_tape
from statelog.storage.kafka import OffsetRange, Record
from statelog.storage.ledger_client import LOOK_AGAIN_S, LedgerClient
from statelog.storage.ledger_tape import LedgerTape, Look, Taped
from statelog.testing.kafka import MemoryReader
from tests.support.faults.breaking_kafka import BreakingKafka
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import key_in, twin_rig

_WRITERS = 20
_COMMIT = Commit.of(
    epoch=0,
    nonce=b"n" * 16,
    base=NO_CHECKPOINT,
    checkpoint=Checkpoint(1, b"n" * 16),
    metadata={},
    handles=[],
    witness=ORIGIN,
)


def taped(offset: int, value: bytes = b"v") -> Taped:
    """A record that was read."""
    return Taped(Record(0, offset, value, 0), None, 0.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the ledger was read."""
    found, read = Counter[str](), MemoryReader.read

    def noted(self: MemoryReader, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        found["all"] += 1
        return read(self, ranges, stall_timeout_s=stall_timeout_s)

    monkeypatch.setattr(MemoryReader, "read", noted)
    return found


class Twenty:
    """A log, as many writers that share it by partitions, and a clock that stands still."""

    def __init__(self, stack: ExitStack) -> None:
        self.now_s = 1_000.0
        self.environment = Environment(clock=lambda: self.now_s)
        self.rig = twin_rig("l")
        self.log = stack.enter_context(self.environment.run(self.rig.create, partitions=_WRITERS, key_groups=64))
        self.writers = [
            stack.enter_context(self.environment.run(Writer, self.log, f"w{i}", partitions=[i]))
            for i in range(_WRITERS)
        ]

    def commit(self, number: int) -> int:
        """One change by a writer; returns the commit's offset."""
        writer = self.writers[number]
        writer.put(key_in(self.log, number), b"v")
        return writer.commit().offset

    def commit_all(self) -> list[int]:
        """One change by each."""
        return [self.commit(number) for number in range(_WRITERS)]

    def follower(self) -> LedgerClient:
        """Another one of this process."""
        return self.environment.run(self.log.ledger.client, shares=True)

    def elsewhere(self) -> None:
        """Another process takes the first partition."""
        self.writers[0].close()
        with self.rig.open() as log, Writer(log, "elsewhere", partitions=[0]) as other:
            other.put(key_in(log, 0), b"w")
            other.commit()


@pytest.fixture
def twenty(reads: Counter[str]) -> Generator[Twenty]:
    """All of it, opened."""
    with ExitStack() as stack:
        twenty = Twenty(stack)
        reads.clear()
        yield twenty


def test_what_others_of_the_process_committed_is_not_read(twenty: Twenty, reads: Counter[str]) -> None:
    """Nor is what they opened: all that lies in between was acknowledged here."""
    offsets = [offset for _ in range(3) for offset in twenty.commit_all()]
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    assert not reads["all"]


def test_one_looks_for_all_once_a_second(twenty: Twenty, reads: Counter[str]) -> None:
    """Whether the ledger still is the one that they know."""
    twenty.commit_all()
    for _ in range(3):
        twenty.now_s += LOOK_AGAIN_S
        twenty.commit_all()
    assert reads["all"] == 3


def test_threads_that_commit_at_once(twenty: Twenty, reads: Counter[str]) -> None:
    """Each is told what became of its own commit, and waits for the answers of others instead of reading them."""
    begun = threading.Barrier(_WRITERS)
    adopt = [writer.hand_over() for writer in twenty.writers]

    def commit(number: int) -> tuple[int, Callable[[], None]]:
        adopt[number]()
        begun.wait(60)
        return twenty.commit(number), twenty.writers[number].hand_over()

    with ThreadPoolExecutor(_WRITERS) as threads:
        found = list(threads.map(commit, range(_WRITERS)))
    for _, adopt_again in found:
        adopt_again()
    offsets = sorted(offset for offset, _ in found)
    assert offsets == list(range(offsets[0], offsets[0] + _WRITERS))
    assert reads["all"] <= _WRITERS // 2, "each read"


def test_who_opens_beside_others_does_not_read_what_each_of_them_saw(twenty: Twenty, reads: Counter[str]) -> None:
    """Chunks that wait for their commit name as many places in the ledger as there are writers: all are known here."""
    for number, writer in enumerate(twenty.writers):
        twenty.commit(number)
        writer.put(key_in(twenty.log, number), b"waits")
        writer.persist().result()
    reads.clear()
    with twenty.environment.run(Writer, twenty.log, "w0", partitions=[0]):
        assert reads["all"] <= 4
    for writer in twenty.writers[1:]:
        writer.commit()
    with pytest.warns(UncommittedChanges):
        twenty.writers[0].close()


def test_a_commit_of_another_process_is_read_once(twenty: Twenty, reads: Counter[str]) -> None:
    """It lies between those of this process."""
    twenty.commit_all()
    twenty.elsewhere()
    reads.clear()
    for number in range(1, _WRITERS):
        twenty.commit(number)
    assert reads["all"] == 1


def test_a_ledger_that_lost_what_was_acknowledged_is_noticed(twenty: Twenty) -> None:
    """By each that has folded it, a second later, although all others of the process have seen the same."""
    lost = twenty.commit_all()[0]
    twenty.rig.cluster.lose_tail("l.ledger", 0, lost)
    twenty.elsewhere()
    twenty.now_s += LOOK_AGAIN_S
    for number in range(_WRITERS - 1, 0, -1):
        with pytest.raises(DataLoss):
            twenty.commit(number)
        twenty.writers[number].close()


def test_a_look_that_ends_below_what_was_folded_does_not_count(twenty: Twenty) -> None:
    """A process that stood still for a minute: one looks as far as its own commit, and what another has folded behind
    that is lost. The next commit of that one lands right at the end of its fold, and is void.
    """
    end, cluster = twenty.commit_all()[-1] + 1, twenty.rig.cluster
    twenty.now_s += 60.0
    cluster.lose_tail("l.ledger", 0, end - 5)
    with twenty.rig.open() as elsewhere:
        write_all(elsewhere.kafka, "l.ledger", 0, [b"somebody's"] * 5)
    with twenty.follower() as looks:
        looks.fold_to(end - 5)
    with pytest.raises(DataLoss):
        twenty.commit(_WRITERS - 1)
    twenty.writers[-1].close()


def test_what_lies_behind_a_look_is_as_old_as_it_was_sent(twenty: Twenty) -> None:
    """A process that stood still: one looks as far as all is as it was, what lies behind that is lost, and another
    process has taken a partition. Who has folded little goes on with what was looked at, and with what was put down
    behind it: its next commit lands right at the end of that, and is void.
    """
    first, end = twenty.commit_all()[0], twenty.log.position
    twenty.now_s += 60.0
    twenty.rig.cluster.lose_tail("l.ledger", 0, first + 5)
    with twenty.rig.open() as log, Writer(log, "elsewhere", partitions=[0]):
        write_all(log.kafka, "l.ledger", 0, [b"somebody's"] * (end - first - 6))
    with twenty.follower() as looks:
        looks.fold_to(first + 5)
    with pytest.raises(Fenced):
        twenty.commit(0)


def test_who_has_folded_more_than_was_looked_at_need_not_look(twenty: Twenty, reads: Counter[str]) -> None:
    """As long as the rest was sent lately."""
    began_s = twenty.now_s
    with twenty.follower() as follows, twenty.follower() as looks:
        follows.fold_end()
        twenty.now_s = began_s + 0.3 * LOOK_AGAIN_S
        end = twenty.commit_all()[-1] + 1
        follows.fold_to(end)
        twenty.now_s = began_s + 0.4 * LOOK_AGAIN_S
        looks.fold_to(end - 5)
        reads.clear()
        for at, count in ((0.75, 0), (0.85, 1)):
            twenty.now_s = began_s + at * LOOK_AGAIN_S
            follows.fold_to(twenty.commit(_WRITERS - 1) + 1)
            assert reads["all"] == count


def test_what_was_put_down_before_a_tail_was_lost_is_not_joined_to_what_grew_since(twenty: Twenty) -> None:
    """Who opens reads past it, from below the loss: an idle writer, whose Open is lost, does not go on from there."""
    idle = twenty.writers[-1]
    for _ in range(15):
        for number in range(_WRITERS - 1):
            twenty.commit(number)
    with twenty.rig.open() as elsewhere:
        twenty.rig.cluster.lose_tail("l.ledger", 0, idle.grant.epoch)
        write_all(elsewhere.kafka, "l.ledger", 0, [b"somebody's"] * 500)
    twenty.now_s += LOOK_AGAIN_S
    with pytest.raises(DataLoss):
        twenty.environment.run(Writer, twenty.log, "anew", partitions=[0])
    idle.put(key_in(twenty.log, _WRITERS - 1), b"v")
    with pytest.raises(DataLoss):
        idle.commit()


def test_an_open_that_is_lost_before_its_opener_is_told_is_no_ground(
    twenty: Twenty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stood still while it asked who answers, and another one of its threads has looked since."""
    verify = twenty.log.verify_anew

    def stands_still(*asked: Any) -> Truncation:
        truncation, epoch = verify(*asked), twenty.log.ledger.end() - 1
        twenty.now_s += 60.0
        twenty.rig.cluster.lose_tail("l.ledger", 0, epoch)
        with twenty.rig.open() as elsewhere, twenty.follower() as looks:
            write_all(elsewhere.kafka, "l.ledger", 0, [b"somebody's"])
            looks.fold_end()
        return truncation

    twenty.writers[0].close()
    monkeypatch.setattr(twenty.log, "verify_anew", stands_still)
    twenty.writers[0] = twenty.environment.run(Writer, twenty.log, "w0", partitions=[0])
    with pytest.raises(DataLoss):
        twenty.commit(0)
    twenty.writers[0].close()


def test_a_commit_that_lands_where_another_one_was_acknowledged_is_no_commit(twenty: Twenty) -> None:
    """Right where its writer's fold ends, so that nothing is read: this process knows that a record is gone."""
    twenty.commit(0)
    twenty.commit(1)
    lost = twenty.commit(0)
    twenty.rig.cluster.lose_tail("l.ledger", 0, lost)
    with pytest.raises(BeyondEnd):
        twenty.commit(1)
    twenty.writers[1].close()


def test_an_interrupted_read_strands_nobody() -> None:
    """Ctrl-C comes out of the thread that reads; who waits for it reads on."""
    rig = twin_rig("l")
    with rig.create() as log, Writer(log, "w") as writer:
        for i in (1, 2, 3):
            writer.put(b"k", b"%d" % i)
            writer.commit(checkpoint_id=i)
    with rig.open() as log:
        tape = LedgerTape()
        broken, sound = (
            LedgerClient(kafka, log.ledger_topic, log.descriptor.identity, tape=tape)
            for kafka in (BreakingKafka(rig.cluster, 3, KeyboardInterrupt()), log.kafka)
        )
        for client in (broken, sound):
            client.fold_to(2)
        with pytest.raises(KeyboardInterrupt):
            broken.fold_to(5)
        assert not tape.is_read
        sound.fold_to(5)
        assert sound.fold.position == 5
        broken.fold_to(5)
        assert broken.fold.freeze() == sound.fold.freeze()


# ---- the tape alone


def read(tape: LedgerTape, *offsets: int, value: bytes = b"v", asked_s: float = 0.0) -> None:
    """Somebody has read these records, each by itself."""
    for offset in offsets:
        tape.looked(Look(asked_s, offset, offset + 1), [], [taped(offset, value)])


def offsets(tape: LedgerTape, last: int, end: int, value: bytes = b"v") -> list[int] | None:
    """Of the records behind the one at `last`, whenever they were there."""
    found = LastRecord.of(last, value)
    run = tape.run(found, end, [found], there_s=0.0, since_s=-math.inf)
    return run and [one.found.offset for one in run.new]


def test_a_run_has_no_gap() -> None:
    """What is missing is not skipped."""
    tape = LedgerTape()
    read(tape, 3, 4, 6)
    assert offsets(tape, 3, 5) == [4]
    assert offsets(tape, 3, 7) is None
    assert offsets(tape, 2, 4) is None


def test_a_run_goes_on_from_the_same_record() -> None:
    """Whoever folded another one has seen another ledger."""
    tape = LedgerTape()
    read(tape, 3, 4)
    assert offsets(tape, 3, 5) == [4]
    assert offsets(tape, 3, 5, b"w") is None


def test_a_place_is_known_by_a_look_that_has_found_its_record() -> None:
    """A young one, and no other record; not by an acknowledgement, nor by what is noted behind it."""
    tape = LedgerTape()
    tape.sending(_COMMIT, b"v", 9.0)(3)
    tape.looked(Look(9.0, 4, 6), [], [taped(4), taped(5)])
    at = [LastRecord.of(offset, b"v") for offset in range(7)]
    assert [tape.knows(one, 8.0) for one in at] == [False, False, False, False, True, True, False]
    assert not tape.knows(LastRecord.of(5, b"w"), 8.0)
    assert not tape.knows(at[5], 9.0)


def test_what_was_read_counts_above_what_was_acknowledged() -> None:
    """In whichever order they come."""
    tape = LedgerTape()
    tape.sending(_COMMIT, b"acknowledged", 0.0)(3)
    read(tape, 3, 4, value=b"read")
    tape.sending(_COMMIT, b"acknowledged", 0.0)(4)
    assert [one.found.value for offset in (3, 4) if (one := tape.at(offset))] == [b"read", b"read"]


def test_what_is_acknowledged_where_somebody_has_read_since_is_not_put_down() -> None:
    """It may be lost: whoever read so far has put down only the newest of what was found."""
    tape = LedgerTape()
    answers = [tape.sending(_COMMIT, b"acknowledged", 0.0) for _ in range(2)]
    tape.looked(Look(1.0, 0, 1000), [], [taped(999)])
    for answer, offset in zip(answers, (500, 1000), strict=True):
        answer(offset)
    assert [tape.at(offset) is not None for offset in (500, 999, 1000)] == [False, True, True]


def test_a_look_that_was_begun_earlier_counts_for_nothing() -> None:
    """Whose thread stood still behind it puts down nothing: another one has looked since, and found other records."""
    tape = LedgerTape()
    read(tape, 3, 4, value=b"w", asked_s=2.0)
    look = tape.look
    read(tape, 3, 4, asked_s=1.0)
    assert (offsets(tape, 3, 5), offsets(tape, 3, 5, b"w"), tape.look) == (None, [4], look)


def test_what_a_look_did_not_find_is_forgotten() -> None:
    """With all that is known: who noted it followed a ledger that lost its tail. One look may find what is put down by
    the newest alone, or by the record that it goes on from.
    """
    for compared, new in (([], [taped(999)]), ([LastRecord.of(500, b"w")], [])):
        tape = LedgerTape()
        read(tape, 499, 500)
        tape.looked(Look(1.0, 500, 1000), compared, new)
        assert tape.at(499) is tape.at(500) is None
        assert (tape.at(999) is not None) == bool(new)
        assert tape.look == Look(1.0, 500, 1000)


def test_a_look_goes_on_from_another_one_by_a_record_that_both_have_found() -> None:
    """Between looks that have none a tail may have been lost."""
    for noted, compared, start in (((3, 4), b"v", 3), ((3, 4), b"w", 4), ((3,), b"v", 4)):
        tape = LedgerTape()
        tape.looked(Look(1.0, 3, 5), [], [taped(offset) for offset in noted])
        tape.looked(Look(2.0, 4, 6), [LastRecord.of(4, compared)], [taped(5)])
        assert tape.look == Look(2.0, start, 6)


def test_what_another_thread_has_sent_is_waited_for() -> None:
    """But not what this one has: it could not be answered meanwhile."""
    tape = LedgerTape()
    read(tape, 3)
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(tape.sending, _COMMIT, b"v", 0.0).result()
        wanted = threading.Timer(0.001, answer, [4])
        wanted.start()
        tape.await_answers(3, 5)
        wanted.join()
    assert offsets(tape, 3, 5) == [4]
    tape.sending(_COMMIT, b"v", 0.0)
    tape.await_answers(3, 6)
    assert offsets(tape, 3, 6) is None


def test_what_is_not_answered_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what was sent since: it lies behind."""
    monkeypatch.setattr(ledger_tape, "_ANSWER_S", 60.0)
    tape, waits = LedgerTape(), threading.Event()
    read(tape, 3)

    def bell() -> threading.Lock:
        waits.set()
        return threading.Lock()

    monkeypatch.setattr(ledger_tape, "Lock", bell)
    with ThreadPoolExecutor(1) as sender, ThreadPoolExecutor(1) as waiter:
        first = sender.submit(tape.sending, _COMMIT, b"v", 0.0).result()
        waiting = waiter.submit(tape.await_answers, 3, 6)
        assert waits.wait(20), "nobody waits"
        tape.sending(_COMMIT, b"v", 0.0)
        first(4)
        waiting.result(20)
        assert offsets(tape, 3, 6) is None
    monkeypatch.setattr(ledger_tape, "_ANSWER_S", 0.01)
    with ThreadPoolExecutor(1) as other:
        other.submit(tape.sending, _COMMIT, b"v", 0.0).result()
    tape.await_answers(3, 6)
    assert offsets(tape, 3, 6) is None
    monkeypatch.setattr(ledger_tape, "_ANSWER_S", 60.0)
    tape.await_answers(3, 6)
    assert offsets(tape, 3, 6) is None


def test_it_keeps_the_newest() -> None:
    """By number and by size."""
    tape = LedgerTape()
    read(tape, *range(5000))
    assert tape.at(0) is None
    assert offsets(tape, 4990, 5000) == list(range(4991, 5000))
    read(tape, *range(5000, 5010), value=bytes(1 << 20))
    assert tape.at(5000) is None
    assert tape.at(5009) is not None
