"""Leases: a reader's claim on what it still has to read. Truncation and cleanup stop short of it.

A reader writes its lease, then checks manifest and log start again; it renews the lease by writing it again, with
the offsets that it needs by then. Leases serve readers, never safety: one that ends too early costs a new plan.

Invariants:
- Expiry is decided by the store's clock alone: its time of the last write, and its time now.
- A lease ends `ttl_s` after its last renewal, and at the latest `cap_s` after it was made, so that neither a dead
  nor a stuck reader holds Kafka back forever.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from statelog.errors import ConfigError, Corrupt, Misuse
from statelog.schemas.avro import Datum, FileCodec
from statelog.schemas.names import check_name

__all__ = ["FORMAT_VERSION", "Lease", "expired"]

FORMAT_VERSION = 1
_FILE = FileCodec("lease", version=FORMAT_VERSION, error=Corrupt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What `holder` still needs: a manifest (0: none), the ledger from `position`, and `next_offsets` per partition.

    `created_s` is the store's time when the lease was made; renewals keep it. Raises InvalidName, ConfigError.
    """

    id: str
    holder: str
    manifest_number: int
    next_offsets: Mapping[int, int]
    position: int
    ttl_s: float
    created_s: float

    def __post_init__(self) -> None:
        check_name("lease", self.id)
        numbers = [self.manifest_number, self.position, *self.next_offsets.keys(), *self.next_offsets.values()]
        if min(numbers) < 0:
            raise ConfigError("a lease holds a negative number", lease=self.id)
        if not (math.isfinite(self.ttl_s) and self.ttl_s > 0 and math.isfinite(self.created_s)):
            raise ConfigError("a lease needs a time to live above 0", lease=self.id, ttl_s=self.ttl_s)

    @property
    def name(self) -> str:
        """What to call it where it holds something back."""
        return f"lease {self.id} of {self.holder}"

    def to_bytes(self) -> bytes:
        """The file."""
        offsets = [
            {"partition": partition, "offset": offset} for partition, offset in sorted(self.next_offsets.items())
        ]
        return _FILE.encode(
            {
                "id": self.id,
                "holder": self.holder,
                "manifest_number": self.manifest_number,
                "position": self.position,
                "next_offsets": offsets,
                "ttl_s": self.ttl_s,
                "created_s": self.created_s,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "Lease":
        """From the file's bytes; `path` is for messages. Raises Corrupt, UnknownFormat."""
        datum = _FILE.decode(data, path)
        try:
            return _from_datum(datum)
        except Misuse as error:
            raise Corrupt(f"{path} holds impossible values: {error}", path=path) from error


def _from_datum(datum: Datum) -> Lease:
    offsets = cast("list[dict[str, int]]", datum["next_offsets"])
    return Lease(
        id=cast("str", datum["id"]),
        holder=cast("str", datum["holder"]),
        manifest_number=cast("int", datum["manifest_number"]),
        next_offsets={row["partition"]: row["offset"] for row in offsets},
        position=cast("int", datum["position"]),
        ttl_s=cast("float", datum["ttl_s"]),
        created_s=cast("float", datum["created_s"]),
    )


def expired(lease: Lease, modified_s: float, now_s: float, cap_s: float) -> bool:
    """Whether the lease holds nothing back any more, at store time `now_s`, last written at `modified_s`.

    `cap_s` bounds its whole life; `math.inf` for none. A lease that claims to be younger than its file counts from
    the file's time.
    """
    renewed_until_s = modified_s + lease.ttl_s
    capped_at_s = min(lease.created_s, modified_s) + cap_s
    return now_s > min(renewed_until_s, capped_at_s)
