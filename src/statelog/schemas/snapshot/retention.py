"""Retention: which manifests to keep, how far to truncate, which files to delete. Pure decisions.

A round takes them in this order: before its put it lists all files and computes what will be kept once its manifest
exists (`kept_numbers`), and what no manifest can name after that (`condemned`). After the put, if it won, it reads the
kept manifests again, verifies the oldest one's runs, and truncates to `truncation_floor`.

Invariants:
- The newest `keep` manifests, at least two, are always kept; so is every manifest that is newer than the round's own.
- A manifest at whose position a lease or a subscription stands is kept, as the log is from there on.
- Age, leases and subscriptions serve readers, never safety: without them readers plan again more often, and nothing
  breaks.
- Only files of a listing taken before the put are condemned, and only ones that are recognised as runs or as expired
  leases. Whatever is published later starts from this manifest or a newer one, so it cannot name them.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from statelog.errors import ConfigError, Misuse
from statelog.schemas.names import check_name, lease_path
from statelog.schemas.snapshot.lease import Lease
from statelog.schemas.snapshot.manifest import Manifest

__all__ = [
    "Floor",
    "Hold",
    "RetentionPolicy",
    "condemned",
    "dropped_numbers",
    "kept_numbers",
    "stood_at",
    "superseded_times",
    "truncation_floor",
]

_RUN_PATH = re.compile(r"runs/([^/]+)\.parquet\Z")


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


class Hold(Protocol):
    """What a reader still needs: a live lease, or a subscription."""

    @property
    def name(self) -> str:
        """What to call it, for people."""
        ...

    @property
    def position(self) -> int:
        """The next ledger offset that it needs."""
        ...

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """The next data offset that it needs, of the partitions that it reads."""
        ...


# ---- manifests


def superseded_times(put_s: Mapping[int, float], own: int, now_s: float) -> dict[int, float | None]:
    """When each manifest was superseded, once number `own` is put at `now_s`; None for the newest one.

    `put_s` gives the store's time of each manifest that is listed.
    """
    times = {**put_s, own: now_s} if own not in put_s else dict(put_s)
    numbers = sorted(times)
    superseded: dict[int, float | None] = {older: times[newer] for older, newer in pairwise(numbers)}
    superseded[numbers[-1]] = None
    return superseded


def kept_numbers(
    superseded_s: Mapping[int, float | None], policy: RetentionPolicy, leases: Iterable[Lease], now_s: float
) -> frozenset[int]:
    """The manifests to keep out of those in `superseded_s` (see `superseded_times`). `leases` are the live ones."""
    newest = sorted(superseded_s)[-policy.keep :]
    young = [n for n, since_s in superseded_s.items() if since_s is None or now_s - since_s < policy.min_age_s]
    pinned = superseded_s.keys() & {lease.manifest_number for lease in leases}
    return frozenset([*newest, *young, *pinned])


def stood_at(manifests: Iterable[Manifest], holds: Iterable[Hold]) -> frozenset[int]:
    """The manifests at whose very position somebody holds the log: a stream that begins with the state there may not
    have read it yet, and reads no other one.
    """
    positions = {hold.position for hold in holds}
    return frozenset(manifest.number for manifest in manifests if manifest.position in positions)


def dropped_numbers(listed: Iterable[int], kept: Collection[int], own: int) -> tuple[int, ...]:
    """The manifests of the listing before the put that the winner of slot `own` deletes, oldest first."""
    return tuple(sorted(number for number in listed if number < own and number not in kept))


# ---- truncation


def truncation_floor(kept: Collection[Manifest], holds: Iterable[Hold]) -> Floor:
    """The lowest offsets that a kept manifest or a reader's hold still needs.

    `kept` are durable manifests, read again after the put; there is at least one. A manifest needs every partition,
    from 0 where it has committed nothing; a hold only those that it names.
    """
    needs = [_Need(f"manifest {manifest.number}", manifest.position, manifest.next_offsets, 0) for manifest in kept]
    if not needs:
        raise ConfigError("there is no kept manifest to truncate to")
    partitions = sorted({partition for need in needs for partition in need.next_offsets})
    needs += [_Need(hold.name, hold.position, hold.next_offsets, None) for hold in holds]
    ledger = min(needs, key=lambda need: need.position)
    lowest = {partition: _lowest(needs, partition) for partition in partitions}
    return Floor(
        data={partition: offset for partition, (offset, _) in lowest.items()},
        ledger=ledger.position,
        held_by={partition: name for partition, (_, name) in lowest.items()},
        ledger_held_by=ledger.name,
    )


@dataclass(frozen=True, slots=True)
class _Need:
    name: str
    position: int
    next_offsets: Mapping[int, int]
    otherwise: int | None  # what it needs of a partition that it does not name


def _lowest(needs: Iterable[_Need], partition: int) -> tuple[int, str]:
    offers = [(need.next_offsets.get(partition, need.otherwise), need.name) for need in needs]
    return min(((offset, name) for offset, name in offers if offset is not None), key=lambda offer: offer[0])


# ---- files


def condemned(
    listing: Iterable[str], own: Manifest, kept: Iterable[Manifest], expired_leases: Iterable[Lease] = ()
) -> tuple[str, ...]:
    """The files of a listing taken before `own` was put that no manifest can name once it exists. Sorted.

    `kept` are the manifests that will be kept beside `own`. Anything unrecognised is kept forever.
    """
    named = {run.path for manifest in (own, *kept) for run in manifest.runs}
    ended = {lease_path(lease.id) for lease in expired_leases}
    return tuple(sorted({path for path in listing if path in ended or (_is_run(path) and path not in named)}))


def _is_run(path: str) -> bool:
    named = _RUN_PATH.match(path)
    if named is None:
        return False
    try:
        check_name("run", named.group(1))
    except Misuse:
        return False
    return True
