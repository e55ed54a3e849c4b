"""Cleanup after a round that won: drops manifests, truncates the topics, deletes files. Executes, never decides.

`schemas.snapshot.retention` decides, over what the store holds. A cleanup may be interrupted anywhere, and the next
winner continues it. The round is also published with the group offset for Kafka's lag tools, which shows whether
another root published last.

Invariants:
- Files and manifests to delete come from the listing taken before the put, never from a later one.
- Nothing is deleted before the oldest retained snapshot was read back, nor while two retained neighbours are not
  linked. With fewer manifests than the policy keeps, nothing is truncated.
- Truncation follows the manifests that were listed again after the put and read (`kept`), and the leases and
  subscriptions listed after manifests were dropped. Directory and topics must still be the log's.
- An unreadable subscription holds everything. One that is over its cap is ended first; a later round truncates what it
  held.
- Rounds on several threads may share `VerifiedRuns`: one that was given up may still run when the next one begins.
"""

import logging
import math
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from statelog.environment import CrashPoint
from statelog.errors import Corrupt, CorruptManifest, CorruptRun, DataLoss, NotFound
from statelog.log import Log
from statelog.materializer.outcome import CappedSubscription, Cleanup
from statelog.materializer.settings import MaterializerSettings, tuning_of
from statelog.materializer.side_by_side import side_by_side
from statelog.materializer.work import RoundWork
from statelog.reading import (
    AgingRecord,
    NeededRecord,
    StoredSubscriptions,
    claims_of,
    end_subscription,
    first_unpublished,
    list_leases,
    list_subscriptions,
    living,
    oldest_need,
)
from statelog.schemas.ledger.records import retained_ranges
from statelog.schemas.names import MANIFESTS, TRUNCATIONS
from statelog.schemas.snapshot.claims import Subscription, SubscriptionCap, newest_files, over_cap, superseded_paths
from statelog.schemas.snapshot.manifest import Manifest, check_chain
from statelog.schemas.snapshot.retention import (
    Floor,
    condemned,
    dropped_numbers,
    pinned_at,
    retained_numbers,
    superseded_times,
    truncation_floor,
)
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.topic_policy import ROUND
from statelog.store.files import ManifestChain
from statelog.store.port import FileInfo
from statelog.store.run_reader import read_back


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """The files that the winner of a slot retains, and those that it may remove. Decided before its put."""

    kept: frozenset[int]
    dropped: tuple[int, ...]
    condemned: tuple[str, ...]
    truncates: bool
    """Whether the materializer truncates; else Kafka deletes records, by their age."""
    subscriptions: StoredSubscriptions
    """The subscriptions before the put. Truncation is decided by those listed after it."""
    now_s: float
    """The time by the store's clock, or a little less, by which ages are judged."""


_LOG = logging.getLogger("statelog.materializer")
_MOST_BYTES = 32 << 20
_SWEEP_EVERY_S = 3600.0
"""A sweep lists the whole store, for leftovers that are at least a day old."""


class VerifiedRuns:
    """A cache of what a process has read and verified.

    Runs are cached by path and sha256: they are immutable, so one read verifies the content for good. Their presence
    and size are checked every time. Manifests are cached by the listing's entry of their file, up to 32 MiB of files;
    others are read again.

    may_truncate  whether the right to delete records was proved
    swept_s       when the store was swept, by its own clock
    """

    def __init__(self) -> None:
        self.may_truncate = False
        self.swept_s = -math.inf
        self._runs: dict[str, bytes] = {}
        self._manifests: dict[FileInfo, Manifest] = {}
        self._lock = threading.Lock()

    def add(self, runs: Iterable[RunRef]) -> None:
        """Add runs that were read back elsewhere."""
        with self._lock:
            self._runs.update({run.path: run.sha256 for run in runs})

    def check(self, work: RoundWork, runs: Iterable[RunRef]) -> None:
        """Raise CorruptRun if a run is missing or damaged, StoreUnavailable if that cannot be checked."""
        store, unread = work.log.store, list[RunRef]()
        sizes = {info.path: info.size_bytes for info in store.list("runs/")}
        for run in runs:
            if sizes.get(run.path) != run.size_bytes:
                raise CorruptRun(
                    "a run is missing or has the wrong length",
                    path=run.path,
                    size_bytes=run.size_bytes,
                    found_bytes=sizes.get(run.path, -1),
                    hint="Restore the file from a copy of the store, or recover from another snapshot",
                )
            if self._runs.get(run.path) != run.sha256:
                unread.append(run)

        def verify(run: RunRef, _: object) -> None:
            read_back(store, run, work.log.descriptor)
            self.add([run])

        side_by_side([partial(verify, run) for run in unread], work.threads, work.go_on, work.environment.start)

    def manifests(
        self, chain: ManifestChain, listed: Mapping[int, FileInfo], numbers: Collection[int]
    ) -> list[Manifest]:
        """Return the listed manifests among `numbers`, ascending, without those that a newer winner dropped meanwhile.

        Raises CorruptManifest, UnknownFormat, StoreUnavailable.
        """
        found: list[Manifest] = []
        for number in sorted(numbers & listed.keys()):
            info = listed[number]
            known = self._manifests.get(info)
            if known is None and (known := chain.find(number, listed=info)) is not None:
                with self._lock:
                    if sum(one.size_bytes for one in self._manifests) + info.size_bytes <= _MOST_BYTES:
                        self._manifests[info] = known
            found += [known] if known else []
        return found

    def forget_all_but(self, kept: Collection[Manifest], numbers: Collection[int]) -> None:
        """Drop runs that no retained manifest names, and manifests of other numbers, so that memory does not grow."""
        paths = {run.path for manifest in kept for run in manifest.runs}
        with self._lock:
            self._runs = {path: digest for path, digest in self._runs.items() if path in paths}
            self._manifests = {info: one for info, one in self._manifests.items() if one.number in numbers}


_OUTRUN = "a newer round won and cleaned up meanwhile"


# ---- before the put


def plan_cleanup(
    log: Log,
    listing: Iterable[FileInfo],
    own: Manifest,
    settings: MaterializerSettings,
    verified: VerifiedRuns,
    uploaded: Collection[str] = (),
) -> CleanupPlan:
    """Decide from a listing of all files, which includes those that this round has `uploaded`.

    Raises CorruptManifest, StoreUnavailable.
    """
    files = list(listing)
    # The files just written carry the store's time. An earlier time makes files look younger, which is safe.
    times_s = [info.modified_s for info in files if info.path in uploaded]
    now_s = max(times_s) if times_s else log.store.now_s()
    listed = {number: info for info in files if (number := MANIFESTS.number(info.path)) is not None}
    put_s = {number: info.modified_s for number, info in listed.items()}
    leases = list_leases(log.store, [info for info in files if info.path.startswith("leases/")])
    live = living(leases, now_s, tuning_of(settings).lease_cap_s)
    held = [one.lease for one in live]
    kept = retained_numbers(superseded_times(put_s, own.number, now_s), settings.retention, held, now_s)
    subscriptions = list_subscriptions(log.store, listed=files)
    if holds := claims_of(log, live, subscriptions):
        others = verified.manifests(log.manifests, listed, listed.keys() - kept)
        kept |= pinned_at(others, holds)
    beside = verified.manifests(log.manifests, listed, kept - {own.number})
    over = [one.lease for one in leases if one not in live]
    is_said = any(info.path.startswith(TRUNCATIONS.folder) for info in files)
    return CleanupPlan(
        truncates=not (is_said and log.truncation().is_by_kafka),
        kept=kept,
        dropped=dropped_numbers(put_s, kept, own.number),
        condemned=(
            *condemned([info.path for info in files], own, beside, over),
            *superseded_paths(subscriptions.files),
        ),
        subscriptions=subscriptions,
        now_s=now_s,
    )


# ---- after the put


def run_cleanup(
    work: RoundWork,
    own: Manifest,
    cleanup_plan: CleanupPlan,
    settings: MaterializerSettings,
    verified: VerifiedRuns,
    listed: Mapping[int, FileInfo],
) -> Cleanup:
    """Remove what `cleanup_plan` allows; `listed` are the manifests after the put.

    Raises CorruptRun if a run of our own manifest is damaged, Unavailable.
    """
    log, environment = work.log, work.environment
    kept = verified.manifests(log.manifests, listed, cleanup_plan.kept)
    held_back = (
        _check_oldest(work, own, kept, verified) or check_links(kept) or _check_readable(cleanup_plan.subscriptions)
    )
    environment.crash("after-check")
    if held_back:
        return Cleanup(held_back=held_back)
    capped = _end_over_cap(work, own, cleanup_plan, settings.subscriptions)
    environment.crash("after-cap")
    if cleanup_plan.dropped:
        log.manifests.check_place()  # Verifying may take an hour, and a re-created log uses the same numbers.
    for number in cleanup_plan.dropped:
        work.go_on()
        log.store.delete(MANIFESTS.path(number))
    environment.crash("after-drop")
    truncated, floor, oldest = 0, Floor(data={}, ledger=0, held_by={}, ledger_held_by=""), None
    if len(kept) >= settings.retention.keep:
        subscriptions = list_subscriptions(log.store)
        if held_back := _check_readable(subscriptions):
            return Cleanup(held_back=held_back, manifests_dropped=len(cleanup_plan.dropped), capped=capped)
        live = living(list_leases(log.store), cleanup_plan.now_s, tuning_of(settings).lease_cap_s)
        floor = truncation_floor(kept, claims_of(log, live, subscriptions))
        log.manifests.check_place()
        oldest = aging_need(log, own, kept, floor, environment.wall_clock())
        truncated = _truncate(log, floor, environment.crash) if cleanup_plan.truncates else 0
    for path in cleanup_plan.condemned:
        work.go_on()
        log.store.delete(path)
    if not 0 <= cleanup_plan.now_s - verified.swept_s < _SWEEP_EVERY_S:  # The clock may have been ahead, too.
        log.store.sweep(cleanup_plan.now_s)
        verified.swept_s = cleanup_plan.now_s
    environment.crash("after-delete")
    verified.forget_all_but(kept, cleanup_plan.kept)
    there = log.data_offsets()
    return Cleanup(
        manifests_dropped=len(cleanup_plan.dropped),
        files_deleted=len(cleanup_plan.condemned),
        records_truncated=truncated,
        records_left=sum(end - start for start, end in there.values()),
        records_overdue=cleanup_plan.truncates
        * sum(max(0, min(floor.data.get(p, 0), end) - start) for p, (start, end) in there.items()),
        held_by=floor.ledger_held_by,
        capped=capped,
        oldest_need=oldest,
    )


def aging_need(log: Log, own: Manifest, kept: Collection[Manifest], floor: Floor, now_s: float) -> AgingRecord | None:
    """Return the oldest record that is needed from the floor up to `own`.

    Records that no commit lists yet do not count. Accepted losses do not, either: the log may end below one.
    """
    if log.retention_s is None:
        return None
    needs = [
        NeededRecord(topic=log.data_topic, partition=partition, offset=left[0][0], held_by=floor.held_by[partition])
        for partition, offset in floor.data.items()
        if (left := retained_ranges(own.state.accepted, partition, offset, own.next_offsets.get(partition, 0)))
    ]
    if floor.ledger < own.position:
        needs.append(
            NeededRecord(topic=log.ledger_topic, partition=0, offset=floor.ledger, held_by=floor.ledger_held_by)
        )
    return oldest_need(log, needs, now_s=now_s, made_s=min(one.created_s for one in kept))


def _check_readable(subscriptions: StoredSubscriptions) -> str:
    """Return why the needs of a reader are unknown, or an empty string."""
    for one in subscriptions.unreadable:
        return (
            f"the subscription of reader {one.reader} cannot be read, so it holds everything; upgrade statelog, or"
            f" remove it: {one.problem}"
        )
    return ""


def _end_over_cap(
    work: RoundWork, own: Manifest, cleanup_plan: CleanupPlan, cap: SubscriptionCap
) -> tuple[CappedSubscription, ...]:
    """End the subscriptions that are over the cap. One that its reader moved meanwhile continues, and so does one of
    messages that are not published, with a log line: no cap gives them up.
    """
    capped: list[CappedSubscription] = []
    now_s = cleanup_plan.now_s
    for reader, newest in newest_files(cleanup_plan.subscriptions.files).items():
        reason = over_cap(newest, cap, position=own.position, next_offsets=own.next_offsets, now_s=now_s)
        if not reason or _holds_messages(work.log, newest.subscription, own.position, reason):
            continue
        if end_subscription(work.log.store, newest.subscription, reason, work.environment):
            capped.append(CappedSubscription(reader=reader, reason=reason))
    return tuple(capped)


def _holds_messages(log: Log, found: Subscription, position: int, reason: str) -> bool:
    """Return whether a subscription over the cap holds messages of a table that are not published yet."""
    try:
        first = first_unpublished(log, found, position)
    except DataLoss:  # The commits are gone, so nothing can publish their messages.
        return False
    if first is not None:
        text = "%s still holds messages that are not published, from position %d on: %s"
        _LOG.warning(text, found.name, first, f"{reason}. Open the table of this writer, or remove the subscription")
    return first is not None


def _check_oldest(work: RoundWork, own: Manifest, kept: list[Manifest], verified: VerifiedRuns) -> str:
    """Return why the oldest retained snapshot is not reliable, or an empty string.

    A missing run that our own manifest names, too, is damage. One that only an old manifest names may belong to a
    manifest that a stalled process put into a slot cleaned up long before. Either way nothing is removed.
    """
    if not kept or kept[-1].nonce != own.nonce:
        work.log.manifests.check_place()  # The log may have been re-created.
        return _OUTRUN
    try:
        verified.check(work, kept[0].runs)
    except (NotFound, Corrupt) as error:
        if work.log.manifests.numbers()[-1:] != [own.number]:
            return _OUTRUN
        path = str(error.facts.get("path"))
        if path in {run.path for run in own.runs}:
            raise CorruptRun(f"a run of the newest snapshot is damaged: {error}", path=path) from error
        return f"manifest {kept[0].number} does not verify: {error}"
    return ""


def check_links(links: Iterable[Manifest]) -> str:
    """Return why two retained neighbours do not belong to one chain, or an empty string if all do.

    One of them comes from another directory, or a stalled process put it into a slot that was free again. Until
    retention drops it, it is unknown which of them decides what may be removed.
    """
    for older, newer in pairwise(links):
        if newer.number == older.number + 1:
            try:
                check_chain(older, newer)
            except CorruptManifest as error:
                return f"manifests {older.number} and {newer.number} do not belong to one chain: {error}"
    return ""


def _truncate(log: Log, floor: Floor, crash: CrashPoint) -> int:
    """Truncate both topics to the floor. Return the number of offsets removed."""
    truncated = _truncate_topic(log, log.data_topic, floor.data)
    crash("after-truncate-data")
    truncated += _truncate_topic(log, log.ledger_topic, {0: floor.ledger})
    crash("after-truncate-ledger")
    return truncated


def _truncate_topic(log: Log, topic: str, floor: Mapping[int, int]) -> int:
    there = log.kafka.offsets(topic, sorted(floor))
    # A floor lies above the log end only where a person accepted the loss of the end.
    before = {p: to for p, offset in floor.items() if (to := min(offset, there[p].end)) > there[p].start}
    if not before:
        return 0
    log.verify_now(ROUND)  # DeleteRecords goes by name, and since the round began it may be another log's.
    starts = log.kafka.delete_records(topic, before)
    return sum(start - there[p].start for p, start in starts.items())
