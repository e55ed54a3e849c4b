"""`ChangeBuffer`: appended changes that are in no chunk yet, in order; `MetaBuffer`: meta records that no checkpoint
holds yet. No I/O, no durability.

Single changes go into plain lists, `ChangeLists`, and become Arrow in bulk: that costs a fifth of any work done per
change. Batches are Arrow from the start. The lists are a writer's hottest state. `ChangeWriter.put` appends bytes under
a key that needs no further check to them directly, because one call less is a fifth of a put. Every other change goes
through the buffer, which owns the lists.

Invariants:
- Changes keep their order, whichever way they came in.
- A refused change was not buffered; a buffered change is valid.
- One `take` returns about the threshold, however much came in at once.
- Between two calls of the writer, the lists of keys and values have one length. So does that of key groups, where the
  caller names them. `dues` has no row beyond them.
- While a put changes the lists, `room_bytes` is 0 and nothing else touches them.
- A change that was appended to the lists directly is smaller than `large_bytes`, and fitted the room.
- All unconfirmed meta records, those of pending checkpoints included, fit in one commit.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, cast

import pyarrow as pa

from statelog.environment import current_environment
from statelog.errors import InvalidChange, KeyGroupMismatch, ValueTooLarge
from statelog.producer.change_maker import ChangeMaker, Key, Value
from statelog.producer.intake import take_in
from statelog.producer.settings import WriterSettings, tuning_of
from statelog.schemas.arrays import about_bytes
from statelog.schemas.changes.due import When, aligned, due_ms_of
from statelog.schemas.changes.few import DUE_BYTES, FEW_BYTES, ROW_BYTES, Changes, FewChanges
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import LONG_MAX, LONG_MIN, KeyType, key_bytes
from statelog.schemas.ledger.place import has_utf8
from statelog.schemas.values.json_text import encode_json
from statelog.schemas.values.schema import ValueSchema

LARGE = 1 << 20
"""A change of this size, or of half of the log's largest record, is made and measured before it counts as buffered."""


class Unquick:
    """The class of no key and no value, so that every change is checked."""


class ChangeLists:
    """Changes that wait for Arrow: at most `roll_rows` of them, of about `list_bytes`.

    One number bounds both: a change counts for its bytes, but at least for its share of the rows.
    """

    __slots__ = (
        "_list_bytes", "_rest_bytes", "dues", "groups", "keys", "large_bytes", "least_bytes", "owned", "owned_class",
        "quick_class", "room_bytes", "values",
    )  # fmt: skip

    def __init__(
        self, quick_class: type, owned: bytes | None, *, roll_rows: int, list_bytes: int, large_bytes: int
    ) -> None:
        self._list_bytes = list_bytes
        self.large_bytes = large_bytes
        self.quick_class = quick_class if owned is None else Unquick
        """The class of keys that are valid as they are, with values of bytes."""
        self.owned_class = Unquick if owned is None else quick_class
        """The class of keys that are valid if their key group is the writer's."""
        self.owned = owned or b"\0"
        """By key group: 1 if it is the writer's, else 0."""
        self.least_bytes = -(-list_bytes // roll_rows)
        self.clear()

    def clear(self) -> None:
        """Start with new lists. References to the former ones stay valid."""
        self.keys: list[Key] = []
        self.values: list[Value | None] = []
        self.groups: list[int] = []
        self.dues: dict[int, int] = {}
        """Dues in milliseconds, by row of the lists. Most changes have none."""
        self._give_room(self._list_bytes)

    @property
    def most_bytes(self) -> int:
        """The most bytes that these changes take in a chunk."""
        row_bytes = ROW_BYTES + DUE_BYTES if self.dues else ROW_BYTES
        return self._list_bytes - self.room_bytes - self._rest_bytes + row_bytes * len(self.keys)

    def all_dues(self) -> list[int | None] | None:
        """Return the due of each change; None if no change has one."""
        return [*map(self.dues.get, range(len(self.keys)))] if self.dues else None

    def drop_refused(self) -> None:
        """Drop the key group and the due of a change that was refused: the next one would get them."""
        del self.groups[len(self.keys) :]
        self.dues.pop(len(self.keys), None)

    def has_room(self, size_bytes: int) -> bool:
        """Take the room of a change of this size. Return False, and take none, if it fills the lists."""
        rest = self.room_bytes + self._rest_bytes - max(size_bytes, self.least_bytes)
        if rest > 0:
            self._give_room(rest)
        return rest > 0

    def _give_room(self, size_bytes: int) -> None:
        self.room_bytes = min(size_bytes, self.large_bytes)
        """A put of fewer bytes than this may go to the lists directly."""
        self._rest_bytes = size_bytes - self.room_bytes


_KEY_CLASS: Mapping[KeyType, type] = {KeyType.BYTES: bytes, KeyType.STRING: str, KeyType.LONG: int}
_FIELD_BYTES = 16  # The size of a field of a typed value besides its text, until Arrow has measured it.
_FIXED = frozenset((int, float, bool, type(None)))


class ChangeBuffer:
    """Collects one writer's changes until `take` returns them."""

    def __init__(
        self, descriptor: Descriptor, value_schema: ValueSchema, owned: Collection[int], settings: WriterSettings
    ) -> None:
        tuning = tuning_of(settings)
        self._descriptor = descriptor
        self._roll_bytes = tuning.roll_bytes
        self._maker = ChangeMaker(descriptor, value_schema, owned)
        mine = self._maker.owned
        self._owns_all = mine is None
        self._by_caller = descriptor.hash_rule is HashRule.CALLER
        self._opaque = value_schema.id == 0
        self._json = value_schema.is_json
        self._key_class = _KEY_CLASS[descriptor.key_type]
        is_few = self._opaque and self._key_class is bytes
        is_plain = is_few and not self._by_caller and not self._json
        has_no_ttl = descriptor.ttl_s is None
        is_quick = is_plain and has_no_ttl and (self._owns_all or descriptor.prefix_bytes is None)
        self.lists = ChangeLists(
            bytes if is_quick else Unquick,
            mine,
            roll_rows=tuning.roll_rows,
            list_bytes=tuning.list_bytes,
            large_bytes=min(LARGE, descriptor.record_bytes_max // 2),
        )
        """Single changes that wait for Arrow. Only `ChangeWriter.put` appends to them without this buffer."""
        self._few_bytes = min(FEW_BYTES, tuning.chunk_bytes) if is_few else 0
        self._wall_clock = current_environment().wall_clock
        self._ttl_s = descriptor.ttl_s
        self._batches: list[pa.RecordBatch] = []
        self._batch_bytes = 0

    @property
    def changes(self) -> int:
        """How many changes are buffered."""
        return len(self.lists.keys) + sum(batch.num_rows for batch in self._batches)

    @property
    def most_bytes(self) -> int:
        """About the most bytes that the buffered changes take in a chunk."""
        return self.lists.most_bytes + self._batch_bytes

    @property
    def full(self) -> bool:
        """Whether there is enough to split and send."""
        return self._batch_bytes >= self._roll_bytes

    def put(self, key: Key, value: Value, due: When | None = None) -> bool:
        """Buffer a put. Return whether the buffer is full. Raises InvalidChange."""
        if due is None and self._ttl_s is None:
            return self._put(key, value)
        self.lists.dues[len(self.lists.keys)] = self._due_ms(due)
        try:
            return self._put(key, value)
        except BaseException:
            self.lists.drop_refused()
            raise

    def _put(self, key: Key, value: Value) -> bool:
        if not self._opaque:
            if not isinstance(value, Mapping):
                hint = hint_for_value(value, is_typed=True)
                raise self._refused_value(key, "a mapping of its fields", value, hint)
            own: dict[str, object] = dict(value)
            return self._push(key, own, _make_own(own, own.items()))
        if self._json:
            value = encode_json(value, key)
        if not isinstance(value, bytes):
            raise self._refused_value(key, "bytes", value, hint_for_value(value))
        return self._push(key, value, len(value))

    def _due_ms(self, due: When | None) -> int:
        """Return a due in milliseconds; without one, that of the log's ttl. Raises InvalidChange."""
        return due_ms_of(self._wall_clock() + (self._ttl_s or 0) if due is None else due)

    def delete(self, key: Key) -> bool:
        """Buffer a delete. Return whether the buffer is full. Raises InvalidChange."""
        return self._push(key, None, 0)

    def append(self, key_group: int, key: Key, value: Value | None, due: When | None = None) -> bool:
        """Buffer a change whose key group the caller names; a value of None is a delete, which has no due.

        Raises KeyGroupMismatch if the log hashes its keys and this is not the key's group.
        """
        if not 0 <= key_group < self._descriptor.key_groups:
            raise KeyGroupMismatch(
                "the log has no such key group", key_group=key_group, key_groups=self._descriptor.key_groups
            )
        if value is None and due is not None:
            raise InvalidChange("a delete has no due", hint="Leave `due` out, or give a value")
        if self._by_caller:
            self._maker.check_owned(key_group)
            self.lists.groups.append(key_group)
        elif (own := self._descriptor.key_group_of(key)) != key_group:
            raise KeyGroupMismatch("the named key group is not the key's own", key_group=key_group, own_key_group=own)
        try:
            return self.delete(key) if value is None else self.put(key, value, due)
        except BaseException:
            self.lists.drop_refused()
            raise

    def extend(self, table: object) -> Iterator[bool]:
        """Buffer the changes of an Arrow table or record batch, piece by piece. Yield after each whether to take them
        now: the buffer is full, the piece is too large to join with the next one, or its memory is the caller's.

        Columns: `key`, optional `op` (0 or "put", 1 or "delete"), optional `due`, `key_group` if the caller places
        keys, and the value: one column `value`, or for typed values the fields themselves.

        Raises InvalidChange, KeyGroupMismatch, ValueTooLarge before any of it is buffered.
        """
        if not isinstance(table, pa.Table | pa.RecordBatch):
            raise InvalidChange(
                f"append_batch takes an Arrow table or record batch, not {type(table).__name__}",
                hint="From pandas, pa.Table.from_pandas(frame, preserve_index=False); from Polars, frame.to_arrow()",
            )
        self._roll_lists()
        pieces = take_in(table, self._roll_bytes)
        default_due_ms = None if self._ttl_s is None else self._due_ms(None)
        ready = deque((self._maker.of_batch(piece, default_due_ms), is_ours) for piece, is_ours in pieces)
        while ready:
            changes, is_ours = ready.popleft()
            size = self._add(changes)
            yield self.full or size >= self._roll_bytes // 2 or not is_ours

    def take(self) -> Changes | None:
        """Empty the buffer. Return all changes in order, or None if there are none."""
        lists = self.lists
        if self._few_bytes and lists.keys and not self._batches and lists.most_bytes <= self._few_bytes:
            keys, values = cast("list[bytes]", lists.keys), cast("list[bytes | None]", lists.values)
            dues = lists.all_dues()
            if self._by_caller:
                few = FewChanges.placed(lists.groups, keys, values, dues)
            else:
                few = FewChanges.of(keys, values, self._descriptor.key_groups, self._descriptor.prefix_bytes, dues)
            lists.clear()
            return few
        self._roll_lists()
        batches, self._batches, self._batch_bytes = self._batches, [], 0
        if not batches:
            return None
        return batches[0] if len(batches) == 1 else pa.concat_batches(aligned(batches))

    # ---- lists to Arrow

    def _push(self, key: Key, value: Value | None, value_bytes: int) -> bool:
        if type(key) is not self._key_class:
            self._check_key(key)
        if type(key) is bytes or (type(key) is str and key.isascii()):
            size = value_bytes + len(key)
        elif type(key) is int and LONG_MIN <= key <= LONG_MAX:
            size = value_bytes + 8
        else:  # Raises InvalidChange for an integer beyond 64 bits, and for text without a UTF-8 form.
            size = value_bytes + len(key_bytes(key, self._descriptor.key_type))
        if self._by_caller:
            if len(self.lists.groups) != len(self.lists.keys) + 1:
                raise KeyGroupMismatch(
                    "in this log the caller chooses each key's key group", hint="Use append(key_group, key, value)"
                )
        elif not self._owns_all:
            self._maker.check_owned(self._descriptor.key_group_of(key))
        if size >= self.lists.large_bytes:
            return self._push_large(key, value)
        lists = self.lists
        lists.keys.append(key)
        lists.values.append(value)
        if lists.has_room(size):
            return False
        self._roll_with_last()
        return self.full

    def _refused_value(self, key: Key, wanted: str, value: object, hint: str) -> InvalidChange:
        """Return the error for a value of a wrong type. Raise the key's, if that is wrong as well."""
        self._check_key(key)
        return InvalidChange(f"a value of this log is {wanted}, not {type(value).__name__}", hint=hint)

    def _check_key(self, key: Key) -> None:
        if type(key) is not self._key_class:
            raise InvalidChange(
                f"a key of this log is {self._descriptor.key_type.value}, not {type(key).__name__}",
                hint="The key type is fixed when a log is made",
            )

    def _push_large(self, key: Key, value: Value | None) -> bool:
        """Measure a change that may be larger than a chunk, and buffer it."""
        lists = self.lists
        row = len(lists.keys)
        dues = [lists.dues[row]] if row in lists.dues else None
        changes = self._maker.of_rows([key], [value], lists.groups[row:], dues)
        lists.drop_refused()  # It goes behind the lists.
        self._roll_lists()
        self._add(changes)
        return self.full

    def _roll_with_last(self) -> None:
        """Turn the lists into Arrow. If that raises, the newest change is not buffered."""
        try:
            self._roll_lists()
        except InvalidChange:
            del self.lists.keys[-1], self.lists.values[-1]
            raise

    def _roll_lists(self) -> None:
        """Turn the lists into Arrow. If a typed value does not fit, keep all, and raise InvalidChange with its key now
        and on every later call: to drop the other changes would be a silent loss.
        """
        lists = self.lists
        if not lists.keys:
            return
        try:
            changes = self._maker.of_rows(lists.keys, lists.values, lists.groups, lists.all_dues())
        except InvalidChange as error:
            raise self._located(error) from error
        lists.clear()
        self._add(changes)

    def _located(self, error: InvalidChange) -> InvalidChange:
        """Return the error with the key of the first change that does not fit."""
        lists = self.lists
        for i, key in enumerate(lists.keys):
            try:
                self._maker.of_rows([key], [lists.values[i]], lists.groups[i : i + 1])
            except InvalidChange as found:
                return found.restated(key=ascii(key)[:200])
        return error

    def _add(self, batch: pa.RecordBatch) -> int:
        """Add a batch. Return its size."""
        size = about_bytes(batch)
        self._batches.append(batch)
        self._batch_bytes += size
        return size


def hint_for_value(value: object, *, is_typed: bool = False) -> str:
    """Return the hint for a value that is not bytes, or no mapping where the log `is_typed`."""
    if value is None:
        return "To remove a key, delete it"
    if is_typed:
        return "Give a dict of its fields: dataclasses.asdict(value)" if is_dataclass(value) else "Give a dict"
    return (
        "Encode it: text.encode(), b'%d' % number; or make the log with value_type='json', whose values are numbers,"
        " text, lists and dicts, or with a value_schema"
    )


def _make_own(copy: Any, fields: Iterable[tuple[Any, object]]) -> int:
    """Make the copy of a typed value, or of a part, a deep one. Return about how many bytes all its fields take; rather
    too many than too few.
    """
    size = 0
    for name, field in fields:
        size += _FIELD_BYTES
        if type(field) is str:
            size += len(field) if field.isascii() else 4 * len(field)
        elif type(field) is bytes:
            size += len(field)
        elif type(field) not in _FIXED:
            match field:
                case str():
                    size += 4 * len(field)
                case bytes() | bytearray():
                    copy[name] = bytes(field)
                    size += len(field)
                case list() | tuple():
                    copy[name] = own = list(cast("Iterable[object]", field))
                    size += _make_own(own, enumerate(own))
                case Mapping():
                    copy[name] = named = dict(cast("Mapping[object, object]", field))
                    size += sum(4 * len(str(one)) for one in named) + _make_own(named, named.items())
                case _:
                    pass
    return size


class MetaBuffer:
    """Collects meta records until a checkpoint takes them. The last value of a key wins; None removes it.

    They take at most half of the largest record, and leave the other half for handles and metadata.
    """

    def __init__(self, record_bytes_max: int) -> None:
        self._bytes_max = record_bytes_max // 2
        self._records: dict[str, bytes | None] = {}
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._records)

    def put(self, key: str, value: bytes | None, held_bytes: int) -> None:
        """Set a record. Raises InvalidChange unless it is text with bytes or None. Raises ValueTooLarge if no commit
        could hold it with the others and the `held_bytes` of pending checkpoints.
        """
        if type(key) is not str or not (value is None or type(value) is bytes) or not has_utf8(key):
            raise InvalidChange(
                f"a meta record is a text key with bytes or None, not {type(key).__name__} and {type(value).__name__}"
            )
        replaced = meta_size(key, self._records[key]) if key in self._records else 0
        others = self._size_bytes - replaced
        size = meta_size(key, value)
        if held_bytes + others + size > self._bytes_max:
            raise ValueTooLarge(
                "meta records are larger than a commit may hold, which is half of a record",
                hint="Store the large part elsewhere, commit to make room, or make a log with a larger"
                " max.message.bytes",
                size_bytes=size,
                held_bytes=held_bytes + others,
                max_bytes=self._bytes_max,
            )
        self._size_bytes = others + size
        self._records[key] = value

    def take(self) -> dict[str, bytes | None]:
        """Empty the buffer. Return its records."""
        records, self._records, self._size_bytes = self._records, {}, 0
        return records


def meta_size(key: str, value: bytes | None) -> int:
    """Return the bytes that a meta record, or the removal of one, takes in a commit."""
    return len(key.encode()) + len(value or b"")
