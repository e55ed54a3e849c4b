"""Owners of a log on the twins that send messages and publish them, one after the other, and what came of them."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from statelog.environment import inline
from statelog.kafka.port import GroupOffset
from statelog.log import Log, LogOptions
from statelog.producer import Writer
from statelog.reading import OutputReader, list_subscriptions
from statelog.schemas.descriptor import HashRule
from statelog.schemas.ledger.state import LastCommit
from statelog.tables import TableSettings
from statelog.tables.publishing.publisher import Publisher
from statelog.testing import Twin

__all__ = ["GROUP", "LOG", "OUT", "Life", "Outputs", "living", "marks", "new_twin", "stored", "subscriptions", "values"]

LOG, OUT = "log", "out"
GROUP = "statelog.log/w"
Outputs = Literal["exactly-once", "at-least-once"]


def new_twin(hash_rule: HashRule | str = HashRule.CRC32) -> Twin:
    """Return a cluster with a log of two partitions, and a target topic of one."""
    made = Twin()
    made.create_topic(OUT)
    with made.environment():
        Log.create(LOG, made.where(), LogOptions(partitions=2, key_groups=4, hash_rule=hash_rule)).close()
    return made


@dataclass(slots=True)
class Life:
    """One owner: its log, writer and publisher, and what it has committed."""

    twin: Twin
    log: Log
    writer: Writer
    publisher: Publisher
    committed: list[bytes] = field(default_factory=list[bytes])

    def commit(self, *values: bytes, wakes: bool = True) -> LastCommit:
        """Commit a change with messages, and have them published."""
        self.publisher.claim()
        for value in values:
            self.writer.send(OUT, value, key=b"k")
        if self.log.descriptor.hash_rule is HashRule.CALLER:
            self.writer.append(0, b"n", b"%d" % len(self.committed))
        else:
            self.writer.put(b"n", b"%d" % len(self.committed))
        last = self.writer.commit()
        self.committed += values
        if wakes:
            self.publisher.wake(len(values))
        return last


@contextmanager
def living(twin: Twin, *, closes: bool = True, outputs: Outputs = "exactly-once", **parts: Any) -> Generator[Life]:
    """Open a log, its writer and a publisher, whose runs are over before `wake` returns; without `closes` it dies."""
    settings = TableSettings(outputs=outputs, outputs_patience_s=10.0)
    with ExitStack() as stack:
        stack.enter_context(twin.environment(**{"start": inline, **parts}))
        log = stack.enter_context(Log.open(LOG, twin.where()))
        writer = stack.enter_context(Writer(log, "w"))
        publisher = Publisher(log, writer, settings, reader=OutputReader(log, "w"))
        if closes:
            stack.callback(publisher.close, is_settled=True)
        yield Life(twin, log, writer, publisher)


def values(twin: Twin) -> list[bytes | None]:
    """Return the published values, in order."""
    return [one.value for one in twin.outputs(OUT)]


def marks(twin: Twin) -> list[bytes | None]:
    """Return the headers that name the messages."""
    return [dict(one.headers)["statelog"] for one in twin.outputs(OUT)]


def stored(twin: Twin) -> GroupOffset:
    """Return the stored place."""
    return twin.where().kafka.published(GROUP, f"{LOG}.ledger", 0)  # type: ignore[union-attr] # it is a port


def subscriptions(life: Life) -> list[tuple[str, int, str]]:
    """Return reader, position and end of each subscription's newest file."""
    found = {one.subscription.reader: one.subscription for one in list_subscriptions(life.log.store).files}
    return [(reader, one.position, one.ended) for reader, one in found.items()]
