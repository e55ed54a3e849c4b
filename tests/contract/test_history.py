"""`History` on both implementations of the port: many threads share one fold, and each record is folded once."""

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from statelog.environment import begin, start_thread
from statelog.history import History, Landed, LedgerSource
from statelog.kafka.port import Kafka, Producer
from statelog.schemas.ledger.fold import LedgerFold, Void
from statelog.schemas.ledger.handle import Checkpoint
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.ledger.records import Commit, LedgerRecord, Mark, Open, encode
from tests.support.rigs.kafka import TIMEOUT_S, spec_of, write_all

_THREADS, _COMMITS = 8, 25
_IDENTITY = LogIdentity(cluster_id="cluster", data_topic_id="data", ledger_topic_id="ledger")


class _None:
    """A log without snapshots."""

    def newest_sound(self, *, max_age_s: float = 0.0) -> None:
        """Return None: the log has no snapshot."""

    def at(self, position: int) -> None:
        """Return None: the log has no snapshot."""


@pytest.fixture
def ledger(kafka: Kafka) -> Iterator[str]:
    """Yield a new topic that begins with a mark."""
    name = f"history-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(spec_of(name))
    write_all(kafka, name, 0, [encode(Mark(bytes(32)))])
    yield name
    kafka.delete_topic(name)


@pytest.fixture
def history(kafka: Kafka, ledger: str) -> Iterator[History]:
    """Yield a history that follows it."""
    source = LedgerSource(kafka=kafka, topic=ledger, identity=_IDENTITY, snapshots=_None())
    with History(source) as made:
        yield made


def opened(history: History, producer: Producer, number: int) -> tuple[int, bytes]:
    """Open the writer of this number. Return epoch and nonce."""
    nonce, writer = os.urandom(16), f"w{number}"
    while True:
        history.read()
        prior, last = history.ask(lambda fold: (fold.prior(writer, [number]), fold.last_checkpoint(writer)))
        record = Open(
            writer=writer,
            partitions=(number,),
            nonce=nonce,
            prior=prior,
            last=last,
            identity=_IDENTITY,
            witness=history.place,
        )
        landed = history.append(producer, record).result()
        if landed.void is None:
            return landed.offset, nonce


def committed(history: History, producer: Producer, number: int, epoch: int, nonce: bytes) -> Landed:
    """Commit progress."""
    base = history.ask(lambda fold: fold.last_checkpoint(f"w{number}"))
    commit = Commit.of(
        epoch=epoch,
        nonce=nonce,
        base=base,
        checkpoint=Checkpoint(base.id + 1, nonce),
        metadata={"writer": number},
        handles=[],
        witness=history.place,
    )
    return history.append(producer, commit).result()


def in_threads(work: Callable[[int], None]) -> None:
    """Do the work for each number in a thread of its own."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(_THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(TIMEOUT_S)
    if errors:
        raise errors[0]
    assert not any(one.is_alive() for one in threads)


def test_many_writers_share_one_fold(kafka: Kafka, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many writers share one fold: each has its own verdicts, all are right, and a record is folded once."""
    folded: Counter[int] = Counter()
    apply = LedgerFold.apply

    def counted(fold: LedgerFold, offset: int, record: LedgerRecord | None, record_hash: int = 0) -> Void | None:
        folded[offset] += 1
        return apply(fold, offset, record, record_hash)

    monkeypatch.setattr(LedgerFold, "apply", counted)

    def work(number: int) -> None:
        producer = kafka.producer()
        epoch, nonce = opened(history, producer, number)
        offsets = [committed(history, producer, number, epoch, nonce) for _ in range(_COMMITS)]
        assert all(one.void is None for one in offsets)
        producer.close()

    in_threads(work)
    view = history.read()
    assert [view.state.commits[f"w{number}"].checkpoint.id for number in range(_THREADS)] == [_COMMITS] * _THREADS
    assert set(folded.values()) == {1}
    assert sorted(folded) == list(range(view.place.position))
    found = history.commits(0, view.place.position)
    assert found is not None
    assert Counter(one.writer for one in found) == {f"w{number}": _COMMITS for number in range(_THREADS)}


def test_a_void_record_is_told(kafka: Kafka, history: History) -> None:
    """A writer whose epoch has ended learns why its record is void."""
    producer = kafka.producer()
    old, nonce = opened(history, producer, 0)
    opened(history, producer, 0)
    landed = committed(history, producer, 0, old, nonce)
    assert landed.void is not None
    producer.close()


def test_what_others_append_is_read(kafka: Kafka, ledger: str, history: History) -> None:
    """A record that another process appended is read: a History of another process sees it by its next read."""
    source = LedgerSource(kafka=kafka, topic=ledger, identity=_IDENTITY, snapshots=_None())
    producer = kafka.producer()
    with History(source) as other:
        epoch, nonce = opened(history, producer, 0)
        for number in range(1, 4):
            committed(history, producer, 0, epoch, nonce)
            assert other.read().state.commits["w0"].checkpoint.id == number
    producer.close()


# ---- waits


def waiting(history: History, position: int, timeout_s: float = TIMEOUT_S) -> "Future[tuple[bool, float]]":
    """Wait in a thread of its own. The result is the wait's answer, and the seconds that it took."""

    def wait() -> tuple[bool, float]:
        began_s = time.monotonic()
        return history.wait(position, timeout_s), time.monotonic() - began_s

    return begin(start_thread, wait)


def test_a_wait_ends_with_the_next_record(kafka: Kafka, ledger: str, history: History) -> None:
    """A wait ends with the next record for every waiting thread, well before its time is over.

    It ends at once if a record exists already.
    """
    position = history.read().place.position
    waits = [waiting(history, position) for _ in range(3)]
    time.sleep(0.5)
    assert not any(one.done() for one in waits)
    write_all(kafka, ledger, 0, [encode(Mark(bytes(32)))])
    for one in waits:
        is_told, took_s = one.result(TIMEOUT_S)
        assert is_told
        assert took_s < TIMEOUT_S / 2
    assert history.wait(position, 0.0)
    assert history.read().place.position == position + 1


def test_a_wait_without_a_record_ends_with_its_time(history: History) -> None:
    """A wait without a record ends with its time, and reports that nothing came."""
    is_told, took_s = waiting(history, history.read().place.position, 1.0).result(TIMEOUT_S)
    assert not is_told
    assert 0.5 < took_s < TIMEOUT_S / 2


def test_a_wait_ends_soon_when_it_is_to_end(kafka: Kafka, ledger: str) -> None:
    """A wait ends soon after its caller or the history ends it."""
    over = threading.Event()
    with History(LedgerSource(kafka=kafka, topic=ledger, identity=_IDENTITY, snapshots=_None())) as history:
        position = history.read().place.position
        stopped = begin(start_thread, lambda: history.wait(position, TIMEOUT_S, over.is_set))
        closed = waiting(history, position)
        time.sleep(0.5)
        over.set()
        assert stopped.result(5.0) is False
        assert not closed.done()
    closed.result(5.0)


def test_nobody_waits_for_a_thread_that_waits(kafka: Kafka, history: History) -> None:
    """No thread waits for a waiting one: a writer of the same process gets its verdicts, and reads are answered.

    Each record is folded once.
    """
    producer = kafka.producer()
    epoch, nonce = opened(history, producer, 0)
    over = threading.Event()

    def wait() -> int:
        rings, position = 0, history.place.position
        while not over.is_set():
            rings += history.wait(position, TIMEOUT_S, over.is_set)
            position = history.place.position
        return rings

    waits = [begin(start_thread, wait) for _ in range(2)]
    began_s = time.monotonic()
    for number in range(_COMMITS):
        landed = committed(history, producer, 0, epoch, nonce)
        assert landed.void is None
        if number % 5 == 0:
            time.sleep(0.05)
            assert history.read().place.position > landed.offset
    assert time.monotonic() - began_s < TIMEOUT_S / 2
    over.set()
    assert all(one.result(5.0) > 0 for one in waits)
    producer.close()
