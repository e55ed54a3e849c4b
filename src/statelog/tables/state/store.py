"""Stores: the local part of a table's committed state.

    DictStore       a dict, recovered from snapshot and tail                    here
    RocksdbStore    a RocksDB directory, retained across restarts               rocksdb.py
    RecentCommits   the newest committed objects, before a store that decodes   here

Both stores keep what `DictStore` says of each method. One thread at a time changes a store, and the table's thread
reads it. `Layers` above it has all uncommitted changes, so a store has only committed ones, each with its place in the
ledger. Its own table's come with `apply`, a commit at a time; others with `load` and `move`, in bulk.

Some key groups may be missing: of these the store has only the changes since a snapshot. It remembers their keys that
were deleted since, because the snapshot still has them. A store that misses nothing is a whole state.

Invariants:
- After `apply`, and after `move`, it holds exactly the state at that place. On a disk, a kill in `apply` leaves the
  state before or after it, with its place. A kill between `load` and `move` leaves the older place under newer changes.
- Keys and values come out as they went in, as the rules of the table have them. The caller copies them.
- Rows of the snapshot never replace a local change: filling first selects the unchanged ones.
- A key group leaves `missing` only when all its rows are local, and its deletes are forgotten only after that. A reader
  that finds no key here, and then finds the key group complete, must read here once more, and not the snapshot.

Rows may have a due, in milliseconds since 1970. A store remembers dues and finds the earliest ones, but it reads no
clock. `State` does, for an owner.

    apply(changes, place, dues)           each change sets the due of its key, or removes it
    load(table), fill(table)              the same by the column `due`; a table without it has no dues
    due_ms(key)                           the due of a local key
    is_timed, earliest_due_ms             whether any local key has a due, and the earliest one
    overdue(now_ms, most, is_wanted)      local keys that are due, with their dues, oldest first
    overdue_count(now_ms)                 how many they are
    items(..., now_ms), range(...)        scans without the rows that are due at a time; with None all rows

Dues are part of what is committed: all invariants above hold for them. A store without dues pays nothing for them.

A database describes itself in records, in a column family of their own: docs/protocol-table.md.
"""

import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice, repeat
from sys import getsizeof
from typing import Any, Final, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import Corrupt
from statelog.producer.committer import GrantHolder
from statelog.recovery import Recovery
from statelog.schemas.arrays import column_of
from statelog.schemas.changes.changes import DELETE, deletes_and_puts
from statelog.schemas.changes.due import dues_of, has_due
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.state import NO_EPOCH, LedgerState
from statelog.schemas.values.schema import ValueSchema
from statelog.tables.state.dues import NO_DUES, DueIndex, DueKey, Dues, IsWanted
from statelog.tables.state.keys import KeyRule
from statelog.tables.state.values import ValueRule

_BATCH_ROWS = 5_000
"""The rows that become Python objects at a time: few enough to stay in the processor's cache until they are taken."""
T = TypeVar("T")

FAMILY = "statelog"
TABLE_KEY = b"table"
PLACE_KEY = b"place"
MISSING_KEY = b"missing"
GONE = b"gone/"
"""The prefix of the record of a deleted key that the snapshot below still has; the raw key follows."""
WRITE = b"write/"
"""The prefix of the record of the newest write batch; its number follows."""
_FORMAT = 1
PARTIAL_FORMAT = 2
"""The format of a state that is not whole: older programs refuse it."""
TableRecord: TypeAlias = dict[str, Any]
"""Which state of which log: fields by name, as in JSON."""
UNKNOWN: Final = object()
"""Returned for a key that is not known here."""
_EACH_BYTES = 200
"""The size of a key and a value as two objects with a place in a dict, besides their content."""
_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class StatePlace:
    """How far a state is: its place in the ledger, the number of losses accepted by then, and the newest Restart's
    offset (None: an earlier format did not record it).
    """

    ledger: Place
    losses: int = 0
    restarted: int | None = NO_EPOCH

    @classmethod
    def of(cls, owner: GrantHolder) -> "StatePlace":
        """Return the place of an owner."""
        return cls(owner.place, len(owner.accepted_losses), owner.restarted)

    @classmethod
    def folded(cls, ledger: Place, folded: LedgerState) -> "StatePlace":
        """Return a place with the losses and the Restart of the folded ledger."""
        return cls(ledger, len(folded.accepted), folded.restarted)

    @property
    def position(self) -> int:
        """The ledger position."""
        return self.ledger.position

    def may_have_lost(self, now: "StatePlace") -> bool:
        """Return whether the state may have changes that a person accepted as lost. `now`: the log's present place."""
        if self.restarted is None:
            is_restarted = now.restarted is not None and now.restarted >= max(0, self.position - 1)
        else:
            is_restarted = self.restarted != now.restarted
        return is_restarted or self.losses != now.losses


def table_record(descriptor: Descriptor, schema: ValueSchema, owned: frozenset[int] | None) -> TableRecord:
    """Return the record of a table of these key groups (None: all), whose values have this schema."""
    return {
        "log": descriptor.name,
        **asdict(descriptor.identity),
        "key_type": descriptor.key_type.value,
        "hash_rule": descriptor.hash_rule.value,
        "key_groups": descriptor.key_groups,
        "owned_key_groups": None if owned is None else sorted(owned),
        "value_schema_id": schema.id,
        "value_schema": schema.avsc,
    }


def record_to_json(record: TableRecord, *, is_partial: bool) -> bytes:
    """Return the record as the database has it. `is_partial`: a part of the state is in a snapshot only."""
    return json.dumps({**record, "format": PARTIAL_FORMAT if is_partial else _FORMAT}, sort_keys=True).encode()


def record_from_json(data: bytes | None) -> TableRecord:
    """Parse a table's record. Raises Corrupt if there is none."""
    return _parsed(data, "table", dict[str, Any])


def difference(found: TableRecord, wanted: TableRecord) -> str:
    """Say how a database differs from the one that the table needs; empty if it does not."""
    if found.get("format") not in (_FORMAT, PARTIAL_FORMAT):
        return f"its format is {found.get('format')} and not {_FORMAT}"
    names = [name for name, value in wanted.items() if found.get(name) != value]
    shown = (f"{name} is {found.get(name)!r} and not {wanted[name]!r}" for name in names)
    return "it is of another log, share or value schema: " + ", ".join(shown) if names else ""


def is_of_log(found: TableRecord, wanted: TableRecord) -> bool:
    """Return whether a database is of the table's log at all, in a known format."""
    is_named = found.get("log") == wanted["log"] and found.get("format") in (_FORMAT, PARTIAL_FORMAT)
    return is_named and is_of_topics(found, wanted)


def is_of_topics(found: TableRecord, wanted: TableRecord) -> bool:
    """Return whether a database is of the log's present topics."""
    return all(found.get(one.name) == wanted[one.name] for one in fields(LogIdentity))


@dataclass(frozen=True, slots=True)
class Missing:
    """The part of a state that is in a snapshot only: these key groups, but for their changes from a position on."""

    first_position: int
    key_groups: frozenset[int]

    def to_json(self) -> bytes:
        """Return it as the database has it."""
        return json.dumps({"first_position": self.first_position, "key_groups": sorted(self.key_groups)}).encode()


NOTHING = Missing(0, frozenset())
"""The missing part of a whole state."""


def missing_from_json(data: bytes | None) -> Missing:
    """Parse the missing part. Raises Corrupt if there is no record."""
    return _parsed(
        data, "missing", lambda found: Missing(int(found["first_position"]), frozenset(map(int, found["key_groups"])))
    )


def place_to_json(place: StatePlace) -> bytes:
    """Return the place as the database has it."""
    last = None if place.ledger.last is None else [place.ledger.last.offset, place.ledger.last.hash]
    facts = {"position": place.position, "last": last, "losses": place.losses, "restarted": place.restarted}
    return json.dumps(facts).encode()


def place_from_json(data: bytes | None) -> StatePlace:
    """Parse a place. Raises Corrupt if there is none."""

    def made(found: dict[str, Any]) -> StatePlace:
        last = None if found["last"] is None else LastRecord(*(int(number) for number in found["last"]))
        restarted = found.get("restarted")
        place, restarted = Place(int(found["position"]), last), None if restarted is None else int(restarted)
        return StatePlace(place, int(found["losses"]), restarted)

    return _parsed(data, "place", made)


def _parsed(data: bytes | None, name: str, make: Callable[[dict[str, Any]], T]) -> T:
    try:
        return make({**json.loads(data or b"")})
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the local state has no record `{name}`", problem=repr(error)) from error


class DictStore:
    """A dict of the local state: from keys as `KeyRule.admit` to values as `ValueRule.admit` returns them.

    It raises nothing. A store on a disk raises Corrupt, and in every change StorageFull and StoreUnavailable.
    """

    def __init__(
        self,
        keys: KeyRule,
        values: ValueRule,
        state: dict[Any, Any],
        missing: Missing = NOTHING,
        dues: dict[Any, int] | None = None,
    ) -> None:
        self._keys = keys
        self._values = values
        self._state = state
        self.missing = set(missing.key_groups)
        """The key groups that are not local yet; it only shrinks."""
        self.first_position = missing.first_position
        """The position from which on the changes of missing key groups are here."""
        self._deleted: dict[int, set[Any]] = {}
        self._dues = DueIndex(dues)
        self.due_ms: Callable[[Any], int | None] = self._dues.get
        """Return the due of a key, None if it has none."""
        self.get: Callable[[Any], Any] = state.get
        """Return the value of a key, None if there is none. It is the dict's own method: every read calls it."""

    @classmethod
    def recovered(cls, recovery: Recovery, keys: KeyRule, values: ValueRule) -> "DictStore":
        """Make a store of a whole recovered state. Raises Damaged, Unavailable."""
        state, dues = recovery.dict_and_dues(values.of_column)
        if keys.one is not None:
            state = {key: value for (_, key), value in state.items()}
            dues = {key: due_ms for (_, key), due_ms in dues.items()}
        return cls(keys, values, state, dues=dues)

    # ---- reads

    def is_deleted(self, key_group: int, key: Any) -> bool:
        """Return whether a key of a missing key group was deleted since the snapshot."""
        return key in self._deleted.get(key_group, ())

    def __len__(self) -> int:
        return len(self._state)

    def items(self, key_groups: Sequence[int] | None, now_ms: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Iterate over keys and values of these key groups (None: all), in any order.

        `now_ms`: leave out rows that are due at this time.
        """
        if key_groups is None:
            return self._showing(iter(self._state.items()), now_ms)
        keys, wanted = list(self._state), frozenset(key_groups)
        chosen = (key for key, group in zip(keys, self._keys.groups_of(keys), strict=True) if group in wanted)
        return self._showing(((key, self._state[key]) for key in chosen), now_ms)

    def range(
        self, start: Any, end: Any, *, reverse: bool = False, now_ms: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over keys and values from `start` on and below `end` (None: no bound), in key order or in reverse.

        Sorts a copy of the wanted keys; values are taken as they are read. `now_ms`: as in `items`.
        """
        keys = (key for key in self._state if (start is None or key >= start) and (end is None or key < end))
        return self._showing(((key, self._state[key]) for key in sorted(keys, reverse=reverse)), now_ms)

    def _showing(self, rows: Iterator[tuple[Any, Any]], now_ms: int | None) -> Iterator[tuple[Any, Any]]:
        earliest_ms = self.earliest_due_ms
        if now_ms is None or earliest_ms is None or now_ms < earliest_ms:
            return rows
        due_ms = self.due_ms
        return (row for row in rows if not ((due := due_ms(row[0])) is not None and due <= now_ms))

    def unchanged(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a snapshot that no local change replaces."""
        keys = [key for batch in rows.to_batches() for key in self._keys.of_columns(batch)]
        wanted = set(keys)
        changed = self._state.keys() & wanted
        for deleted in self._deleted.values():
            changed |= wanted & deleted
        if not changed:
            return rows
        is_changed = np.fromiter(map(changed.__contains__, keys), np.bool_, len(keys))
        return rows.filter(column_of(~is_changed))

    # ---- dues

    @property
    def is_timed(self) -> bool:
        """Whether any local key has a due."""
        return bool(self._dues)

    @property
    def earliest_due_ms(self) -> int | None:
        """The earliest due of the local keys; None if none has one."""
        return self._dues.earliest_ms

    def overdue(self, now_ms: int, most: int, is_wanted: IsWanted) -> list[DueKey]:
        """Return up to `most` wanted local keys that are due at `now_ms`, with their dues, oldest first."""
        return self._dues.overdue(now_ms, most, is_wanted)

    def overdue_count(self, now_ms: int) -> int:
        """Count the local keys that are due at `now_ms`."""
        return self._dues.overdue_count(now_ms)

    # ---- changes

    def apply(
        self,
        changes: dict[Any, Any],
        place: StatePlace,  # noqa: ARG002 - a dict is lost with its place
        dues: Dues = NO_DUES,
    ) -> None:
        """Take committed changes, where None deletes, and the place of the state that they make.

        `dues`: the dues of changed keys; a changed key that is not in it has none any more.
        """
        deleted = [key for key, value in changes.items() if value is None]
        if self.missing:  # Deletes are remembered first.
            for key in deleted:
                self._remember(self._keys.group(key), key)
        self._state.update(changes)
        deque(map(self._state.pop, deleted), maxlen=0)
        if dues or self._dues:
            self._dues.change(changes, dues)

    def load(self, changes: pa.Table) -> None:
        """Take committed changes (key_group, op, key, value, maybe due) in bulk, ahead of the place they lead to.

        They are the newest of each key between the store's place and the one that `move` gives next. They are of the
        table's key groups only, with values in the table's value schema. Any number of tables may come before `move`,
        also of several commits, oldest first. Until then reads are of no place.
        """
        if self.missing:
            deletes = changes.filter(pc.equal(changes.column("op"), DELETE))
            for rows in deletes.to_batches():
                for group, key in zip(rows.column("key_group").to_pylist(), self._keys.of_columns(rows), strict=True):
                    self._remember(group, key)
        self._take(changes)

    def _take(self, changes: pa.Table) -> None:
        """Change the dict, column by column. Deletes of missing keys have no effect."""
        for rows in changes.to_batches(max_chunksize=_BATCH_ROWS):
            deleted, puts = deletes_and_puts(rows)
            deque(map(self._state.pop, self._keys.of_columns(deleted), repeat(None)), maxlen=0)
            keys = self._keys.of_columns(puts)
            self._state.update(zip(keys, self._values.of_column(puts.column("value"), keys), strict=True))
            if has_due(rows) or self._dues:
                dues = zip(keys, dues_of(puts) if has_due(rows) else (), strict=False)
                timed = {key: due_ms for key, due_ms in dues if due_ms is not None}
                self._dues.change(self._keys.of_columns(rows), timed)

    def _remember(self, group: int, key: Any) -> None:
        if group in self.missing:
            self._deleted.setdefault(group, set()).add(key)

    def move(self, place: StatePlace) -> None:
        """Make the loaded changes the state at this place. A dict does not record it."""

    def adopt(self, record: TableRecord, place: StatePlace) -> None:
        """Make the new store a table's, at this place."""

    def fill(self, rows: pa.Table, complete: Collection[int]) -> None:
        """Take unchanged rows of a snapshot, which complete these key groups."""
        self._take(rows)
        self.missing.difference_update(complete)
        for group in complete:
            self._deleted.pop(group, None)

    def close(self) -> None:
        """Release memory and files; a database stays on the disk. Idempotent."""


def held_bytes(values: Sequence[Any]) -> int:
    """Estimate the memory of typed values from a sample of them."""
    some = values[:: max(1, len(values) // _SAMPLES)]
    return len(values) * sum(map(_held_bytes, some)) // max(1, len(some))


def _held_bytes(value: Any) -> int:
    size, inner = getsizeof(value), cast("Collection[Any]", ())
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value).values()
    elif isinstance(value, list):
        inner = cast("Collection[Any]", value)
    return size + sum(map(_held_bytes, inner))


class RecentCommits:
    """The newest committed changes, up to a number of bytes, in two generations. The younger one is filled up to half
    of the bound; the older one is dropped as a whole.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.forget()

    def forget(self) -> None:
        """Drop everything: the store was changed by other means."""
        self._young: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}
        self._young_bytes = self._old_bytes = 0

    def find(self, key: Any) -> Any:
        """Return the value of a key, None if it was deleted, UNKNOWN if the store has to be read."""
        value = self._young.get(key, UNKNOWN)
        return self._old.get(key, UNKNOWN) if value is UNKNOWN else value

    def take(self, changes: dict[Any, Any], data_bytes: int) -> None:
        """Take changes that the store has now, which nobody changes later. `data_bytes`: of their keys and values."""
        size_bytes = data_bytes + _EACH_BYTES * len(changes)
        if size_bytes > self._bytes_max:
            self.forget()  # Older values of the changes that do not fit have to go, too.
            count = len(changes) * self._bytes_max // size_bytes
            changes, size_bytes = dict(islice(changes.items(), len(changes) - count, None)), self._bytes_max
        young_bytes = self._young_bytes + size_bytes
        if young_bytes > self._bytes_max // 2 or young_bytes + self._old_bytes > self._bytes_max:
            young, young_bytes = self._young, self._young_bytes
            self.forget()
            if young_bytes + size_bytes <= self._bytes_max:
                self._old, self._old_bytes = young, young_bytes
        if self._young:
            self._young.update(changes)
        else:  # Copying the dict would cost as much as the puts did.
            self._young = changes
        self._young_bytes += size_bytes
