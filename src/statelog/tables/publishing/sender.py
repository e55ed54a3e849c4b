"""`OutputSender`: sends the outputs of one writer's commits, in ledger order, and stores how far they are.

The steps, with "if we die after step n": docs/protocol-publish.md. The place is a group's offset of the ledger topic,
so Kafka's own tools show its lag.

Invariants:
- Before anything is sent, a producer has started, which fences every other one of its name, and then the stored place
  was read.
- A transaction has whole commits, without a gap to those before, and stores the position behind the last one. So the
  messages up to a stored place are published, and no others.
- After an error the producer is closed: the next one learns from the stored place what was committed.
- No message is kept: all are read again from the log.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from statelog.environment import Environment
from statelog.kafka.port import GroupOffset, OutputProducer
from statelog.log import Log
from statelog.schemas.ledger.fold import LedgerBase
from statelog.schemas.ledger.place import LastRecord, Place
from statelog.schemas.outputs.output import HEADER, Output, mark_of
from statelog.schemas.outputs.stored import StoredPlace, outputs_group

_MOST_MESSAGES, _MOST_BYTES = 10_000, 8 << 20
"""A transaction ends with the commit that reaches one of them."""


class OutputsPart(Protocol):
    """Messages of one commit in a row: `reading.CommittedOutputs`."""

    @property
    def position(self) -> int:
        """The position behind the commit."""
        ...

    @property
    def number(self) -> int:
        """The number of the first message, among all of the commit."""
        ...

    @property
    def outputs(self) -> Sequence[Output]:
        """The messages, in order."""
        ...

    @property
    def is_last(self) -> bool:
        """Whether they end the commit."""
        ...


class OutputsOf(Protocol):
    """Reads the messages of one writer: `reading.OutputReader`."""

    def between(self, after: int, to: int, base: LedgerBase | None = None) -> Iterator[OutputsPart]:
        """Yield the messages of commits above one position and up to another."""
        ...

    def close(self) -> None:
        """Release the clients. Idempotent."""


class OutputSender:
    """Sends what lies behind `position`, in the thread of its caller. `position` None: only the stored place tells."""

    def __init__(
        self,
        log: Log,
        writer: str,
        reader: OutputsOf,
        *,
        is_transactional: bool,
        position: int | None,
        otherwise: int,
        check_owner: Callable[[], None],
        environment: Environment,
    ) -> None:
        self._log = log
        self._writer = writer
        self._reader = reader
        self._is_transactional = is_transactional
        self._otherwise = otherwise
        """The position if nothing tells."""
        self._check_owner = check_owner
        self._environment = environment
        self._producer: OutputProducer | None = None
        self._stored: int | None = position
        self.messages = 0
        """How many messages it has published."""

    @property
    def name(self) -> str:
        """The name of transactions and group."""
        return outputs_group(self._log.name, self._writer)

    @property
    def position(self) -> int:
        """The position up to which everything is published, as far as is known."""
        return self._otherwise if self._stored is None else self._stored

    def reaches(self, position: int) -> bool:
        """Return whether everything up to a position is known to be published."""
        return self._stored is not None and self._stored >= position

    def send_to(self, position: int, base: LedgerBase | None, is_over: Callable[[], bool]) -> None:
        """Publish all outputs up to a position, or until `is_over` between two transactions. `base`: a fold of the
        ledger below them.

        Raises Fenced, OutcomeUnknown, NotFound, Misuse, Damaged, Unavailable; then the producer is closed.
        """
        try:
            if self._producer is None:
                if self._stored is not None and not self._has_any(position, base):
                    self._stored = position
                    return
                self._start()
            if self._send(position, base, is_over):
                self._stored = max(self.position, position)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the clients; the next transaction starts another producer."""
        self._reader.close()
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _has_any(self, position: int, base: LedgerBase | None) -> bool:
        return next(iter(self._reader.between(self.position, position, base)), None) is not None

    def _start(self) -> None:
        kafka, ledger = self._log.kafka, self._log.ledger_topic
        self._check_owner()
        self._producer = kafka.output_producer(self.name, ledger, is_transactional=self._is_transactional)
        found = self._producer.start()
        self._environment.crash("outputs-started")
        place = self._checked(found)
        self._stored = self.position if place is None else max(place, self._stored or 0)

    def _checked(self, found: GroupOffset) -> int | None:
        """Return the stored position, compared with the ledger; None if there is none of this ledger.

        Raises BeyondEnd, AnchorMismatch if the ledger has lost what was published; Unavailable.
        """
        ledger = self._log.descriptor.identity.ledger_topic_id
        stored = StoredPlace.of(found.offset, found.text, ledger)
        if stored is None:
            return None
        restarted = self._log.history.ask(lambda fold: fold.restarted)
        if stored.place.position > restarted + 1:  # What lies below was given up, by a person.
            self._log.history.expect([stored.place])
        return stored.place.position

    def _send(self, position: int, base: LedgerBase | None, is_over: Callable[[], bool]) -> bool:
        """Send in transactions. Return whether all was sent."""
        producer = self._producer
        assert producer is not None, "it has started"
        batch = _Batch(self._log.name, self._writer, producer)
        for part in self._reader.between(self.position, position, base):
            if batch.is_full and part.position > batch.position:
                self._commit(batch)
                if is_over():
                    return False
            batch.add(part)
        if batch.is_begun:
            self._commit(batch)
        return True

    def _commit(self, batch: "_Batch") -> None:
        self._environment.crash("outputs-sent")
        offset = batch.position - 1
        found = self._log.history.ask(lambda fold: fold.hash_at(offset))
        place = Place(batch.position, LastRecord(offset, found) if found else None)
        ledger = self._log.descriptor.identity.ledger_topic_id
        self._stored = batch.commit(StoredPlace(ledger, place).to_text())
        self.messages += batch.messages
        self._environment.crash("outputs-committed")
        batch.clear()


class _Batch:
    """The commits of one transaction."""

    def __init__(self, log: str, writer: str, producer: OutputProducer) -> None:
        self._log = log
        self._writer = writer
        self._producer = producer
        self.clear()

    def clear(self) -> None:
        """Begin with the next transaction."""
        self.position = self.messages = self._size_bytes = 0
        self.is_begun = False

    @property
    def is_full(self) -> bool:
        """Whether another commit belongs into the next transaction."""
        return self.messages >= _MOST_MESSAGES or self._size_bytes >= _MOST_BYTES

    def add(self, part: OutputsPart) -> None:
        """Send messages of a commit. Those of its other parts belong into the same transaction."""
        if not self.is_begun:
            self._producer.begin()
            self.is_begun = True
        self.position = part.position
        for number, (topic, value, key, headers, partition) in enumerate(part.outputs, part.number):
            mark = mark_of(self._log, self._writer, part.position, number)
            self._producer.send(Output(topic, value, key, (*headers, (HEADER, mark)), partition))
            self._size_bytes += len(value or b"") + len(key or b"")
        self.messages += len(part.outputs)

    def commit(self, text: str) -> int:
        """Commit with the text. Return the position."""
        self._producer.commit(self.position, text)
        return self.position
