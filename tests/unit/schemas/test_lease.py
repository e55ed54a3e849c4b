"""Leases: their file, and when they end."""

import math
from dataclasses import replace

import pytest

from statelog.errors import ConfigError, Corrupt, InvalidName, UnknownFormat
from statelog.schemas.avro import RecordCodec
from statelog.schemas.names import lease_path
from statelog.schemas.snapshot.claims import Lease, expired
from tests.support.samples.chunks import mutations

LEASE = Lease(
    id="reader-1",
    holder="spark query 7 on host b",
    manifest_number=3,
    next_offsets={0: 12, 3: 0},
    position=40,
    ttl_s=60.0,
    created_s=1000.0,
)
CAP_S = 500.0


def test_a_lease_survives_its_file() -> None:
    """The file decodes to the lease."""
    assert Lease.from_bytes(LEASE.to_bytes(), lease_path(LEASE.id)) == LEASE


def test_every_mutation_of_the_file_is_refused() -> None:
    """A flipped, missing or added byte is refused, except in the schema text, which is for other tools."""
    for damaged in mutations(LEASE.to_bytes(), spare=RecordCodec("lease").text.encode()):
        with pytest.raises((Corrupt, UnknownFormat)):
            Lease.from_bytes(damaged, lease_path(LEASE.id))


def test_a_file_that_is_another_leases_is_refused() -> None:
    """A copied file is refused: it would name the live lease, whose removal would follow its own."""
    with pytest.raises(Corrupt, match="another lease's file"):
        Lease.from_bytes(LEASE.to_bytes(), lease_path("copy"))


def test_a_lease_refuses_what_cannot_be() -> None:
    """Names become paths and are checked. A time to live that is no number is refused, since it would never end."""
    with pytest.raises(InvalidName):
        replace(LEASE, id="../manifests/1")
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError):
            replace(LEASE, ttl_s=wrong)
    with pytest.raises(ConfigError):
        replace(LEASE, created_s=math.nan)
    with pytest.raises(ConfigError):
        replace(LEASE, next_offsets={0: -1})


def test_a_damaging_value_in_a_whole_file_is_corrupt() -> None:
    """A file must not say what a caller may not make."""
    lease = replace(LEASE)
    object.__setattr__(lease, "position", -1)
    with pytest.raises(Corrupt):
        Lease.from_bytes(lease.to_bytes(), lease_path(LEASE.id))


@pytest.mark.parametrize(
    ("modified_s", "now_s", "over"),
    [
        (1000.0, 1060.0, False),
        (1000.0, 1060.1, True),
        (1300.0, 1360.0, False),
        (1490.0, 1500.0, False),
        (1490.0, 1500.1, True),
        (990.0, 1050.1, True),
    ],
    ids=["to its last second", "not renewed", "renewed", "to its cap", "capped", "older than it claims"],
)
def test_a_lease_ends_after_its_last_renewal_and_at_its_cap(modified_s: float, now_s: float, over: bool) -> None:
    """Renewals extend a lease by the time to live, but nothing extends it beyond the cap."""
    assert expired(LEASE, modified_s, now_s, CAP_S) is over


def test_a_lease_that_claims_to_be_young_is_capped_by_its_files_time() -> None:
    """A creation time in the future does not outlive the cap, by the file's own time."""
    lying = replace(LEASE, created_s=9e9, ttl_s=9e9)
    assert expired(lying, 1000.0, 1500.1, CAP_S)


def test_no_cap_is_an_endless_one() -> None:
    """A caller that wants no cap passes infinity."""
    assert not expired(LEASE, 1e9, 1e9 + 59, math.inf)
