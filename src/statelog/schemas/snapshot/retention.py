"""Retention: which manifests to keep, how far to truncate, which files to delete. Pure decisions.

Invariants:
- The newest `keep` manifests, at least two, are always kept; so is every manifest that is newer than the round's own.
- Age, leases and subscriptions serve readers, never safety: without them readers plan again more often, and nothing
  breaks.
- A publication is never the truth about a log. A copy of a root has all that the log's own has, and the same topics:
  what both see is Kafka alone. So a round that finds there what another chain published removes nothing.
- Only files of a listing taken before the put are condemned. Whatever is published later starts from this manifest or a
  newer one, so it cannot name them.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise

from statelog.errors import ConfigError
from statelog.schemas.names import check_kind, is_run_path, lease_path
from statelog.schemas.snapshot.claims import Claim, Lease
from statelog.schemas.snapshot.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Which manifests are kept.

    keep       the newest so many, at least 2
    min_age_s  and those that were superseded less than this ago

    Raises ConfigError.
    """

    keep: int = 2
    min_age_s: float = 3600.0

    def __post_init__(self) -> None:
        check_kind("keep", self.keep, int, example="keep=3, at least 2")
        check_kind("min_age_s", self.min_age_s, int, float, example="a number of seconds")
        if self.keep < 2:
            raise ConfigError("retention keeps fewer than two manifests", keep=self.keep)
        if not self.min_age_s >= 0:
            raise ConfigError("retention has a negative minimum age", min_age_s=self.min_age_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Up to where the log may be truncated: per data partition, and the ledger. Offsets below may go.

    `held_by` and `ledger_held_by` say which manifest, lease or subscription holds each of them back, for people.
    """

    data: Mapping[int, int]
    ledger: int
    held_by: Mapping[int, str]
    ledger_held_by: str


# ---- manifests


def superseded_times(put_s: Mapping[int, float], own: int, now_s: float) -> dict[int, float | None]:
    """When each manifest was superseded, once number `own` is put at `now_s`; None for the newest one.

    `put_s` gives the store's time of each manifest that is listed.
    """
    times = {own: now_s, **put_s}
    numbers = sorted(times)
    return {**{older: times[newer] for older, newer in pairwise(numbers)}, numbers[-1]: None}


def kept_numbers(
    superseded_s: Mapping[int, float | None], policy: RetentionPolicy, leases: Iterable[Lease], now_s: float
) -> frozenset[int]:
    """The manifests to keep out of those in `superseded_s` (see `superseded_times`). `leases` are the live ones."""
    newest = sorted(superseded_s)[-policy.keep :]
    young = [n for n, since_s in superseded_s.items() if since_s is None or now_s - since_s < policy.min_age_s]
    pinned = superseded_s.keys() & {lease.manifest_number for lease in leases}
    return frozenset([*newest, *young, *pinned])


def pinned_at(manifests: Iterable[Manifest], claims: Iterable[Claim]) -> frozenset[int]:
    """The manifests at whose very position a claim holds the log: a stream that begins with the state there may not
    have read it yet, and reads no other one.
    """
    positions = {claim.position for claim in claims}
    return frozenset(manifest.number for manifest in manifests if manifest.position in positions)


def dropped_numbers(listed: Iterable[int], kept: Collection[int], own: int) -> tuple[int, ...]:
    """The manifests of the listing before the put that the winner of slot `own` deletes, oldest first."""
    return tuple(sorted(number for number in listed if number < own and number not in kept))


# ---- truncation


def truncation_floor(kept: Collection[Manifest], claims: Iterable[Claim]) -> Floor:
    """The lowest offsets that a kept manifest or a reader's claim still needs.

    `kept` are durable manifests, read again after the put; there is at least one. A manifest needs every partition,
    from 0 where it has committed nothing; a claim only those that it names.
    """
    if not kept:
        raise ConfigError("there is no kept manifest to truncate to")
    bounds = bounds_of(kept, claims)
    partitions = sorted({partition for one in kept for partition in one.next_offsets})
    ledger = min(bounds, key=lambda bound: bound.position)
    lowest = lowest_bounds(bounds, partitions)
    return Floor(
        data={partition: bound.needs_of(partition) or 0 for partition, bound in lowest.items()},
        ledger=ledger.position,
        held_by={partition: bound.name for partition, bound in lowest.items()},
        ledger_held_by=ledger.name,
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """How far somebody lets the log be truncated; `otherwise` is for a partition that is not in `next_offsets`."""

    name: str
    position: int
    next_offsets: Mapping[int, int]
    otherwise: int | None

    def needs_of(self, partition: int) -> int | None:
        """From which offset on a partition is needed; None if nothing of it is."""
        return self.next_offsets.get(partition, self.otherwise)


def bounds_of(kept: Iterable[Manifest], claims: Iterable[Claim]) -> list[Bound]:
    """Of kept manifests, and of readers' claims, in this order. Who claims a position compares the record below it."""
    manifests = [Bound(f"manifest {one.number}", one.position, one.next_offsets, 0) for one in kept]
    held = (Bound(one.name, max(0, one.position - 1), one.next_offsets, None) for one in claims)
    return [*manifests, *held]


def lowest_bounds(bounds: Collection[Bound], partitions: Iterable[int]) -> dict[int, Bound]:
    """By partition the first of those that hold it back furthest, if any do; a manifest holds every partition."""
    offers = {p: [(offset, bound) for bound in bounds if (offset := bound.needs_of(p)) is not None] for p in partitions}
    return {p: min(mine, key=lambda offer: offer[0])[1] for p, mine in offers.items() if mine}


# ---- files


def condemned(
    listing: Iterable[str], own: Manifest, kept: Iterable[Manifest], expired_leases: Iterable[Lease] = ()
) -> tuple[str, ...]:
    """The files of a listing taken before `own` was put that no manifest can name once it exists. Sorted.

    `kept` are the manifests that will be kept beside `own`. Anything unrecognised is kept forever.
    """
    named = {run.path for manifest in (own, *kept) for run in manifest.runs}
    ended = {lease_path(lease.id) for lease in expired_leases}
    return tuple(sorted({path for path in listing if path in ended or (is_run_path(path) and path not in named)}))


# ---- what a round publishes


_WAY_OUT = "if the log's root is {url}, stop the materializers of any other, and claim it (--claim-root, claim_root)"


@dataclass(frozen=True, slots=True)
class Publication:
    """Manifest `number` (0: none yet) with this nonce, in hex, lies at the root `url`. `ledger` is the topic's id."""

    ledger: str
    number: int
    nonce: str
    url: str

    def to_text(self) -> str:
        """As Kafka keeps it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Publication | None":
        """Read it again; None if it is none."""
        try:
            found = cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            return None
        is_whole = type(found.number) is int and all(type(one) is str for one in (found.ledger, found.nonce, found.url))
        return found if is_whole else None


def why_not_ours(published: Publication, ours: Publication, newest: int, there: Manifest | None) -> str:
    """Why what was published last is not of the chain that `ours` belongs to, or an empty string.

    `newest` is the chain's newest number, and `there` its manifest of the published number, if it still has one.
    """
    if published.ledger != ours.ledger:
        return ""  # Of topics that the log had before.
    way_out = _WAY_OUT.format(url=ours.url)
    if published.url != ours.url:
        return f"the last round was published from another root, {published.url}, and this may be a copy: {way_out}"
    if published.number > newest:
        return (
            f"manifest {published.number} was published, and is not here: the store went back, or is a copy: {way_out}"
        )
    if there is not None and there.nonce.hex() != published.nonce:
        return f"another manifest {published.number} was published than the one here, so this may be a copy: {way_out}"
    return ""
