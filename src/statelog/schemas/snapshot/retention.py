"""Retention: which manifests to keep, how far to truncate, which files to delete. Pure decisions.

Invariants:
- The newest `keep` manifests, at least two, are always retained; so is every manifest newer than the round's own.
- Age, leases and subscriptions serve readers, never safety: without them readers plan again more often, and nothing
  breaks.
- A publication is never the truth about a log. A copied root has the same files and topics as the original; only Kafka
  is common to both. So a round that finds another chain's publication there deletes nothing.
- Only files of a listing taken before the put are condemned. Every later manifest starts from this one or a newer one,
  so it cannot name them.
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
    """Limits for the manifests to retain.

    keep       how many of the newest manifests, at least 2
    min_age_s  and every manifest that was superseded less than so many seconds ago

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
    """The offsets below which the log may be truncated: per data partition, and of the ledger.

    `held_by` and `ledger_held_by` name, for people, the manifest, lease or subscription that needs the rest.
    """

    data: Mapping[int, int]
    ledger: int
    held_by: Mapping[int, str]
    ledger_held_by: str


# ---- manifests


def superseded_times(put_s: Mapping[int, float], own: int, now_s: float) -> dict[int, float | None]:
    """Return when each manifest was superseded, once number `own` is put at `now_s`; None for the newest one.

    `put_s`: the store's time of each listed manifest.
    """
    times = {own: now_s, **put_s}
    numbers = sorted(times)
    return {**{older: times[newer] for older, newer in pairwise(numbers)}, numbers[-1]: None}


def retained_numbers(
    superseded_s: Mapping[int, float | None], policy: RetentionPolicy, leases: Iterable[Lease], now_s: float
) -> frozenset[int]:
    """Return the manifests of `superseded_s` (see `superseded_times`) to retain. `leases` are the live ones."""
    newest = sorted(superseded_s)[-policy.keep :]
    young = [n for n, since_s in superseded_s.items() if since_s is None or now_s - since_s < policy.min_age_s]
    pinned = superseded_s.keys() & {lease.manifest_number for lease in leases}
    return frozenset([*newest, *young, *pinned])


def pinned_at(manifests: Iterable[Manifest], claims: Iterable[Claim]) -> frozenset[int]:
    """Return the manifests at whose exact position a claim holds the log.

    A stream that starts with the state there may not have read it yet, and reads no other manifest.
    """
    positions = {claim.position for claim in claims}
    return frozenset(manifest.number for manifest in manifests if manifest.position in positions)


def dropped_numbers(listed: Iterable[int], retained: Collection[int], own: int) -> tuple[int, ...]:
    """Return the manifests, listed before the put, that the winner of slot `own` deletes; oldest first."""
    return tuple(sorted(number for number in listed if number < own and number not in retained))


# ---- truncation


def truncation_floor(retained: Collection[Manifest], claims: Iterable[Claim]) -> Floor:
    """Return the lowest offsets that a retained manifest or a reader's claim still needs.

    `retained` are durable manifests (at least one), read again after the put. A manifest needs every partition, from 0
    where it has committed nothing. A claim needs only the partitions that it names.
    """
    if not retained:
        raise ConfigError("there is no retained manifest to truncate to")
    bounds = bounds_of(retained, claims)
    partitions = sorted({partition for one in retained for partition in one.next_offsets})
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
    """The lowest offsets that a manifest or claim needs; `otherwise` is for partitions not in `next_offsets`."""

    name: str
    position: int
    next_offsets: Mapping[int, int]
    otherwise: int | None

    def needs_of(self, partition: int) -> int | None:
        """Return the offset from which a partition is needed; None if it is not."""
        return self.next_offsets.get(partition, self.otherwise)


def bounds_of(retained: Iterable[Manifest], claims: Iterable[Claim]) -> list[Bound]:
    """Return the bounds of retained manifests, then of claims. A claim needs the record below its position, too."""
    manifests = [Bound(f"manifest {one.number}", one.position, one.next_offsets, 0) for one in retained]
    held = (Bound(one.name, max(0, one.position - 1), one.next_offsets, None) for one in claims)
    return [*manifests, *held]


def lowest_bounds(bounds: Collection[Bound], partitions: Iterable[int]) -> dict[int, Bound]:
    """Return, by partition, the first of the lowest bounds, if there is any. A manifest bounds every partition."""
    offers = {p: [(offset, bound) for bound in bounds if (offset := bound.needs_of(p)) is not None] for p in partitions}
    return {p: min(mine, key=lambda offer: offer[0])[1] for p, mine in offers.items() if mine}


# ---- files


def condemned(
    listing: Iterable[str], own: Manifest, retained: Iterable[Manifest], expired_leases: Iterable[Lease] = ()
) -> tuple[str, ...]:
    """Return the files, listed before `own` was put, that no manifest can name once it exists. Sorted.

    `retained` are the other manifests to retain. Unrecognised files are never deleted.
    """
    named = {run.path for manifest in (own, *retained) for run in manifest.runs}
    ended = {lease_path(lease.id) for lease in expired_leases}
    return tuple(sorted({path for path in listing if path in ended or (is_run_path(path) and path not in named)}))


# ---- what a round publishes


_WAY_OUT = "if the log's root is {url}, stop the materializers of any other, and claim it (--claim-root, claim_root)"


@dataclass(frozen=True, slots=True)
class Publication:
    """A claim that manifest `number` (0: none yet) with this nonce (hex) lies at `url`. `ledger` is the topic's id."""

    ledger: str
    number: int
    nonce: str
    url: str

    def to_text(self) -> str:
        """Return the publication as Kafka stores it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Publication | None":
        """Parse a publication; None if the text is none."""
        try:
            found = cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            return None
        is_whole = type(found.number) is int and all(type(one) is str for one in (found.ledger, found.nonce, found.url))
        return found if is_whole else None


def why_not_ours(published: Publication, ours: Publication, newest: int, there: Manifest | None) -> str:
    """Return why the last publication is not of the chain of `ours`, or an empty string.

    `newest`: the chain's newest number. `there`: its manifest of the published number, if it still exists.
    """
    if published.ledger != ours.ledger:
        return ""  # It is about topics that the log had before.
    way_out = _WAY_OUT.format(url=ours.url)
    if published.url != ours.url:
        return f"the last round was published from another root, {published.url}, and this may be a copy: {way_out}"
    if published.number > newest:
        return (
            f"manifest {published.number} was published, but is not here: the store went back, or is a copy: {way_out}"
        )
    if there is not None and there.nonce.hex() != published.nonce:
        return f"manifest {published.number} here is not the one that was published, so this may be a copy: {way_out}"
    return ""
