"""Claims: what readers still need, so that truncation and cleanup stop short of it: leases, and subscriptions. Pure.

A lease ends soon after its reader, who renews it by writing it again. A subscription holds while its reader is stopped,
too: until the reader has moved on, a person removes it, or the materializer's cap ends it. Each write of one is a file
of its own with the next number, so that put-if-absent orders readers, people and materializers that write at once.

Invariants:
- Claims serve readers, never safety: one that ends too early costs a new plan.
- A lease's expiry is decided by the store's clock alone, and capped, so that neither a dead nor a stuck reader holds
  Kafka back for ever.
- The newest file of a subscription says how it stands, and is never deleted: so a number is never used twice. Unless it
  says that the subscription ended, every file of a reader holds: the older one until the newer one stands.
- A subscription belongs to one reading, whose id its checkpoint carries; another one is refused, and never moves it.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from statelog.errors import ConfigError, Corrupt, ReaderInUse, SubscriptionEnded
from statelog.schemas.avro import Datum, FileCodec, RecordCodec, datum_of
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place, has_utf8
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import check_kind, check_name, lease_path, subscription_path, subscription_slot

AS_ITS_FILE_S = 253_402_300_799.0
"""As `created_s` of a lease: its reader has not asked for the time yet. The end of the year 9999."""

_LEASES = FileCodec("lease", version=1, error=Corrupt)
_SUBSCRIPTIONS = FileCodec("subscription", version=1, error=Corrupt)
_STATES = RecordCodec("ledger_state")


def _offset_rows(next_offsets: Mapping[int, int]) -> list[Datum]:
    return [{"partition": partition, "offset": offset} for partition, offset in sorted(next_offsets.items())]


def _offsets(rows: Iterable[Datum]) -> dict[int, int]:
    return {row["partition"]: row["offset"] for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What `holder` still needs: a manifest (0: none), the ledger from `position`, and `next_offsets` per partition.

    `created_s` is the store's time when the lease was made, `AS_ITS_FILE_S` until it is renewed; renewals keep it.
    Raises InvalidName, ConfigError.
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
        check_kind("holder", self.holder, str, example='holder="web"')
        if not has_utf8(self.holder):
            raise ConfigError("holder is not valid Unicode", hint="Remove lone surrogates", lease=self.id)
        if min(self.manifest_number, self.position, *chain(*self.next_offsets.items())) < 0:
            raise ConfigError("a lease holds a negative number", lease=self.id)
        if not (math.isfinite(self.ttl_s) and self.ttl_s > 0 and math.isfinite(self.created_s)):
            raise ConfigError("a lease needs a time to live above 0", lease=self.id, ttl_s=self.ttl_s)

    @property
    def name(self) -> str:
        """What to call it where it holds something back."""
        return f"lease {self.id} of {self.holder}"

    def made_s(self, modified_s: float) -> float:
        """The store's time when it was made; of one that claims to be younger than its file, the file's time."""
        return min(self.created_s, modified_s)

    def to_bytes(self) -> bytes:
        """The file."""
        return _LEASES.encode(datum_of(self, next_offsets=_offset_rows(self.next_offsets)))

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "Lease":
        """From the bytes of the file at `path`, which names it. Raises Corrupt, UnknownFormat."""
        found = _LEASES.decode(
            data, path, lambda one: cls(**dict[str, Any](one, next_offsets=_offsets(one["next_offsets"])))
        )
        if path != lease_path(found.id):
            raise Corrupt(f"{path} is another lease's file", path=path, lease=found.id)
        return found


def expired(lease: Lease, modified_s: float, now_s: float, cap_s: float) -> bool:
    """Whether the lease holds nothing back any more, at store time `now_s`, last written at `modified_s`.

    It ends `ttl_s` after that, and at the latest `cap_s` (`math.inf` for none) after it was made.
    """
    renewed_until_s = modified_s + lease.ttl_s
    capped_at_s = lease.made_s(modified_s) + cap_s
    return now_s > min(renewed_until_s, capped_at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What `reader` still needs: the ledger from `position`, and `next_offsets` of every partition.

    `state` is the ledger folded to `position`; `anchor` offset and xxh3-64 of the ledger record below it, if it is
    known. `holder_id` is the reading's, `holder` says for people who reads. Until it `is_taken_up`, no checkpoint of
    the reading is known, and another one may take its place. `ended` says why it holds nothing any more, and is empty
    while it holds. Times are the store's. Raises InvalidName, ConfigError.
    """

    reader: str
    number: int
    nonce: bytes
    identity: LogIdentity
    holder_id: str
    holder: str
    is_taken_up: bool
    position: int
    next_offsets: Mapping[int, int]
    state: LedgerState
    anchor: LastRecord | None
    created_s: float
    moved_s: float
    ended: str = ""

    def __post_init__(self) -> None:
        check_name("reader", self.reader)
        lowest = min([self.position, *chain(*self.next_offsets.items())])
        if lowest < 0 or self.number < 1 or self.position != self.state.position:
            raise ConfigError("a subscription holds impossible numbers", reader=self.reader, number=self.number)
        if len(self.nonce) != 16 or not (math.isfinite(self.created_s) and math.isfinite(self.moved_s)):
            raise ConfigError("a subscription holds impossible values", reader=self.reader, number=self.number)

    @property
    def place(self) -> Place:
        """The position, and the ledger record below it."""
        return Place(self.position, self.anchor)

    @property
    def name(self) -> str:
        """What to call it where it holds something back."""
        return f"subscription {self.reader} of {self.holder}"

    @property
    def path(self) -> str:
        """Where its file lies."""
        return subscription_path(self.reader, self.number)

    def to_bytes(self) -> bytes:
        """The file."""
        return _SUBSCRIPTIONS.encode(
            datum_of(
                self,
                identity=datum_of(self.identity),
                next_offsets=_offset_rows(self.next_offsets),
                state=_STATES.encode(self.state.to_datum()),
                anchor_offset=self.place.last_offset,
                anchor_hash=self.place.last_hash,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "Subscription":
        """From the bytes of the file at `path`, which it must name. Raises Corrupt, UnknownFormat."""
        found = _SUBSCRIPTIONS.decode(data, path, _subscription)
        if subscription_slot(path) != (found.reader, found.number):
            raise Corrupt(f"{path} is another subscription's file", path=path, reader=found.reader, number=found.number)
        return found


def _subscription(datum: Datum) -> Subscription:
    identity, next_offsets = LogIdentity(**datum["identity"]), _offsets(datum["next_offsets"])
    state = LedgerState.from_datum(_STATES.decode_whole(datum["state"]))
    found = dict[str, Any](datum, identity=identity, next_offsets=next_offsets, state=state)
    place = Place.of_fields(found["position"], found.pop("anchor_offset"), found.pop("anchor_hash"))
    return Subscription(**found, anchor=place.last)


Claim = Lease | Subscription
"""What a reader still needs: a live lease, or a subscription."""


class SubscriptionFile(NamedTuple):
    """A subscription as it lies on the store; `modified_s` is the store's time of its write."""

    subscription: Subscription
    modified_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionCap:
    """When the materializer ends a subscription that holds something back, lest a forgotten reader do so indefinitely.

    idle_s   its reader has not written it for so long
    records  it holds more records (offsets of the data topic) that are in a snapshot; None for any number

    Raises ConfigError.
    """

    idle_s: float = 7 * 86_400.0
    records: int | None = None

    def __post_init__(self) -> None:
        check_kind("idle_s", self.idle_s, int, float, example="a number of seconds")
        check_kind("records", self.records, int, type(None), example="a whole number, or None for any")
        if not self.idle_s > 0:
            raise ConfigError("the cap of subscriptions must be above 0 seconds", idle_s=self.idle_s)
        if self.records is not None and self.records < 0:
            raise ConfigError("the cap of subscriptions is a negative number of records", records=self.records)


# ---- which subscriptions hold


def newest_files(files: Iterable[SubscriptionFile]) -> dict[str, SubscriptionFile]:
    """The newest file of every reader, by reader."""
    newest: dict[str, SubscriptionFile] = {}
    for one in sorted(files, key=lambda file: file.subscription.number):
        newest[one.subscription.reader] = one
    return dict(sorted(newest.items()))


def holding(files: Collection[SubscriptionFile], identity: LogIdentity) -> list[Subscription]:
    """What holds truncation of the log with this identity back: every file of a reader, unless its newest one ended."""
    ended = {reader for reader, one in newest_files(files).items() if one.subscription.ended}
    return [
        one.subscription
        for one in files
        if one.subscription.reader not in ended and one.subscription.identity == identity
    ]


def superseded_paths(files: Collection[SubscriptionFile]) -> list[str]:
    """The files below one that ended: they hold nothing, and may be deleted at any later time."""
    newest = newest_files(files)
    over = (one.subscription for one in files if newest[one.subscription.reader].subscription.ended)
    return sorted(one.path for one in over if one.number < newest[one.reader].subscription.number)


# ---- who may write it next


def check_holder(found: Subscription | None, holder_id: str) -> None:
    """See that the reading with this id may write the next file of its reader, `found` being the newest.

    It may take the place of another reading that ended or was never taken up. Raises SubscriptionEnded, ReaderInUse.
    """
    if found is None or (found.ended and found.holder_id != holder_id):
        return
    if found.ended:
        raise SubscriptionEnded(
            f"the subscription of reader {found.reader} was ended: {found.ended}",
            reader=found.reader,
            position=found.position,
            hint="Read on under another reader id: that works while the log still holds the position; else begin anew"
            " from a snapshot",
        )
    if found.holder_id != holder_id and found.is_taken_up:
        raise ReaderInUse(
            f"the reader id {found.reader} belongs to another reading",
            reader=found.reader,
            holder=found.holder,
            position=found.position,
            hint="Use a reader id of its own for each reading; if the other one is gone for good, remove its"
            " subscription with `statelog subscriptions NAME --remove READER`",
        )


def following(found: Subscription | None, wanted: Subscription) -> Subscription:
    """`wanted` as the file after `found`: the next number, and the same creation while it is the same reading's."""
    if found is None:
        return replace(wanted, number=1)
    is_same = found.holder_id == wanted.holder_id and not found.ended
    return replace(
        wanted,
        number=found.number + 1,
        created_s=found.created_s if is_same else wanted.created_s,
        is_taken_up=wanted.is_taken_up or (is_same and found.is_taken_up),
    )


# ---- the cap


def over_cap(
    newest: SubscriptionFile, cap: SubscriptionCap, *, position: int, next_offsets: Mapping[int, int], now_s: float
) -> str:
    """Why the subscription has to end, or an empty string. `position` and `next_offsets` are the newest snapshot's.

    One that holds nothing back which is in a snapshot never ends, however old it is.
    """
    found = newest.subscription
    if found.ended or found.position >= position:
        return ""
    idle_s = now_s - newest.modified_s
    held = sum(max(0, offset - found.next_offsets.get(partition, 0)) for partition, offset in next_offsets.items())
    if idle_s > cap.idle_s:
        return f"its reader did not move it for {idle_s:.0f} s, and the materializer allows {cap.idle_s:.0f} s"
    if cap.records is not None and held > cap.records:
        return f"it held {held} records that are in a snapshot, and the materializer allows {cap.records}"
    return ""
