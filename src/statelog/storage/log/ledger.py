"""`Ledger`: the ledger of one log: where it ends, and clients that fold it from a snapshot on; and one Open of it.

Invariants:
- An Open counts only once it was read back, valid and live, and the cluster still is the log's.
- A ledger that was truncated is folded from a manifest, never from its first record that is left.
- It holds no client of its own: what it makes, the caller closes.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from statelog.environment import current_environment
from statelog.errors import BeyondEnd, LogInUse, OffsetGone
from statelog.schemas.ledger.fold import LedgerBase
from statelog.schemas.ledger.records import Open
from statelog.schemas.ledger.state import LiveEpoch
from statelog.schemas.names import COPIER, ledger_topic
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import LEDGER_WRITING
from statelog.storage.kafka import STALL_TIMEOUT_S, Kafka, OffsetRange, Producer, Record
from statelog.storage.ledger_client import LedgerClient

if TYPE_CHECKING:
    from statelog.storage.log.log import Log

_ASK_AGAIN_S = 0.25


class Ledger:
    """The ledger of a log: `log.ledger`. `identify` compares descriptor and cluster, unless that was done just now, or
    always if `anew`: ids never come back, so what was acknowledged before this landed in this log.
    """

    def __init__(self, log: "Log", identify: Callable[..., object]) -> None:
        self._log = log
        self.identify = identify

    def range(self, *, at_least: int = 0) -> OffsetRange:
        """The ledger's start and end now. An end below `at_least` is asked again for the log's `patience_s`, which
        begin with the answer: it may be an old one, and this process may have stood still before it.
        """
        found = self._offsets()
        deadline_s = time.monotonic() + self._log.patience_s
        while found.end < at_least and time.monotonic() < deadline_s:
            time.sleep(_ASK_AGAIN_S)
            found = self._offsets()
        return found

    def _offsets(self) -> OffsetRange:
        return self._log.kafka.offsets(self._log.ledger_topic, [0])[0]

    def end(self, *, at_least: int = 0) -> int:
        """The ledger's end now, asked as `range` does."""
        return self.range(at_least=at_least).end

    def client(
        self,
        base: LedgerBase | None = None,
        start_position: int = 0,
        *,
        rebase: Callable[[], LedgerBase | None] | None = None,
        keeps: bool = False,
        shares: bool = False,
    ) -> LedgerClient:
        """A ledger client from `base` on, or from the ledger's first record, folded up to `start_position`; see
        LedgerClient for the rest. Raises OffsetGone if there is no base and the ledger was truncated: an unknown epoch
        would silently void valid commits.
        """
        if base is None:
            self._require_whole()
        client = LedgerClient(
            self._log.kafka, self._log.ledger_topic, self._log.descriptor.identity, base,
            rebase=rebase, snapshot_at=self._log.manifests.at, newest=self._log.manifests.newest, verify=self.identify,
            clock=current_environment().clock, keeps=keeps, tape=self._log.ledger_tape, shares=shares,
        )  # fmt: skip
        try:
            if start_position > client.position:
                client.fold_to(start_position)
            is_kept = base is not None and not isinstance(base, Manifest)
            client.fold.followed = client.position if is_kept or start_position else 0
        except BaseException:
            client.close()
            raise
        return client

    def newest_client(self) -> LedgerClient:
        """A ledger client that starts from the newest manifest, and again so if it was idle for too long.

        Who answers is asked first: a log may have been opened long ago. Raises IdentityChanged, Unavailable.
        """
        self.identify()
        newest = self._log.manifests.newest
        try:
            return self.client(newest(), rebase=newest)
        except OffsetGone:
            base = newest()
            if base is None:
                raise
            return self.client(base, rebase=newest)  # The log's first round came between the two questions.

    def _require_whole(self) -> None:
        start, end = self._offsets()
        topic = self._log.ledger_topic
        if end == 0 and self.end(at_least=1) == 0:
            what = "the ledger is empty: it lost its mark, and all that stood behind it"
            raise BeyondEnd(what, topic=topic, hint="Restore the topic, or accept the loss by name")
        if start > 0:
            what = "the ledger was truncated, and no manifest says what stood there"
            hint = "Restore the manifests, or check that the root URL is the right one"
            raise OffsetGone(what, topic=topic, log_start=start, url=self._log.store.url, hint=hint)


def records_at(kafka: Kafka, topic: str, offsets: Mapping[int, int]) -> dict[int, Record]:
    """One record of each partition; a partition is absent if there is none at its offset.

    Raises OffsetGone, BeyondEnd, NotFound, Unreadable, BrokerUnavailable.
    """
    wanted = {partition: OffsetRange(offset, offset + 1) for partition, offset in offsets.items()}
    with closing(kafka.reader(topic)) as reader:
        return {found.partition: found for found in reader.read(wanted, stall_timeout_s=STALL_TIMEOUT_S)}


def check_reaches(log: str, end: int, position: int) -> None:
    """Raise BeyondEnd if the ledger of a log, which ends at `end`, lacks a part of what was seen of it."""
    if end < position:
        what = "the ledger ends below what was seen of it"
        hint = "It lost commits that were acknowledged: restore the topic, or accept the loss by name"
        raise BeyondEnd(what, topic=ledger_topic(log), log_end=end, position=position, hint=hint)


# ---- Opens


OPENS = 32
"""How many Opens a producer sends before everything is checked again."""


def append_open(
    log: "Log", ledger: LedgerClient, producer: Producer, writer: str, partitions: tuple[int, ...], nonce: bytes
) -> LiveEpoch | None:
    """Append an Open that names what `ledger` has folded, and read it back.

    Return None if it is void, because another record came in between. Raises OutcomeUnknown, Damaged, Unavailable.
    """
    fold = ledger.fold
    record = Open(
        writer=writer,
        partitions=partitions,
        nonce=nonce,
        prior=fold.prior(writer, partitions),
        last=fold.last_checkpoint(writer),
        identity=log.descriptor.identity,
        witness=ledger.place,
    )
    epoch = ledger.send(producer, record).result()
    void = ledger.verdict(epoch, record, verify=log.verify_anew)
    live = ledger.fold.live_epoch(epoch)
    return live if void is None and live is not None and live.nonce == nonce else None


def fence_writers(log: "Log") -> int:
    """Open all partitions of the log in the name of the copy, and return the epoch.

    While that epoch is live, the commits below it are all that there are. Raises LogInUse if others keep opening,
    ConfigError without the right to write the ledger, OutcomeUnknown, Damaged, Unavailable.
    """
    log.verify(LEDGER_WRITING)
    partitions, environment = tuple(range(log.descriptor.partitions)), current_environment()
    with closing(log.checked_ledger()) as ledger, closing(log.kafka.producer()) as producer:
        for _ in range(OPENS):
            live = append_open(log, ledger, producer, COPIER, partitions, environment.nonce())
            if live is not None:
                log.saw(ledger.place)
                return live.epoch
    raise LogInUse("other writers keep opening at the same time", log=log.name, hint="Stop them, and run it again")
