"""Accepts a loss: a person gives up ranges of the data topic, declares what is left of the ledger to be the history, or
goes on from the newest snapshot with new topics.

Owns the decision what counts, and the AcceptLoss and Restarts that say it (docs/format-ledger.md). For topics that are
gone as a whole docs/protocol-losses.md numbers the steps, and says what stands if we die after each. Never run by the
system itself.

Invariants:
- A range holds committed offsets only: accepted beyond them, it would hide losses that are yet to come.
- What a ledger's loss takes along is only what the newest snapshot holds: that of the data topic is no loss.
- Nothing is accepted as long as nothing is lost, nor on one answer of Kafka's that may be old, nor on another cluster:
  on the old one writers may go on.
- The last Restart lies at or above the snapshot's position, and above every witness that the data topic bears.
  One that died on the way is run again: the Restarts of the first are void beside those of the second.
- Where topics are gone, one put decides: that of the manifest that names the new ones, in the slot right behind the
  newest one. It continues from what a round of the old topics puts before it; a later one finds its slot taken.
- A new ledger holds Restarts up to the old position and above, so no offset of a snapshot stands for another record
  there; and a reader of the old one finds other records than it knows, or a Restart that it began below.
- Who accepts, and why, is put on the store first, in a file that nothing deletes.
- A topic that is there is taken over only if its settings are sound and no other log owns it; none is ever deleted.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from typing import NamedTuple

import xxhash

from statelog.environment import current_environment
from statelog.errors import (
    AnchorMismatch,
    BeyondEnd,
    ConfigError,
    Damaged,
    DataLoss,
    IdentityChanged,
    NotFound,
    OutcomeUnknown,
    UnsafeTopic,
)
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.place import LastRecord, Place, has_utf8
from statelog.schemas.ledger.records import (
    VOID_VALUE,
    AcceptLoss,
    LossRange,
    Restart,
    check_committed,
    encode,
    given_up,
)
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import check_kind, check_whole, data_topic, ledger_topic
from statelog.schemas.snapshot.manifest import Anchor, Manifest, next_manifest, restarted_state
from statelog.schemas.topic_policy import LEDGER_WRITING, WRITING, TopicNeeds, TopicRole, Waiver, check_topic
from statelog.storage.kafka import Kafka, TopicDescription
from statelog.storage.ledger_client import LOOK_AGAIN_S
from statelog.storage.ledger_tape import append_record
from statelog.storage.log.evidence import check_anchors, furthest_witness, settle
from statelog.storage.log.files import ManifestChain, descriptor_of, put_loss, truncation_of
from statelog.storage.log.log import Log, check_log
from statelog.storage.log.producers import append_up_to
from statelog.storage.log.topics import identity_of, identity_shown, look_for, make_topic, owned_elsewhere, owner_of
from statelog.storage.log.where import Where, opened_ports
from statelog.storage.store import Store


def accept_data_loss(log: Log, ranges: Collection[LossRange], *, reason: str, operator: str) -> int:
    """Record that a person gives up these ranges of the data topic. Returns the ledger offset.

    Raises ConfigError, OutcomeUnknown, Damaged, Unavailable.
    """
    check_log(log)
    check_acceptance(reason, operator)
    check_kind("ranges", ranges, Collection, example="[LossRange(0, 41, 43)]")
    for one in ranges:
        check_kind("a range", one, LossRange, example="LossRange(0, 41, 43): a partition, and offsets of it")
        for name, number in one._asdict().items():
            check_whole(f"{name} of a range", number, 0)
    if not ranges:
        raise ConfigError("accepting a loss needs ranges")
    log.verify(LEDGER_WRITING)
    with closing(log.checked_ledger()) as ledger:
        check_committed(ranges, ledger.fold.freeze().committed_positions)
    return _accept(log, ranges, reason, operator)


def accept_ledger_loss(log: Log, *, reason: str, operator: str) -> int:
    """Record that a person gives up what the ledger lost. Returns the offset of the Restart that counts.

    If the newest snapshot reaches further than the ledger, or stands on records that are others now, it is the history;
    else what the ledger still holds is. Every writer that is open is fenced, and commits that are in neither are gone.
    What the data topic lacks below the snapshot's committed positions is given up with it, for the snapshot holds it.

    Raises ConfigError if nothing is lost or there is no reason or operator, NotFound if a run of that snapshot is gone,
    OutcomeUnknown (run it again), Damaged, Unavailable.
    """
    check_log(log)
    check_acceptance(reason, operator)
    log.verify(LEDGER_WRITING)
    newest = log.manifests.newest()
    reach = newest.position if newest else 0
    witness = _witness(log)
    end = log.ledger.end(at_least=max(reach, witness, 1))
    is_replaced = end < reach or _is_other(log)
    is_lossy = is_replaced or end < 1 or _is_torn(log)
    if is_lossy:
        if newest is not None and is_replaced:
            check_runs(log.store, newest)
        position = reach if is_replaced else 0
        record = Restart(digest=log.descriptor.digest, position=position, reason=reason, operator=operator)
        put_loss(log.store, record)
        last = append_restarts(log, record, max(position, witness - 1, end))
        lost, given_up_with_it = log.ledger_tape.lost, log.places
        settle(log, Place(last + 1, LastRecord.of(last, encode(record))), given_up_with_it, lost)
    with closing(log.ledger.newest_client()) as ledger:
        ledger.fold_end()
        state = ledger.fold.freeze()
    ranges = _in_snapshot_alone(log, newest, state) if newest and state.restarted >= reach else ()
    if not (is_lossy or ranges):
        raise ConfigError("the ledger lost nothing", log=log.name, log_end=end, hint="There is nothing to accept")
    if ranges:
        _accept(log, ranges, reason, operator)
    return state.restarted


def _in_snapshot_alone(log: Log, newest: Manifest, state: LedgerState) -> tuple[LossRange, ...]:
    """What the data topic lacks, or has otherwise, below the snapshot's committed positions."""
    anchors = {anchor.partition: anchor for anchor in newest.anchors if anchor.topic == "data"}
    there = log.data_offsets(at_least=newest.next_offsets)
    found: list[LossRange] = []
    for partition, end in newest.next_offsets.items():
        start = there[partition].end
        try:
            check_anchors(log, [anchors[partition]] if partition in anchors and start >= end else [])
        except AnchorMismatch:
            start = end - 1
        if start < end and not given_up(state.accepted, partition, start, end):
            found.append(LossRange(partition, start, end))
    return tuple(found)


def _accept(log: Log, ranges: Collection[LossRange], reason: str, operator: str) -> int:
    record = AcceptLoss(ranges=tuple(ranges), reason=reason, operator=operator)
    put_loss(log.store, record)
    with closing(log.kafka.producer()) as producer:
        return append_record(producer, log.ledger_topic, record)


def check_acceptance(reason: str, operator: str) -> None:
    """Raise ConfigError unless it is said who accepts the loss, and why."""
    for name, text in (("reason", reason), ("operator", operator)):
        check_kind(name, text, str, example="text")
    if not reason.strip() or not operator.strip():
        raise ConfigError("accepting a loss needs a reason and an operator")
    if not (has_utf8(reason) and has_utf8(operator)):
        raise ConfigError("the reason, or the operator, is not UTF-8", hint="Type it anew, in a terminal of UTF-8")


def _witness(log: Log) -> int:
    """The furthest that this process, or the writer of a chunk, has seen of the ledger."""
    with closing(log.ledger.newest_client()) as ledger:
        with suppress(DataLoss):  # That is why we are here: what it has folded by then tells what is committed.
            ledger.fold_end()
        return max(log.position, furthest_witness(log, ledger.fold))


def _is_other(log: Log) -> bool:
    """Whether the newest snapshot stands on other records than the ledger has now."""
    try:
        with closing(log.ledger.newest_client()) as ledger:
            ledger.fold_end()
    except DataLoss as error:
        return isinstance(error, AnchorMismatch)
    return False


def _is_torn(log: Log) -> bool:
    """Whether the ledger, or a witness of it, shows that it lost records."""
    try:
        log.checked_ledger().close()
    except (AnchorMismatch, BeyondEnd):
        return True
    return False


def check_runs(store: Store, manifest: Manifest) -> None:
    """Raise NotFound if the snapshot that is to be the history is not whole."""
    sizes = {info.path: info.size_bytes for info in store.list("runs/")}
    for run in manifest.runs:
        if sizes.get(run.path) != run.size_bytes:
            what = "a run of the newest snapshot is gone, or has another size"
            hint = "Restore it from a copy of the store first: nothing else holds what the ledger lost"
            raise NotFound(what, path=run.path, manifest=manifest.number, hint=hint)


def append_restarts(log: Log, record: Restart, offset: int) -> int:
    """Append the record until one of them lies at `offset` or above; the offset of the last one."""
    try:
        with closing(log.kafka.producer()) as producer:
            return append_up_to(producer, log.ledger_topic, 0, encode(record), log.ledger.end() - 1, offset)
    except OutcomeUnknown as error:
        raise error.restated(hint="Accept the loss again: that settles it") from error


# ---- topics that are gone


_ATTEMPTS = 8


class TopicFate(StrEnum):
    """What became of a topic since the newest snapshot."""

    KEPT = "is there"
    GONE = "is gone"
    ANEW = "was made anew"


class TopicLoss(NamedTuple):
    """What a person is about to accept: the topics' fates, and the snapshot from which the log goes on."""

    data: TopicFate
    ledger: TopicFate
    manifest: int
    position: int


def accept_topic_loss(
    name: str, where: Where, *, reason: str, operator: str, confirm: Callable[[TopicLoss], object] = lambda _: None
) -> Log:
    """Give up what a lost ledger held behind the newest snapshot, recreate what is gone, and open the log.

    The commits behind that snapshot are given up, and so is every handle, stream and writer of before: a job resumes at
    its writer's `last_commit`, which is the snapshot's. `confirm` hears first what is lost; what it raises ends it.

    Raises ConfigError if nothing is lost, or there is no reason or operator; NotFound if there is no snapshot, or a run
    of it is gone; IdentityChanged on another cluster, or if only the data topic is lost; AlreadyExists, UnsafeTopic for
    a topic that cannot be taken over; OutcomeUnknown, Unavailable (run it again: it goes on).
    """
    check_acceptance(reason, operator)
    environment = current_environment()
    with opened_ports(name, where) as (client, store, waived):
        made = descriptor_of(store, name)
        work = _Acceptance(made, client, store, waived, where.replication_factor, environment.wall_clock)
        newest = work.snapshot()
        confirm(work.look(newest))
        environment.wait(Event(), LOOK_AGAIN_S)  # A client of the old ledger looks at the ids before its next verdict.
        for _ in range(_ATTEMPTS):
            log = work.replace(newest, reason, operator)
            if log is not None:
                log.verify_anew()
                return log
            newest = work.snapshot()
    hint = "Stop them, and accept it again"
    raise ConfigError("others keep putting manifests in between", log=name, hint=hint)


@dataclass(frozen=True, slots=True)
class _Acceptance:
    """The steps, for one log."""

    made: Descriptor
    client: Kafka
    store: Store
    waived: frozenset[Waiver]
    replication_factor: int
    clock: Callable[[], float]

    def snapshot(self) -> Manifest:
        """The newest snapshot, whole as far as a listing tells."""
        self._check_cluster()
        newest = ManifestChain(self.store, self.made).newest_of_any()
        if newest is None:
            what = "there is no snapshot, and without its ledger a log holds nothing else that counts"
            hint = "If the topics are gone for good: delete the log, and make it anew"
            raise NotFound(what, log=self.made.name, url=self.store.url, hint=hint)
        check_runs(self.store, newest)
        return newest

    def look(self, newest: Manifest) -> TopicLoss:
        """What is lost. Raises ConfigError if nothing is, IdentityChanged if the ledger is there and the data is not,
        or the snapshot is not the log's.
        """
        ids = newest.identity
        # With the topics that the log was made with no others can have been accepted.
        if ids != self.made.identity == identity_shown(self.client, self.made.name):
            hint = "Files were copied between directories: restore this log's own"
            what = "the newest manifest was made for another log"
            raise IdentityChanged(what, log=self.made.name, manifest=newest.number, hint=hint)
        data = self._fate(data_topic(self.made.name), ids.data_topic_id)
        ledger = self._fate(ledger_topic(self.made.name), ids.ledger_topic_id)
        if ledger is TopicFate.KEPT and data is TopicFate.KEPT:
            raise ConfigError("the log's topics are there", log=self.made.name, hint="There is nothing to accept")
        if ledger is TopicFate.KEPT:
            what = f"the data topic {data}, and the ledger still lists what it held"
            hint = "Restore it; or delete the ledger topic, too, and accept the loss of both"
            raise IdentityChanged(what, log=self.made.name, topic=data_topic(self.made.name), hint=hint)
        return TopicLoss(data, ledger, newest.number, newest.position)

    def replace(self, base: Manifest, reason: str, operator: str) -> Log | None:
        """Make a new ledger that goes on from `base`; None if another manifest came in between. Safe to run again."""
        name, before = self.made.name, self.made.at(base.identity)
        ledger = self._topic(TopicRole.LEDGER, ledger_topic(name), 1)
        data = self._topic(TopicRole.DATA, data_topic(name), self.made.partitions)
        identity = identity_of(self.client.cluster_id(), data, ledger)
        log = Log(self.made.at(identity), self.client, self.store, waived=self.waived)
        if identity == base.identity:
            return log  # Another process was faster.
        log.verify(WRITING)
        is_kept = data.topic_id == base.identity.data_topic_id
        anchors = [one for one in base.anchors if one.topic == "data"] if is_kept else self._fill(base.next_offsets)
        fold = LedgerFold(base.identity, base.state)
        witness = furthest_witness(Log(before, self.client, self.store), fold) if is_kept else 0
        # No reader of the old ledger passes this: what it began with, or read last, lies above 0 or is another record.
        record = Restart(digest=self.made.digest, position=1, reason=reason, operator=operator)
        put_loss(self.store, record)
        last = append_restarts(log, record, max(base.position, witness, log.ledger.end()))
        log.ledger.identify(anew=True)
        own = next_manifest(
            base,
            nonce=os.urandom(16),
            identity=identity,
            state=restarted_state(base.state, last),
            anchors=[*anchors, Anchor("ledger", 0, last, xxhash.xxh3_64_intdigest(encode(record)))],
            runs=base.runs,
            created_s=self.clock(),
        )
        is_ours = log.manifests.put(own) and log.manifests.numbers()[-1] == own.number
        return log if is_ours else None

    def _check_cluster(self) -> None:
        found, expected = self.client.cluster_id(), self.made.identity.cluster_id
        if found != expected:
            what = "this is another cluster, and nothing could stop a writer on the log's own"
            hint = (
                "Check bootstrap.servers. If the log's cluster is gone, copy its newest snapshot into a new log"
                " (`statelog copy --snapshot --finish`)"
            )
            raise IdentityChanged(what, log=self.made.name, expected=expected, found=found, hint=hint)

    def _fate(self, topic: str, topic_id: str) -> TopicFate:
        found = look_for(self.client, topic)
        is_kept = found is not None and found.topic_id == topic_id
        return TopicFate.KEPT if is_kept else TopicFate.ANEW if found else TopicFate.GONE

    def _topic(self, role: TopicRole, topic: str, partitions: int) -> TopicDescription:
        """The topic, made if it is not there. Raises AlreadyExists if it is another log's, UnsafeTopic."""
        needs = TopicNeeds(self.made.record_bytes_max, truncation_of(self.store, self.made).retention_ms)
        found = look_for(self.client, topic)
        if found is None:
            return make_topic(self.client, topic, role, partitions, self.replication_factor, self.waived, needs)
        check_topic(found, role, self.waived, needs)
        if found.partitions < partitions:
            hint = "Delete it if it is not needed: it is made again as the log needs it"
            raise UnsafeTopic("the topic was made anew with fewer partitions than the log has", topic=topic, hint=hint)
        if role is TopicRole.LEDGER and self._owner(topic) not in (None, self.made.digest):
            raise owned_elsewhere(topic)
        return found

    def _owner(self, topic: str) -> bytes | None:
        try:
            return owner_of(self.client, topic)
        except Damaged:
            return None  # Foreign bytes, below all that will ever be read.

    def _fill(self, next_offsets: Mapping[int, int]) -> Sequence[Anchor]:
        """Fill a new data topic up to the committed positions: below them no commit could list anything."""
        topic = data_topic(self.made.name)
        anchors: list[Anchor] = []
        there = self.client.offsets(topic, sorted(next_offsets)) if next_offsets else {}
        with closing(self.client.producer()) as producer:
            for partition, wanted in sorted(next_offsets.items()):
                end = there[partition].end
                last = append_up_to(producer, topic, partition, VOID_VALUE, end - 1, wanted - 1)
                if end <= last == wanted - 1:
                    anchors.append(Anchor("data", partition, last, xxhash.xxh3_64_intdigest(VOID_VALUE)))
        return anchors
