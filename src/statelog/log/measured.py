"""`MeasuredKafka`, `MeasuredStore`: a port around another one that reports each request to observers.

An operation of a port is one request, whatever it takes on the wire (docs/metrics.md). A read of a topic or an open
file is reported when it ends, with the time spent inside the port.

Invariants:
- Arguments, results and errors pass unchanged; the inner port decides everything.
- Time is this machine's, not the environment's: a simulated port takes none.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, TypeVar, cast

from statelog.environment import current_environment
from statelog.kafka.port import (
    Delivery,
    GroupOffset,
    Kafka,
    OffsetRange,
    OutputProducer,
    PartitionFollower,
    Producer,
    Reader,
    Record,
)
from statelog.observing import Observer, Request
from statelog.schemas.outputs.output import Output
from statelog.store.port import RangeReader, Store

_Port = Literal["kafka", "store"]
P = TypeVar("P", bound=Kafka | Store)


@dataclass(slots=True)
class _Moved:
    size_bytes: int


class _Reporter:
    """Reports the requests of a port to the observers."""

    def __init__(self, log: str, port: _Port, observers: Sequence[Observer]) -> None:
        self.log = log
        self._port = port
        self.observers = observers

    @contextmanager
    def asked(self, operation: str, size_bytes: int = 0) -> Generator[_Moved]:
        """Report the block as a request. Yield its size, which the block may set."""
        started_s, error, moved = time.perf_counter(), "", _Moved(size_bytes)
        try:
            yield moved
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self.report(operation, time.perf_counter() - started_s, moved.size_bytes, error)

    def read(self, operation: str, read: Callable[[], bytes]) -> bytes:
        """Read data, and report the request."""
        with self.asked(operation) as moved:
            data = read()
            moved.size_bytes = len(data)
        return data

    def report(self, operation: str, seconds: float, size_bytes: int, error: str) -> None:
        request = Request(self.log, self._port, operation, seconds, size_bytes, error)
        for one in self.observers:
            one.request(request)


def _asked(operation: str, *, as_: str = "", sent: Callable[[Any, Any], int] | None = None) -> Any:
    """Make a method that calls the port's operation and reports it, as `as_` if given. `sent`: the bytes of the
    arguments.
    """

    def ask(measured: "_Measured[Any]", *args: Any, **options: Any) -> Any:
        with measured.to.asked(as_ or operation, sent(*args) if sent else 0):
            return getattr(measured.port, operation)(*args, **options)

    return ask


class _Measured(Generic[P]):
    """A port, and the reporter of its requests."""

    def __init__(self, port: P, to: _Reporter) -> None:
        self.port = port
        self.to = to

    def __repr__(self) -> str:
        return repr(self.port)


class MeasuredKafka(_Measured[Kafka]):
    """A Kafka port around another one, for the requests of one log."""

    def __init__(self, kafka: Kafka, log: str, observers: Sequence[Observer]) -> None:
        super().__init__(kafka, _Reporter(log, "kafka", observers))

    def of_log(self, log: str) -> "MeasuredKafka":
        """Return the same port for another log's requests."""
        return self if self.to.log == log else MeasuredKafka(self.port, log, self.to.observers)

    cluster_id = _asked("cluster_id")
    describe_topic = _asked("describe_topic")
    identify = _asked("identify")
    create_topic = _asked("create_topic")
    delete_topic = _asked("delete_topic")
    offsets = _asked("offsets")
    delete_records = _asked("delete_records")
    publish_offset = _asked("publish_offset")
    published = _asked("published")

    def output_producer(self, name: str, topic: str, *, is_transactional: bool = True) -> OutputProducer:
        """Make an output producer that reports each commit as a request."""
        made = self.port.output_producer(name, topic, is_transactional=is_transactional)
        return cast("OutputProducer", _MeasuredOutputs(made, self.to))

    def producer(self) -> Producer:
        """Make a producer that measures each record from its send to its report."""
        return cast("Producer", _MeasuredProducer(self.port.producer(), self.to))

    def reader(self, topic: str) -> Reader:
        """Make a reader that measures each read."""
        return _MeasuredReader(self.port.reader(topic), self.to)

    def follower(self, topic: str, offset: int) -> PartitionFollower:
        """Make a follower that reports each poll with records as a request."""
        return _MeasuredFollower(self.port.follower(topic, offset), self.to)

    def close(self) -> None:
        """Close the port."""
        self.port.close()


def watched_producer(producer: Producer, log: str) -> Producer:
    """Return the producer, or one that reports this log's sends if there are observers."""
    observers = current_environment().observers
    if not observers:
        return producer
    return cast("Producer", _MeasuredProducer(producer, _Reporter(log, "kafka", observers)))


class _MeasuredProducer:
    """A producer that only adds reports to `send`."""

    def __init__(self, producer: Producer, to: _Reporter) -> None:
        self._producer = producer
        self._to = to

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        def report(delivery: Delivery) -> None:
            # One error name for all: a label must not hold a broker's reason.
            error = "" if delivery.offset >= 0 else "OutcomeUnknown"
            self._to.report("send", delivery.latency_s, len(value), error)
            on_delivery(delivery)

        return self._producer.send(topic, partition, value, report)


class _MeasuredOutputs:
    """An output producer that only adds reports to `start` and `commit`."""

    def __init__(self, producer: OutputProducer, to: _Reporter) -> None:
        self._producer = producer
        self._to = to
        self._size_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def start(self) -> GroupOffset:
        with self._to.asked("output_producer"):
            return self._producer.start()

    def send(self, record: Output) -> None:
        self._producer.send(record)
        self._size_bytes += len(record.value or b"")

    def commit(self, offset: int, text: str = "") -> None:
        size_bytes, self._size_bytes = self._size_bytes, 0
        with self._to.asked("send_outputs", size_bytes):
            self._producer.commit(offset, text)


class _MeasuredReader:
    def __init__(self, reader: Reader, to: _Reporter) -> None:
        self._reader = reader
        self._to = to

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        # Not a generator, so that a wrong call raises at once, as the port does.
        return self._measured(self._reader.read(ranges, stall_timeout_s=stall_timeout_s))

    def _measured(self, records: Iterator[Record]) -> Generator[Record]:
        seconds, size_bytes, error = 0.0, 0, ""
        try:
            while True:
                started_s = time.perf_counter()
                try:
                    record = next(records, None)
                finally:
                    seconds += time.perf_counter() - started_s
                if record is None:
                    return
                size_bytes += len(record.value)
                yield record
        except BaseException as raised:
            error = "" if isinstance(raised, GeneratorExit) else type(raised).__name__
            raise
        finally:
            self._to.report("read", seconds, size_bytes, error)
            if isinstance(records, Generator):
                records.close()

    def close(self) -> None:
        self._reader.close()


class _MeasuredFollower:
    def __init__(self, follower: PartitionFollower, to: _Reporter) -> None:
        self._follower = follower
        self._to = to

    @property
    def position(self) -> int:
        return self._follower.position

    @property
    def is_sound(self) -> bool:
        return self._follower.is_sound

    def poll(self, timeout_s: float) -> Sequence[Record]:
        started_s = time.perf_counter()
        try:
            records = self._follower.poll(timeout_s)
        except BaseException as raised:
            self._to.report("follow", time.perf_counter() - started_s, 0, type(raised).__name__)
            raise
        if records:
            size_bytes = sum(len(record.value) for record in records)
            self._to.report("follow", time.perf_counter() - started_s, size_bytes, "")
        return records

    def close(self) -> None:
        self._follower.close()


class MeasuredStore(_Measured[Store], Store):
    """The store of a log around another one."""

    def __init__(self, store: Store, log: str, observers: Sequence[Observer]) -> None:
        super().__init__(store, _Reporter(log, "store", observers))

    @property
    def url(self) -> str:
        """The store's URL."""
        return self.port.url

    now_s = _asked("now_s")
    put_if_absent = _asked("put_if_absent", sent=lambda _, data: len(data))
    put = _asked("put", sent=lambda _, data: len(data))
    list = _asked("list")
    siblings = _asked("siblings", as_="list")
    sweep = _asked("sweep", as_="list")
    delete = _asked("delete")
    free_bytes = _asked("free_bytes")
    check = _asked("check")
    prove = _asked("prove", as_="check")

    def upload(self, local: Path, path: str) -> None:
        """Upload a file, and report its size."""
        with self.to.asked("upload") as moved:
            with suppress(OSError):  # The store raises for a wrong file.
                moved.size_bytes = local.stat().st_size
            self.port.upload(local, path)

    def download(self, path: str, local: Path) -> None:
        """Download a file, and report its size."""
        with self.to.asked("download") as moved:
            self.port.download(path, local)
            moved.size_bytes = local.stat().st_size

    def read(self, path: str) -> bytes:
        """Read a file, and report its size."""
        return self.to.read("read", lambda: self.port.read(path))

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file, and report each range that is read as a request."""
        with self.to.asked("open"):
            return self._opened(self.port.open(path))

    @contextmanager
    def _opened(self, opened: AbstractContextManager[BinaryIO]) -> Generator[BinaryIO]:
        with opened as file:
            yield RangeReader.of(file, partial(self.to.read, "read_range"))

    def tidy(self) -> None:
        """Tidy the store."""
        self.port.tidy()

    _create = _read = _delete = _files = cast("Any", None)
    """Never called: the inner store has its own."""
