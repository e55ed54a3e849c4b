"""Claims: data that readers still need, which truncation and cleanup spare: leases and subscriptions. Pure.

A lease ends soon after its reader, which renews it by writing it again. A subscription also holds while its reader is
stopped: until the reader moves on, a person removes it, or the materializer's cap ends it. Each write of a subscription
is a new file with the next number. So put-if-absent orders concurrent readers, people and materializers.

Invariants:
- Claims serve readers, never safety: a claim that ends too early costs a new plan.
- Only the store's clock decides a lease's expiry. It is capped, so that no dead or stuck reader blocks truncation for
  ever.
- The newest file of a subscription is its state, and is never deleted, so no number is used twice. Until it says that
  the subscription ended, every file of the reader holds, older ones included.
- A subscription belongs to one reading, whose id its checkpoint carries. Any other reading is refused.
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

OUTPUTS, PUBLISHED = "outputs.", "everything is published"
"""How the readers of tables' outputs are named, before the writer, and the end of one that needs nothing more."""
AS_ITS_FILE_S = 253_402_300_799.0
"""A lease's `created_s` until its reader knows the store's time: the end of the year 9999."""

_LEASES = FileCodec("lease", version=1, error=Corrupt)
_SUBSCRIPTIONS = FileCodec("subscription", version=1, error=Corrupt)
_STATES = RecordCodec("ledger_state")


def _offset_rows(next_offsets: Mapping[int, int]) -> list[Datum]:
    return [{"partition": partition, "offset": offset} for partition, offset in sorted(next_offsets.items())]


def _offsets(rows: Iterable[Datum]) -> dict[int, int]:
    return {row["partition"]: row["offset"] for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A claim of `holder`: a manifest (0: none), the ledger from `position`, and each partition from `next_offsets`.

    `created_s` is the store's time of the first write, `AS_ITS_FILE_S` until the first renewal; renewals preserve it.
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
        """Its name in messages."""
        return f"lease {self.id} of {self.holder}"

    def made_s(self, modified_s: float) -> float:
        """Return the store's time of the first write, at most the file's own time."""
        return min(self.created_s, modified_s)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return _LEASES.encode(datum_of(self, next_offsets=_offset_rows(self.next_offsets)))

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "Lease":
        """Decode the file at `path`, which must carry the lease's id. Raises Corrupt, UnknownFormat."""
        found = _LEASES.decode(
            data, path, lambda one: cls(**dict[str, Any](one, next_offsets=_offsets(one["next_offsets"])))
        )
        if path != lease_path(found.id):
            raise Corrupt(f"{path} is another lease's file", path=path, lease=found.id)
        return found


def expired(lease: Lease, modified_s: float, now_s: float, cap_s: float) -> bool:
    """Return whether a lease that was last written at `modified_s` has ended at store time `now_s`.

    It ends `ttl_s` after its last write, and at the latest `cap_s` (`math.inf` for none) after its first.
    """
    renewed_until_s = modified_s + lease.ttl_s
    capped_at_s = lease.made_s(modified_s) + cap_s
    return now_s > min(renewed_until_s, capped_at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A claim of `reader`: the ledger from `position`, and every partition from `next_offsets`.

    `state`: the ledger folded to `position`.
    `anchor`: offset and xxh3-64 of the ledger record below the position, if known.
    `holder_id`: the id of the reading; `holder` names the reader for people.
    `is_taken_up`: a checkpoint of the reading is known. Until then another reading may replace it.
    `ended`: why it ended; empty while it holds.

    Times are the store's. Raises InvalidName, ConfigError.
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
        """Its name in messages."""
        return f"subscription {self.reader} of {self.holder}"

    @property
    def path(self) -> str:
        """The path of its file."""
        return subscription_path(self.reader, self.number)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
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
        """Decode the file at `path`, which must name its reader and number. Raises Corrupt, UnknownFormat."""
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
"""A live lease, or a subscription."""


class SubscriptionFile(NamedTuple):
    """A subscription as stored; `modified_s` is the store's time of its write."""

    subscription: Subscription
    modified_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionCap:
    """Limits at which the materializer ends a subscription: a forgotten reader must not block truncation for ever.

    idle_s   the longest time in seconds since the reader's last write
    records  the most records (offsets of the data topic) it may hold that are in a snapshot; None for any number

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
    """Return the newest file of every reader, by reader."""
    newest: dict[str, SubscriptionFile] = {}
    for one in sorted(files, key=lambda file: file.subscription.number):
        newest[one.subscription.reader] = one
    return dict(sorted(newest.items()))


def holding(files: Collection[SubscriptionFile], identity: LogIdentity) -> list[Subscription]:
    """Return the subscriptions that hold back truncation of this log: all files of a reader until its newest ended."""
    ended = {reader for reader, one in newest_files(files).items() if one.subscription.ended}
    return [
        one.subscription
        for one in files
        if one.subscription.reader not in ended and one.subscription.identity == identity
    ]


def superseded_paths(files: Collection[SubscriptionFile]) -> list[str]:
    """Return the files older than a reader's ended one: they hold nothing, and may be deleted at any later time."""
    newest = newest_files(files)
    over = (one.subscription for one in files if newest[one.subscription.reader].subscription.ended)
    return sorted(one.path for one in over if one.number < newest[one.reader].subscription.number)


# ---- the right to write the next file


def check_holder(found: Subscription | None, holder_id: str) -> None:
    """Check that the reading with this id may write the file after `found`, its reader's newest.

    It may replace another reading that ended or was never taken up. Raises SubscriptionEnded, ReaderInUse.
    """
    if found is None or (found.ended and found.holder_id != holder_id):
        return
    if found.ended:
        raise SubscriptionEnded(
            f"the subscription of reader {found.reader} was ended: {found.ended}",
            reader=found.reader,
            position=found.position,
            hint="Read on under another reader id while the log still holds the position, else start again from a"
            " snapshot",
        )
    if found.holder_id != holder_id and found.is_taken_up:
        raise ReaderInUse(
            f"the reader id {found.reader} belongs to another reading",
            reader=found.reader,
            holder=found.holder,
            position=found.position,
            hint="Use a reader id of its own for each reading; if the other one will not come back, remove its"
            " subscription with `statelog subscriptions NAME --remove READER`",
        )


def following(found: Subscription | None, wanted: Subscription) -> Subscription:
    """Return `wanted` as the file after `found`: with the next number, and the creation time of the same reading."""
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
    """Return why the subscription has to end, or an empty string.

    `position` and `next_offsets` are the newest snapshot's. A subscription that blocks no truncation never ends.
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
