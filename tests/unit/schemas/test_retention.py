"""Retention: retained manifests, the limit of truncation, and removable files."""

from dataclasses import replace

import pytest

from statelog.errors import ConfigError
from statelog.schemas.names import lease_path
from statelog.schemas.snapshot.claims import Lease
from statelog.schemas.snapshot.retention import (
    RetentionPolicy,
    condemned,
    dropped_numbers,
    pinned_at,
    retained_numbers,
    superseded_times,
    truncation_floor,
)
from tests.support.samples.manifests import first_manifest, run_ref, second_manifest, state_at

POLICY = RetentionPolicy(keep=2, min_age_s=100.0)
MIB = 1 << 20


def _lease(number: int = 0, position: int = 0, **offsets: int) -> Lease:
    return Lease(
        id=f"lease-{number}",
        holder="a reader",
        manifest_number=number,
        next_offsets={int(name[1:]): offset for name, offset in offsets.items()},
        position=position,
        ttl_s=60.0,
        created_s=0.0,
    )


# ---- manifests


@pytest.mark.parametrize("wrong", [{"keep": 1}, {"min_age_s": -1.0}, {"min_age_s": float("nan")}], ids=str)
def test_a_policy_keeps_two_at_least(wrong: dict[str, float]) -> None:
    """A policy that retains one manifest is refused, since it has no fallback."""
    with pytest.raises(ConfigError):
        RetentionPolicy(**wrong)  # type: ignore[arg-type]  # the wrong types are the point


def test_superseded_times_come_from_the_following_manifest() -> None:
    """Each manifest is superseded when the next listed one was put. The round's own one is the newest."""
    assert superseded_times({3: 10.0, 5: 20.0}, 6, 30.0) == {3: 20.0, 5: 30.0, 6: None}
    assert superseded_times({}, 1, 30.0) == {1: None}


def test_a_slot_that_is_taken_already_keeps_its_own_time() -> None:
    """A round that lost its slot computes with the winner's time, and nothing wrong."""
    assert superseded_times({1: 10.0, 2: 20.0}, 2, 30.0) == {1: 20.0, 2: None}


def test_the_newest_the_young_and_the_pinned_are_kept() -> None:
    """The newest two, those superseded less than the minimum age ago, and those with a lease are retained."""
    superseded = {1: 100.0, 2: 200.0, 3: 910.0, 4: 950.0, 5: 990.0, 6: None}
    assert retained_numbers(superseded, POLICY, [], 1000.0) == {3, 4, 5, 6}
    assert retained_numbers(superseded, POLICY, [], 5000.0) == {5, 6}
    assert retained_numbers(superseded, POLICY, [_lease(1), _lease(77)], 5000.0) == {1, 5, 6}


def test_a_manifest_at_whose_position_somebody_stands_is_kept() -> None:
    """A manifest whose position is held is retained. A hold between two manifests retains none."""
    manifests = [first_manifest(), second_manifest()]
    at, between = first_manifest().position, first_manifest().position + 1
    assert pinned_at(manifests, [_lease(0, at)]) == {first_manifest().number}
    assert pinned_at(manifests, [_lease(0, between)]) == frozenset()


def test_only_listed_manifests_below_the_own_one_are_dropped() -> None:
    """Manifests that are newer than the round's own one are never dropped."""
    assert dropped_numbers([1, 2, 3, 9], frozenset({2, 4}), 4) == (1, 3)


# ---- truncation


def test_the_floor_is_the_lowest_need_of_the_kept_manifests() -> None:
    """The limit is the lowest need of the retained manifests, per partition and for the ledger, with its holder."""
    floor = truncation_floor([second_manifest(), first_manifest()], [])
    assert (dict(floor.data), floor.ledger) == ({0: 9, 1: 4}, 5)
    assert floor.held_by[0] == "manifest 1"
    assert floor.ledger_held_by == "manifest 1"


def test_a_lease_holds_only_the_partitions_that_it_names() -> None:
    """A lease of some key groups holds their partitions, and in the ledger the record below its position."""
    floor = truncation_floor([second_manifest()], [_lease(1, 6, p1=2)])
    assert (dict(floor.data), floor.ledger) == ({0: 12, 1: 2}, 5)
    assert floor.held_by == {0: "manifest 2", 1: "lease lease-1 of a reader"}
    assert floor.ledger_held_by == "lease lease-1 of a reader"


def test_a_partition_that_an_old_manifest_does_not_know_is_not_truncated() -> None:
    """A partition that an old manifest does not know is not truncated, since its recovery replays from 0."""
    old = replace(first_manifest(), state=state_at(5, p0=9), anchors=())
    assert dict(truncation_floor([old, second_manifest()], []).data) == {0: 9, 1: 0}


def test_nothing_kept_is_no_reason_to_truncate_everything() -> None:
    """Without a retained manifest, truncation is refused: the caller has lost its manifests."""
    with pytest.raises(ConfigError):
        truncation_floor([], [_lease(1, 5)])


# ---- files


def test_only_unnamed_runs_and_expired_leases_are_condemned() -> None:
    """Unknown files stay, and so does everything that a retained manifest or the own one names."""
    over = _lease(9)
    listing = [
        "descriptor.avro",
        "schemas/1.avsc",
        "manifests/00000000000000000001.avro",
        "runs/one.parquet",
        "runs/two.parquet",
        "runs/orphan.parquet",
        "runs/notes.txt",
        "runs/.parquet",
        "runs/a/b.parquet",
        "runs/..parquet",
        "elsewhere/runs/orphan.parquet",
        "leases/lease-1.avro",
        lease_path(over.id),
    ]
    assert condemned(listing, second_manifest(), [first_manifest()], [over]) == (
        lease_path(over.id),
        "runs/orphan.parquet",
    )


def test_a_run_goes_once_no_kept_manifest_names_it() -> None:
    """A merged run is removed with the last manifest that named it."""
    first = first_manifest()
    own = replace(second_manifest(), runs=(run_ref("merged", 0, 8),))
    listing = ["runs/one.parquet", "runs/merged.parquet"]
    assert condemned(listing, own, [first]) == ()
    assert condemned(listing, own, []) == ("runs/one.parquet",)


def test_an_expired_lease_that_is_not_listed_is_not_condemned() -> None:
    """Only files of the listing before the put are ever deleted."""
    assert condemned([], second_manifest(), [], [_lease(9)]) == ()
