"""The bounds of truncation: the holder of each, how far it lets the log be truncated, and what would release it.

Computed by the functions that decide for a round. `describe`, `truncate --explain`, metrics and the page use these
names. Truncates nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from statelog.formatting import show_counted, show_duration
from statelog.kafka.port import OffsetRange
from statelog.log import Log
from statelog.materializer.settings import MaterializerSettings, tuning_of
from statelog.operate.report import Listing
from statelog.reading import HeldLease, StoredSubscriptions, claims_of, living
from statelog.schemas.snapshot.claims import Lease, Subscription, newest_files
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.retention import (
    Bound,
    bounds_of,
    lowest_bounds,
    pinned_at,
    retained_numbers,
    superseded_times,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A snapshot, lease or subscription that holds truncation back, made `age_s` ago; `frees`: what releases it."""

    kind: str
    bound: Bound
    owner: str | None
    age_s: float | None
    frees: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Every holder, and the offsets of both topics. `held_back`: why truncation is off altogether, or empty."""

    holders: tuple[Holder, ...]
    data: Mapping[int, OffsetRange]
    ledger: OffsetRange
    held_back: str

    @property
    def held_by(self) -> str:
        """The holder with the lowest ledger position; empty without a snapshot."""
        return min(self._bounds, key=lambda one: one.position).name if self.holders else ""

    def listing(self) -> Listing:
        """Return a row for each holder: where it is the lowest bound, and how many records only it retains."""
        columns = ("held_by", "kind", "owner", "age_s", "position", "holds", "frees_records", "frees")
        lowest = lowest_bounds(self._bounds, self.data)
        return Listing("truncation_bounds", columns, [self._row(holder, lowest) for holder in self.holders])

    def by_partition(self) -> Listing:
        """Return a row for each holder of each partition and of the ledger; `holds` marks the lowest."""
        columns = ("topic", "partition", "log_start", "held_by", "offset", "holds", "frees")
        return Listing("truncation_bounds_by_partition", columns, list(self._partition_rows()))

    @property
    def _bounds(self) -> list[Bound]:
        return [one.bound for one in self.holders]

    def _row(self, holder: Holder, lowest: Mapping[int, Bound]) -> tuple[object, ...]:
        bound = holder.bound
        partitions = [partition for partition, one in lowest.items() if one is bound]
        is_ledger = bound.name == self.held_by
        holds = [*["ledger"] * is_ledger, *[f"{len(partitions)} of {len(self.data)} partitions"] * bool(partitions)]
        return (
            bound.name, holder.kind, holder.owner, holder.age_s, bound.position, " and ".join(holds) or None,
            self._freed(bound, partitions), holder.frees,
        )  # fmt: skip

    def _freed(self, bound: Bound, partitions: list[int]) -> int:
        """Count the records of both topics that are retained for this bound alone."""
        rest = [one for one in self._bounds if one is not bound]
        if not rest:
            return 0
        count = max(0, min(one.position for one in rest) - max(bound.position, self.ledger.start))
        for partition in partitions:
            needed = [offset for one in rest if (offset := one.needs_of(partition)) is not None]
            start = max(bound.needs_of(partition) or 0, self.data[partition].start)
            count += max(0, min(needed) - start) if needed else 0
        return count

    def _partition_rows(self) -> Iterator[tuple[object, ...]]:
        lowest = lowest_bounds(self._bounds, self.data)
        for one in self.holders:
            mark = "holds" if one.bound.name == self.held_by else None
            yield "ledger", 0, self.ledger.start, one.bound.name, one.bound.position, mark, one.frees
        for partition, there in sorted(self.data.items()):
            for one in self.holders:
                offset, mark = one.bound.needs_of(partition), "holds" if lowest[partition] is one.bound else None
                if offset is not None:
                    yield "data", partition, there.start, one.bound.name, offset, mark, one.frees


def held(
    log: Log,
    settings: MaterializerSettings,
    leases: Sequence[HeldLease],
    subscriptions: StoredSubscriptions,
    *,
    most_snapshots: int | None = None,
    now_s: float | None = None,
) -> Held:
    """Return everything that holds truncation back now. Raises Damaged, Unavailable.

    `settings`: the materializer's.
    `most_snapshots`: list only the oldest ones; newer snapshots hold nothing more.
    `now_s`: the current time, for a caller that may not write; reading the store's clock writes a file.
    """
    listed = log.manifests.listed()
    now_s = log.store.now_s() if now_s is None else now_s
    manifests = [one for number in sorted(listed)[:most_snapshots] if (one := log.manifests.find(number))]
    live = living(leases, now_s, tuning_of(settings).lease_cap_s)
    holds = claims_of(log, live, subscriptions)
    bounds = bounds_of(manifests, holds)
    put_s = {number: info.modified_s for number, info in listed.items()}
    snapshots = _Snapshots(
        settings=settings,
        superseded_s=superseded_times(put_s, max(listed, default=0), now_s),
        leases=[one.lease for one in live],
        pinned_at=pinned_at(manifests, holds),
        now_s=now_s,
    )
    readers = [one for one in holds if isinstance(one, Subscription)]
    makers = [
        *(partial(snapshots.holder, one) for one in manifests),
        *(partial(_lease, one, tuning_of(settings).lease_cap_s, now_s) for one in live),
        *(partial(_subscription, one, subscriptions, settings, now_s) for one in readers),
    ]
    made = [make(bound) for make, bound in zip(makers, bounds, strict=True)]
    return Held(
        holders=(*(made if manifests else ()), *_unreadable(subscriptions)),
        data=log.data_offsets(),
        ledger=log.kafka.offsets(log.ledger_topic, [0])[0],
        held_back=_held_back(log, len(listed), settings, subscriptions),
    )


def _held_back(log: Log, count: int, settings: MaterializerSettings, subscriptions: StoredSubscriptions) -> str:
    if log.truncation().is_by_kafka:
        return "Kafka deletes records by their age, not the materializer"
    if subscriptions.unreadable:
        return "nothing is truncated while a subscription cannot be read"
    keep = settings.retention.keep
    return f"nothing is truncated before there are {keep} snapshots; now: {count}" if count < keep else ""


@dataclass(frozen=True, slots=True)
class _Snapshots:
    """The reason why each snapshot is retained."""

    settings: MaterializerSettings
    superseded_s: Mapping[int, float | None]
    leases: list[Lease]
    pinned_at: frozenset[int]
    now_s: float

    def holder(self, manifest: Manifest, bound: Bound) -> Holder:
        since_s = self.superseded_s[manifest.number]
        age_s = max(0.0, self.now_s - manifest.created_s)
        frees = self._frees(manifest.number, since_s)
        return Holder(kind="snapshot", bound=bound, owner=None, age_s=age_s, frees=frees)

    def _frees(self, number: int, since_s: float | None) -> str:
        policy, newest = self.settings.retention, sorted(self.superseded_s)
        retained = retained_numbers(self.superseded_s, policy, self.leases, self.now_s)
        if number in newest[-policy.keep :]:
            rounds = policy.keep - (len(newest) - 1 - newest.index(number))
            return f"{show_counted(rounds, 'more round')} with something new (keep={policy.keep})"
        pinned = [lease.name for lease in self.leases if lease.manifest_number == number]
        if pinned:
            return f"the end of {pinned[0]}"
        if number in retained and since_s is not None:
            left_s = max(0.0, policy.min_age_s - (self.now_s - since_s))
            return f"a round in {show_duration(left_s)} or later (min_age={show_duration(policy.min_age_s)})"
        if number in self.pinned_at:
            return "the reader at its position, when it moves on"
        return "the next round"


def _lease(one: HeldLease, cap_s: float, now_s: float, bound: Bound) -> Holder:
    age_s = max(0.0, now_s - one.created_s)
    silence, left = show_duration(one.lease.ttl_s), show_duration(max(0.0, cap_s - age_s))
    frees = f"the end of its reader, or {silence} of silence; in {left} at the latest"
    return Holder(kind="lease", bound=bound, owner=one.lease.holder, age_s=age_s, frees=frees)


def _subscription(
    one: Subscription, found: StoredSubscriptions, settings: MaterializerSettings, now_s: float, bound: Bound
) -> Holder:
    idle_s = now_s - newest_files(found.files)[one.reader].modified_s
    left = show_duration(max(0.0, settings.subscriptions.idle_s - idle_s))
    frees = f"its reader's progress, or `statelog subscriptions NAME --remove {one.reader}`; the cap in {left}"
    age_s = max(0.0, now_s - one.created_s)
    return Holder(kind="subscription", bound=bound, owner=one.holder, age_s=age_s, frees=frees)


def _unreadable(found: StoredSubscriptions) -> Iterator[Holder]:
    for one in found.unreadable:
        bound = Bound(f"subscription {one.reader}, which cannot be read", 0, {}, 0)
        frees = f"a newer statelog, or `statelog subscriptions NAME --remove {one.reader}`"
        yield Holder(kind="subscription", bound=bound, owner=None, age_s=None, frees=frees)
