"""What is local of a table's committed state: a store.

    DictStore       a dict, which comes back from snapshot and tail    here
    RocksdbStore    a RocksDB directory, kept between lives            rocksdb.py
    RecentCommits   what was committed last, as objects, before a store that decodes    here

Both keep what `DictStore` says of each method. Changed by one thread at a time, and read by the table's. Above it is
`Layers`, with all that no commit holds; so a store sees committed changes only, each with its place in the ledger:
those of its own table with `apply`, a commit at a time; what was committed elsewhere with `load` and `move`, in bulk.
Some key groups may be missing: of those it holds what changed since a snapshot. A key of theirs that was deleted since
is gone: that has to be remembered, because the snapshot has it. A store that misses nothing is a whole state.

Invariants:
- After `apply`, and after `move`, it holds the state at that place, exactly. On a disk, a kill in `apply` leaves the
  state before it, or after it, with its place; one between `load` and `move` the older place under newer changes.
- What it gives is what it was given: keys and values as the rules of the table have them. Who gets them copies them.
- Rows of the snapshot never replace a local change: filling asks first which of them are unchanged.
- A key group leaves `missing` only when all its rows are here, and what is gone of it is forgotten only after that. A
  reader that misses here, and then finds the key group complete, must look here once more, and no further.

What a database says of itself are records in a column family of their own: docs/protocol-table.md.
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
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.state import NO_EPOCH, LedgerState
from statelog.schemas.values.schema import ValueSchema
from statelog.tables.state.keys import KeyRule
from statelog.tables.state.values import ValueRule

_BATCH_ROWS = 5_000
"""As many rows at a time are Python objects beside the state: few enough to lie in the processor's cache until they
are taken."""
T = TypeVar("T")

FAMILY = "statelog"
TABLE_KEY = b"table"
PLACE_KEY = b"place"
MISSING_KEY = b"missing"
GONE = b"gone/"
"""Begins the key of the record of a key that was deleted, and that a snapshot below has; behind it is the raw key."""
WRITE = b"write/"
"""Begins the key of the record of the newest write batch, with its number behind it."""
_FORMAT = 1
PARTIAL_FORMAT = 2
"""Of a state that is not whole: who does not know of that takes it for nothing else."""
TableRecord: TypeAlias = dict[str, Any]
"""Which state of which log: fields by name, as they stand in JSON."""
UNKNOWN: Final = object()
"""What is found of a key that is not known here."""
_EACH_BYTES = 200
"""Of a key and a value as two objects, and of their place in a dict, besides what is in them."""
_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class StatePlace:
    """How far a state is: its place in the ledger, how many losses a person had accepted by then, and the offset of the
    newest Restart (None: nobody noted it, in a format before).
    """

    ledger: Place
    losses: int = 0
    restarted: int | None = NO_EPOCH

    @classmethod
    def of(cls, owner: GrantHolder) -> "StatePlace":
        """Where an owner is."""
        return cls(owner.place, len(owner.accepted_losses), owner.restarted)

    @classmethod
    def folded(cls, ledger: Place, folded: LedgerState) -> "StatePlace":
        """A place, as far as the ledger was folded."""
        return cls(ledger, len(folded.accepted), folded.restarted)

    @property
    def position(self) -> int:
        """The ledger position."""
        return self.ledger.position

    def may_have_lost(self, now: "StatePlace") -> bool:
        """Whether the state may have what a person has given up, by a place of the log now."""
        if self.restarted is None:
            is_restarted = now.restarted is not None and now.restarted >= max(0, self.position - 1)
        else:
            is_restarted = self.restarted != now.restarted
        return is_restarted or self.losses != now.losses


def table_record(descriptor: Descriptor, schema: ValueSchema, owned: frozenset[int] | None) -> TableRecord:
    """That of a table of these key groups, None for all, whose values have this schema."""
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
    """As it stands in the database of a state of which a part is in a snapshot only, or none."""
    return json.dumps({**record, "format": PARTIAL_FORMAT if is_partial else _FORMAT}, sort_keys=True).encode()


def record_from_json(data: bytes | None) -> TableRecord:
    """Raises Corrupt if there is none."""
    return _parsed(data, "table", dict[str, Any])


def difference(found: TableRecord, wanted: TableRecord) -> str:
    """How a database is another one than the table needs; empty if it is not."""
    if found.get("format") not in (_FORMAT, PARTIAL_FORMAT):
        return f"its format is {found.get('format')} and not {_FORMAT}"
    names = [name for name, value in wanted.items() if found.get(name) != value]
    shown = (f"{name} is {found.get(name)!r} and not {wanted[name]!r}" for name in names)
    return "it is of another log, share or value schema: " + ", ".join(shown) if names else ""


def is_of_log(found: TableRecord, wanted: TableRecord) -> bool:
    """Whether a database is of the table's log at all, and says so in a format that is known here."""
    is_named = found.get("log") == wanted["log"] and found.get("format") in (_FORMAT, PARTIAL_FORMAT)
    return is_named and is_of_topics(found, wanted)


def is_of_topics(found: TableRecord, wanted: TableRecord) -> bool:
    """Whether a database is of the topics that the log has now."""
    return all(found.get(one.name) == wanted[one.name] for one in fields(LogIdentity))


@dataclass(frozen=True, slots=True)
class Missing:
    """What of a state is in a snapshot only: these key groups, but for what was changed from a position on."""

    first_position: int
    key_groups: frozenset[int]

    def to_json(self) -> bytes:
        """As it stands in the database."""
        return json.dumps({"first_position": self.first_position, "key_groups": sorted(self.key_groups)}).encode()


NOTHING = Missing(0, frozenset())
"""Is missing of a whole state."""


def missing_from_json(data: bytes | None) -> Missing:
    """Raises Corrupt if it is not there."""
    return _parsed(
        data, "missing", lambda found: Missing(int(found["first_position"]), frozenset(map(int, found["key_groups"])))
    )


def place_to_json(place: StatePlace) -> bytes:
    """As it stands in the database."""
    last = None if place.ledger.last is None else [place.ledger.last.offset, place.ledger.last.hash]
    facts = {"position": place.position, "last": last, "losses": place.losses, "restarted": place.restarted}
    return json.dumps(facts).encode()


def place_from_json(data: bytes | None) -> StatePlace:
    """Raises Corrupt if there is none."""

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
    """A dict of what is local: by keys that `KeyRule.admit` gives, values that `ValueRule.admit` gives. Raises nothing;
    one on a disk raises StorageFull and StoreUnavailable of every change, and Corrupt.
    """

    def __init__(self, keys: KeyRule, values: ValueRule, state: dict[Any, Any], missing: Missing = NOTHING) -> None:
        self._keys = keys
        self._values = values
        self._state = state
        self.missing = set(missing.key_groups)
        """The key groups that are not here yet; none ever comes back."""
        self.first_position = missing.first_position
        """From where on the changes of missing key groups are here."""
        self._gone: dict[int, set[Any]] = {}
        self.get: Callable[[Any], Any] = state.get
        """Gives the value of a key, None if it is not there: the dict's own, the way of every read."""

    @classmethod
    def recovered(cls, recovery: Recovery, keys: KeyRule, values: ValueRule) -> "DictStore":
        """With all of a recovered state. Raises Damaged, Unavailable."""
        state = recovery.dict_of(values.of_column)
        if keys.one is not None:
            state = {key: value for (_, key), value in state.items()}
        return cls(keys, values, state)

    # ---- reads

    def is_gone(self, key_group: int, key: Any) -> bool:
        """Whether a key of a missing key group was deleted since the snapshot."""
        return key in self._gone.get(key_group, ())

    def __len__(self) -> int:
        return len(self._state)

    def items(self, key_groups: Sequence[int] | None) -> Iterator[tuple[Any, Any]]:
        """Keys and values of these key groups (None: of all), in any order."""
        if key_groups is None:
            return iter(self._state.items())
        keys, wanted = list(self._state), frozenset(key_groups)
        chosen = (key for key, group in zip(keys, self._keys.groups_of(keys), strict=True) if group in wanted)
        return ((key, self._state[key]) for key in chosen)

    def range(self, start: Any, end: Any, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """Keys and values from `start` on and below `end` (None: no bound), in the order of the keys or in reverse: a
        sorted copy of the wanted ones of all keys, and the values as they are read.
        """
        keys = (key for key in self._state if (start is None or key >= start) and (end is None or key < end))
        return ((key, self._state[key]) for key in sorted(keys, reverse=reverse))

    def unchanged(self, rows: pa.Table) -> pa.Table:
        """The rows of a snapshot that no local change replaces."""
        keys = [key for batch in rows.to_batches() for key in self._keys.of_columns(batch)]
        asked = set(keys)
        changed = self._state.keys() & asked
        for gone in self._gone.values():
            changed |= asked & gone
        if not changed:
            return rows
        is_changed = np.fromiter(map(changed.__contains__, keys), np.bool_, len(keys))
        return rows.filter(column_of(~is_changed))

    # ---- changes

    def apply(self, changes: dict[Any, Any], place: StatePlace) -> None:  # noqa: ARG002 - a dict is lost with its place
        """Take committed changes, None deletes, and the place of the state that they make."""
        gone = [key for key, value in changes.items() if value is None]
        if self.missing:  # What is gone is remembered first.
            for key in gone:
                self._remember(self._keys.group(key), key)
        self._state.update(changes)
        deque(map(self._state.pop, gone), maxlen=0)

    def load(self, changes: pa.Table) -> None:
        """Take committed changes (key_group, op, key, value) in bulk, ahead of the place that they lead to.

        They are the newest of each key between the place that it has and the one that `move` gives next, those of the
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
        """Change the dict: column by column, and a delete of no key is none."""
        for rows in changes.to_batches(max_chunksize=_BATCH_ROWS):
            gone, puts = deletes_and_puts(rows)
            deque(map(self._state.pop, self._keys.of_columns(gone), repeat(None)), maxlen=0)
            keys = self._keys.of_columns(puts)
            self._state.update(zip(keys, self._values.of_column(puts.column("value"), keys), strict=True))

    def _remember(self, group: int, key: Any) -> None:
        if group in self.missing:
            self._gone.setdefault(group, set()).add(key)

    def move(self, place: StatePlace) -> None:
        """What was loaded is the state at this place, with which a dict is lost."""

    def adopt(self, record: TableRecord, place: StatePlace) -> None:
        """It is new, and a table's at this place from now on."""

    def fill(self, rows: pa.Table, complete: Collection[int]) -> None:
        """Take unchanged rows of a snapshot, which complete these key groups."""
        self._take(rows)
        self.missing.difference_update(complete)
        for group in complete:
            self._gone.pop(group, None)

    def close(self) -> None:
        """Release what is held, and keep what outlives the process. Idempotent."""


def held_bytes(values: Sequence[Any]) -> int:
    """About how much memory typed values take, from some of them, wherever they lie."""
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
    """The newest changes that were committed, at most so many bytes of them. Of two generations the younger one is
    filled until it is half of the bound; the older one is dropped as a whole.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.forget()

    def forget(self) -> None:
        """The store was changed in another way."""
        self._young: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}
        self._young_bytes = self._old_bytes = 0

    def find(self, key: Any) -> Any:
        """The value of a key, None if it was deleted, UNKNOWN if the store has to be asked."""
        value = self._young.get(key, UNKNOWN)
        return self._old.get(key, UNKNOWN) if value is UNKNOWN else value

    def take(self, changes: dict[Any, Any], data_bytes: int) -> None:
        """The store has these changes now, whose keys and values have so many bytes. Nobody changes them any more."""
        size_bytes = data_bytes + _EACH_BYTES * len(changes)
        if size_bytes > self._bytes_max:
            self.forget()  # Of those that there is no room for, too.
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
        else:  # To put each into a dict again would cost as much as the put itself did.
            self._young = changes
        self._young_bytes += size_bytes
