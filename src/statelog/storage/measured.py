"""`MeasuredKafka`, `MeasuredStore`: a port around another one, which tells observers of each request.

An operation of a port is one request to them, whatever it takes on the wire: `docs/metrics.md` says what that is. What
is read of an open file, and of a topic, is told when it is over, with the time that was spent inside of the port.

Invariants:
- Arguments, results and errors go through as they are; the port decides all.
- Time is that of this machine, whatever the environment says: a port of a simulation takes none.
"""

import io
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from statelog.environment import current_environment
from statelog.observing import Observer, Request
from statelog.storage.kafka import Delivery, Kafka, OffsetRange, Producer, Reader, Record, TopicDescription, TopicSpec
from statelog.storage.store import FileInfo, Store

_Port = Literal["kafka", "store"]


@dataclass(slots=True)
class _Moved:
    size_bytes: int


class _Teller:
    """Tells the observers of the requests of a port."""

    def __init__(self, log: str, port: _Port, observers: Sequence[Observer]) -> None:
        self.log = log
        self._port = port
        self.observers = observers

    @contextmanager
    def asked(self, operation: str, size_bytes: int = 0) -> Generator[_Moved]:
        """A request, which takes as long as the block, and moves what the block says in the end."""
        started_s, error, moved = time.perf_counter(), "", _Moved(size_bytes)
        try:
            yield moved
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self.tell(operation, time.perf_counter() - started_s, moved.size_bytes, error)

    def tell(self, operation: str, seconds: float, size_bytes: int, error: str) -> None:
        """A request is over."""
        request = Request(self.log, self._port, operation, seconds, size_bytes, error)
        for one in self.observers:
            one.request(request)


class MeasuredKafka:
    """A Kafka port around another one, for what is asked of it for one log."""

    def __init__(self, kafka: Kafka, log: str, observers: Sequence[Observer]) -> None:
        self._kafka = kafka
        self._to = _Teller(log, "kafka", observers)

    def __repr__(self) -> str:
        return repr(self._kafka)

    def of_log(self, log: str) -> "MeasuredKafka":
        """The same port, for what is asked for this log."""
        return self if self._to.log == log else MeasuredKafka(self._kafka, log, self._to.observers)

    def cluster_id(self) -> str:
        """As the port."""
        with self._to.asked("cluster_id"):
            return self._kafka.cluster_id()

    def describe_topic(self, topic: str) -> TopicDescription | None:
        """As the port."""
        with self._to.asked("describe_topic"):
            return self._kafka.describe_topic(topic)

    def identify(self, topics: Sequence[str]) -> tuple[str, list[TopicDescription | None]]:
        """As the port."""
        with self._to.asked("identify"):
            return self._kafka.identify(topics)

    def create_topic(self, spec: TopicSpec) -> None:
        """As the port."""
        with self._to.asked("create_topic"):
            self._kafka.create_topic(spec)

    def delete_topic(self, topic: str) -> None:
        """As the port."""
        with self._to.asked("delete_topic"):
            self._kafka.delete_topic(topic)

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """As the port."""
        with self._to.asked("offsets"):
            return self._kafka.offsets(topic, partitions, at_least=at_least)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """As the port."""
        with self._to.asked("delete_records"):
            return self._kafka.delete_records(topic, before)

    def publish_offset(self, group: str, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """As the port."""
        with self._to.asked("publish_offset"):
            self._kafka.publish_offset(group, topic, partition, offset, metadata)

    def published(self, group: str, topic: str, partition: int) -> str:
        """As the port."""
        with self._to.asked("published"):
            return self._kafka.published(group, topic, partition)

    def producer(self) -> Producer:
        """As the port; what is sent is measured until it is reported."""
        return _MeasuredProducer(self._kafka.producer(), self._to)

    def reader(self, topic: str) -> Reader:
        """As the port; each read is measured."""
        return _MeasuredReader(self._kafka.reader(topic), self._to)

    def close(self) -> None:
        """As the port."""
        self._kafka.close()


def watched_producer(producer: Producer, log: str) -> Producer:
    """The producer, or one that tells whoever watches of what is sent for this log."""
    observers = current_environment().observers
    return _MeasuredProducer(producer, _Teller(log, "kafka", observers)) if observers else producer


class _MeasuredProducer:
    def __init__(self, producer: Producer, to: _Teller) -> None:
        self._producer = producer
        self._to = to

    def connect(self) -> None:
        self._producer.connect()

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        def report(delivery: Delivery) -> None:
            # What a broker refused begins with its own name; a reason may hold more, and a label must not.
            error = "" if delivery.offset >= 0 else "OutcomeUnknown"
            self._to.tell("send", delivery.latency_s, len(value), error)
            on_delivery(delivery)

        return self._producer.send(topic, partition, value, report)

    def poll(self, timeout_s: float) -> int:
        return self._producer.poll(timeout_s)

    @property
    def in_flight(self) -> int:
        return self._producer.in_flight

    @property
    def is_sound(self) -> bool:
        return self._producer.is_sound

    @property
    def delivery_timeout_s(self) -> float:
        return self._producer.delivery_timeout_s

    def close(self) -> None:
        self._producer.close()


class _MeasuredReader:
    def __init__(self, reader: Reader, to: _Teller) -> None:
        self._reader = reader
        self._to = to

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        # Not a generator itself: what is wrong with the call is raised by the call, as the port does.
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
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self._to.tell("read", seconds, size_bytes, error)
            if isinstance(records, Generator):
                records.close()

    def close(self) -> None:
        self._reader.close()


class MeasuredStore(Store):
    """The store of a log around another one."""

    def __init__(self, store: Store, log: str, observers: Sequence[Observer]) -> None:
        self._store = store
        self._to = _Teller(log, "store", observers)

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def url(self) -> str:
        """That of the store."""
        return self._store.url

    def now_s(self) -> float:
        """As the store."""
        with self._to.asked("now_s"):
            return self._store.now_s()

    def put_if_absent(self, path: str, data: bytes) -> None:
        """As the store."""
        with self._to.asked("put_if_absent", len(data)):
            self._store.put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        """As the store."""
        with self._to.asked("put", len(data)):
            self._store.put(path, data)

    def upload(self, local: Path, path: str) -> None:
        """As the store."""
        with self._to.asked("upload", local.stat().st_size):
            self._store.upload(local, path)

    def download(self, path: str, local: Path) -> None:
        """As the store."""
        with self._to.asked("download") as moved:
            self._store.download(path, local)
            moved.size_bytes = local.stat().st_size

    def read(self, path: str) -> bytes:
        """As the store."""
        with self._to.asked("read") as moved:
            data = self._store.read(path)
            moved.size_bytes = len(data)
        return data

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """As the store; every range that is read of it is a request."""
        with self._to.asked("open"):
            return _measured_file(self._store.open(path), self._to)

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """As the store."""
        with self._to.asked("list"):
            return self._store.list(prefix)

    def siblings(self) -> Sequence[str]:
        """As the store."""
        with self._to.asked("list"):
            return self._store.siblings()

    def delete(self, path: str) -> None:
        """As the store."""
        with self._to.asked("delete"):
            self._store.delete(path)

    def sweep(self, now_s: float) -> None:
        """As the store."""
        with self._to.asked("list"):
            self._store.sweep(now_s)

    def tidy(self) -> None:
        """As the store."""
        self._store.tidy()

    def free_bytes(self) -> int | None:
        """As the store."""
        with self._to.asked("free_bytes"):
            return self._store.free_bytes()

    def check(self) -> None:
        """As the store."""
        with self._to.asked("check"):
            self._store.check()

    def prove(self, token: str) -> None:
        """As the store."""
        with self._to.asked("check"):
            self._store.prove(token)

    def _create(self, path: str, data: bytes) -> None:
        self.put_if_absent(path, data)

    def _read(self, path: str) -> bytes:
        return self.read(path)

    def _delete(self, path: str) -> None:
        self.delete(path)

    def _files(self, prefix: str) -> Sequence[FileInfo]:
        return list(self.list(prefix))


@contextmanager
def _measured_file(opened: AbstractContextManager[BinaryIO], to: _Teller) -> Generator[BinaryIO]:
    with opened as file:
        yield cast("BinaryIO", _MeasuredFile(file, to))


class _MeasuredFile(io.RawIOBase):
    """A file of a store: reading a range of it is a request. Who opened the one below closes it."""

    def __init__(self, file: BinaryIO, to: _Teller) -> None:
        super().__init__()
        self._file = file
        self._to = to

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1, /) -> bytes:
        with self._to.asked("read_range") as moved:
            data = self._file.read(size)
            moved.size_bytes = len(data)
        return data
