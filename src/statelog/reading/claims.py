"""Claims: the files of leases and subscriptions on the store, by which readers hold a log.

`schemas.snapshot.claims` decides which files hold, which writer may add a subscription's next file, and when the cap
ends one.
A subscription is written before its reader checks its plan, moved as the reader commits, and ended by one more file.

Invariants:
- The next file of a subscription is put if absent, and its nonce says whose it is. Only older files of a listing from
  before that put are deleted: never the newest, and never the only one that holds.
- An end that was put below another file, into a slot that was free again, does not count, and is deleted.
- If a listed file is missing and no later one was listed, the reader has moved meanwhile, and the listing is repeated.
- An unreadable subscription is reported, never left out, because truncation must not pass it. An unreadable lease holds
  nothing, with a log line: its reader may have to plan again.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from statelog.environment import Environment, current_environment
from statelog.errors import Corrupt, NotFound, OffsetGone, StoreUnavailable, UnknownFormat
from statelog.log import Log
from statelog.schemas.ledger.place import LastRecord, LogIdentity
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import subscription_path, subscription_slot
from statelog.schemas.snapshot.claims import (
    Claim,
    Lease,
    Subscription,
    SubscriptionFile,
    check_holder,
    expired,
    following,
    holding,
    newest_files,
)
from statelog.store.files import is_put
from statelog.store.port import FileInfo, Store

_LOG = logging.getLogger("statelog.log")
_FOLDER = "subscriptions/"
_ATTEMPTS = 10


class HeldLease(NamedTuple):
    """A lease on the store. `modified_s`: the store's time of its last renewal; see `lease.expired`."""

    lease: Lease
    modified_s: float
    path: str

    @property
    def created_s(self) -> float:
        """The store's time at which it was made."""
        return self.lease.made_s(self.modified_s)


class UnreadableSubscription(NamedTuple):
    """A file that does not decode, or that a newer statelog wrote. It holds everything until it is removed."""

    reader: str
    number: int
    path: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSubscriptions:
    """All files of all subscriptions, and the unreadable ones (without those older than an end)."""

    files: tuple[SubscriptionFile, ...]
    unreadable: tuple[UnreadableSubscription, ...]


def list_subscriptions(
    store: Store, reader: str | None = None, listed: Iterable[FileInfo] | None = None
) -> StoredSubscriptions:
    """Read all subscriptions, or one reader's. `listed`: a recent listing. Raises StoreUnavailable, InvalidName."""
    folder = _FOLDER if reader is None else subscription_path(reader, 1).removesuffix(f"{1:020d}.avro")
    for _ in range(_ATTEMPTS):
        # Listed twice: an unordered listing can miss the files before and after a move. Moves are seconds apart.
        found = _read_all(store, (*(store.list(folder) if listed is None else listed), *store.list(folder)), reader)
        if found is not None:
            return found
        listed = None
    raise StoreUnavailable(
        "subscription files are listed, but cannot be found", store=store.url, hint="Check the store, then retry"
    )


def _read_all(store: Store, found: Iterable[FileInfo], reader: str | None) -> StoredSubscriptions | None:
    """Read all files; None if one is missing and no later one of its reader was listed."""
    listed: dict[tuple[str, int], FileInfo] = {}
    for info in found:
        slot = subscription_slot(info.path)
        if slot is not None and reader in (None, slot[0]):
            listed[slot] = info
    files: list[SubscriptionFile] = []
    unreadable: list[UnreadableSubscription] = []
    for (name, number), info in sorted(listed.items()):
        try:
            files.append(SubscriptionFile(Subscription.from_bytes(store.read(info.path), info.path), info.modified_s))
        except NotFound:
            if not any(other == name and later > number for other, later in listed):
                return None
        except (Corrupt, UnknownFormat) as error:
            unreadable.append(UnreadableSubscription(name, number, info.path, str(error)))
    newest = newest_files(files)
    ended = {one.subscription.reader: one.subscription.number for one in newest.values() if one.subscription.ended}
    return StoredSubscriptions(
        files=tuple(files), unreadable=tuple(one for one in unreadable if one.number > ended.get(one.reader, 0))
    )


def living(leases: Iterable[HeldLease], now_s: float, cap_s: float) -> list[HeldLease]:
    """Return the leases that still hold at store time `now_s`; `cap_s` as `expired` takes it."""
    return [one for one in leases if not expired(one.lease, one.modified_s, now_s, cap_s)]


def claims_of(log: Log, leases: Iterable[HeldLease], found: StoredSubscriptions) -> list[Claim]:
    """Return what holds the log's truncation: these living leases, and every subscription that has not ended."""
    return [*(one.lease for one in leases), *holding(found.files, log.descriptor.identity)]


def list_leases(store: Store, listed: Iterable[FileInfo] | None = None) -> list[HeldLease]:
    """Read all leases on the store, or the listed ones, with expired ones, by path. Raises StoreUnavailable."""
    found: list[HeldLease] = []
    for info in sorted(store.list("leases/") if listed is None else listed):
        try:
            lease = Lease.from_bytes(store.read(info.path), info.path)
        except NotFound:
            continue  # Its holder has removed it.
        except (Corrupt, UnknownFormat) as error:
            _LOG.warning("a lease cannot be read, so it holds nothing: %s", error)
            continue
        found.append(HeldLease(lease, info.modified_s, info.path))
    return found


# ---- a reader's own


class HeldSubscription:
    """The subscription of one reading, for the process and thread that reads. `holder_id`: names the reading, also in
    its own checkpoint; `holder`: names it for people.
    """

    def __init__(self, log: Log, reader: str, *, holder_id: str, holder: str) -> None:
        self._log = log
        self._reader = reader
        self._holder_id = holder_id
        self._holder = holder
        self._environment = current_environment()
        self._is_checked = False

    def newest(self) -> Subscription | None:
        """Return the reader's newest file, or None. Raises Corrupt if it cannot be read, StoreUnavailable."""
        return self._read()[1]

    def hold(self, state: LedgerState, anchor: LastRecord | None, *, take_up: bool = False) -> Subscription:
        """Hold the position of `state`, release the earlier one after that, and return the written file.

        `anchor`: the ledger record below the position.
        `take_up`: the reading's checkpoint exists, so no other reading may replace it from now on.

        The first call checks the log's start again after the write. Raises SubscriptionEnded, ReaderInUse, OffsetGone,
        InvalidName, StoreRefused, Unavailable, Corrupt.
        """
        for _ in range(_ATTEMPTS):
            numbers, newest = self._read()
            check_holder(newest, self._holder_id)
            written = following(newest, self._wanted(state, anchor, take_up=take_up))
            if newest is not None and written.position < newest.position:
                self._check_start(written)  # A state below the log's start is useless; the newest file may be useful.
            if _put(self._log.store, written):
                if not self._is_checked:
                    self._check_start(written)
                    self._is_checked = True
                for number in numbers:
                    self._log.store.delete(subscription_path(self._reader, number))
                return written
        raise StoreUnavailable("others keep writing the subscription", reader=self._reader)

    def _read(self) -> tuple[list[int], Subscription | None]:
        """Return the numbers of all files, and the newest file."""
        found = list_subscriptions(self._log.store, self._reader)
        numbers = [one.subscription.number for one in found.files]
        newest = newest_files(found.files).get(self._reader)
        for one in found.unreadable:
            if newest is None or one.number > newest.subscription.number:
                raise Corrupt(
                    f"the subscription of reader {self._reader} cannot be read: {one.problem}",
                    path=one.path,
                    hint="Remove it with `statelog subscriptions NAME --remove READER`, and start again",
                )
            numbers.append(one.number)
        return sorted(numbers), newest.subscription if newest else None

    def _wanted(self, state: LedgerState, anchor: LastRecord | None, *, take_up: bool) -> Subscription:
        committed, now_s = state.committed_positions, self._log.store.now_s()
        return Subscription(
            reader=self._reader,
            number=1,
            nonce=self._environment.nonce(),
            identity=self._log.descriptor.identity,
            holder_id=self._holder_id,
            holder=self._holder,
            is_taken_up=take_up,
            position=state.position,
            next_offsets={p: committed.get(p, 0) for p in range(self._log.descriptor.partitions)},
            state=state,
            anchor=anchor,
            created_s=now_s,
            moved_s=now_s,
        )

    def _check_start(self, written: Subscription) -> None:
        """Raise OffsetGone if the log starts above the held position."""
        start = self._log.kafka.offsets(self._log.ledger_topic, [0])[0].start
        if start > written.position:
            raise OffsetGone(
                "the log starts above the position of a subscription",
                topic=self._log.ledger_topic,
                reader=self._reader,
                needed_offset=written.position,
                log_start=start,
                hint="Start again from a snapshot: the log was truncated before the subscription was valid",
            )


# ---- for truncation, and for people


def end_subscription(store: Store, newest: Subscription, reason: str, environment: Environment) -> bool:
    """End a subscription. Return False if a newer file than `newest` exists. Raises StoreRefused, Unavailable."""
    ended = replace(newest, number=newest.number + 1, nonce=environment.nonce(), ended=reason)
    if not _put(store, ended):
        return False
    # A reader that moved twice has deleted this slot's file, so the put may be below a later file.
    found = list_subscriptions(store, newest.reader)
    numbers = [one.subscription.number for one in found.files] + [one.number for one in found.unreadable]
    if max(numbers, default=0) > ended.number:
        store.delete(ended.path)
        return False
    return True


def remove_subscription(log: Log, reader: str, reason: str) -> Subscription:
    """End the subscription of `reader`, readable or not, unless it has ended. Return its last file before. Raises
    NotFound, InvalidName, StoreRefused, Unavailable.
    """
    for _ in range(_ATTEMPTS):
        found = list_subscriptions(log.store, reader)
        newest = newest_files(found.files).get(reader)
        now = newest.subscription if newest else None
        broken = max((one.number for one in found.unreadable), default=0)
        if broken > (now.number if now else 0):
            now = _blank(reader, broken, log.descriptor.identity, log.store.now_s())
        if now is None:
            raise NotFound(f"there is no subscription of reader {reader}", log=log.name, reader=reader)
        if now.ended or end_subscription(log.store, now, reason, current_environment()):
            return now
    raise StoreUnavailable("the reader keeps writing the subscription that is to be removed", reader=reader)


def _blank(reader: str, number: int, identity: LogIdentity, now_s: float) -> Subscription:
    """Make a stand-in for a file that cannot be read."""
    return Subscription(
        reader=reader, number=number, nonce=bytes(16), identity=identity, holder_id="", holder="", is_taken_up=False,
        position=0, next_offsets={}, state=LedgerState(), anchor=None, created_s=now_s, moved_s=now_s,
    )  # fmt: skip


def _put(store: Store, subscription: Subscription) -> bool:
    """Put a file if its slot is free. Return whether the file there is ours."""

    def is_ours() -> bool:
        return Subscription.from_bytes(store.read(subscription.path), subscription.path).nonce == subscription.nonce

    try:
        return is_put(store, subscription.path, subscription.to_bytes(), is_ours)
    except (Corrupt, UnknownFormat):
        return False
