"""`ChangeWriter`: the common part of `Writer` and `TaskWriter`: guarded appends, and the end.

Invariants:
- A refused change was not appended, and the writer goes on; any other error ends it, Ctrl-C included.
- Closing warns when it discards changes, unless the writer has failed already.
"""

from abc import abstractmethod
from collections.abc import Callable
from threading import get_ident
from zlib import crc32

import pyarrow as pa

from statelog.errors import NestedCall, UncommittedChanges
from statelog.producer.buffer import ChangeBuffer
from statelog.producer.change_maker import Key, Value
from statelog.producer.guard import NOBODY, Guard, Guarded, Life
from statelog.schemas.changes.due import When
from statelog.warn import warn_caller


class ChangeWriter(Guarded):
    """Appends changes to a buffer, which the subclass sends. Made by `Writer` or `TaskWriter`."""

    def __init__(self, guard: Guard, buffer: ChangeBuffer) -> None:
        self._guard = guard
        self._buffer = buffer
        self._lists = buffer.lists

    @property
    def life(self) -> Life:
        """Whether it is open, failed or closed."""
        return self._guard.life

    # ---- append; `put` has a guard of its own, because one more call would slow it down

    def put(self, key: Key, value: Value, due: When | None = None) -> None:
        """Set `key` to `value`: bytes, or a mapping of the fields of the log's value schema.

        `due`: the time from which the row is expired, as seconds since 1970 or a datetime with a time zone. Without it
        the row has none, whatever it had before, unless the log has a ttl: then it is due after that time.

        Raises InvalidChange, ValueTooLarge, KeyGroupMismatch, ClosedError; PersistFailed if earlier chunks failed.
        """
        if get_ident() != self._guard.user:
            self._guard.check()
        lists = self._lists
        try:
            if (
                type(value) is bytes
                and due is None
                and (
                    type(key) is lists.quick_class
                    or (type(key) is lists.owned_class and lists.owned[crc32(key) % len(lists.owned)])  # type: ignore[arg-type]  # as below
                )
            ):
                size = len(key) + len(value)  # type: ignore[arg-type]  # a key of that class is bytes
                if size < lists.least_bytes:
                    size = lists.least_bytes
                room = lists.room_bytes
                if size < room:
                    lists.room_bytes = 0  # Which refuses any call in between.
                    lists.keys.append(key)
                    lists.values.append(value)
                    lists.room_bytes = room - size
                    return
        except BaseException:  # A signal handler's: nothing here refuses a change.
            self._guard.fail()
            raise
        self._change(self._buffer.put, key, value, due)

    def _check_turn(self) -> None:
        """Raise NestedCall inside of a put, which takes no turn (that would cost a tenth of it) but leaves no room."""
        if not self._lists.room_bytes and self.life is Life.OPEN:
            raise NestedCall("a writer is called inside of a put")

    def delete(self, key: Key) -> None:
        """Remove `key`, whether it exists or not. Raises InvalidChange, ClosedError, PersistFailed."""
        self._change(self._buffer.delete, key)

    def append(self, key_group: int, key: Key, value: Value | None, due: When | None = None) -> None:
        """Append a change whose key group the caller names; None deletes. `due`: as for `put`, and none for a delete.

        Raises InvalidChange, ValueTooLarge, KeyGroupMismatch, ClosedError, PersistFailed.
        """
        self._change(self._buffer.append, key_group, key, value, due)

    def _change(self, buffer: Callable[..., bool], *change: Key | Value | When | None) -> None:
        """Buffer one change in a guarded call. If the buffer is full then, send all of it."""
        guard = self._guard
        if get_ident() != guard.user:
            guard.check()
        if not self._lists.room_bytes:
            self._check_turn()
        user = guard.user
        try:
            try:
                guard.user = NOBODY
                if buffer(*change):
                    self._send()
            except BaseException as error:
                guard.end_turn(error)
                raise
            guard.user = user
        except BaseException:
            guard.break_off()
            raise

    @Guarded.turn
    def append_batch(self, table: pa.Table | pa.RecordBatch) -> None:
        """Append many changes at once, in row order.

        Raises InvalidChange, ValueTooLarge, KeyGroupMismatch, ClosedError, PersistFailed.

        Columns: `key`, optional `op` (0 or "put", 1 or "delete"; without it a null value deletes), and `value`, or for
        typed values the fields themselves. An optional column `due` has times with a zone; as for `put`, null is none,
        and deletes have none. In a log whose values have a field `due`, it is that field, unless `value` is a struct of
        all fields.

        The whole table is checked before any of it is buffered; it is then sent piece by piece, however large it is.
        """
        try:
            for is_full in self._buffer.extend(table):
                if is_full:
                    self._send()
        except BaseException as error:
            self._guard.end_turn(error)
            raise

    # ---- end

    @Guarded.last_turn
    def close(self) -> None:
        """End this life. Discard what no commit holds, with a warning. Idempotent; never waits for Kafka."""
        self._end(is_loss=self._has_uncommitted())

    def _end(self, *, is_loss: bool) -> None:
        was_open = self._guard.life is Life.OPEN
        if self._guard.end():
            self._release()
            if was_open and is_loss:
                text = f"{self._guard} was closed with uncommitted changes; they are discarded"
                warn_caller(text, UncommittedChanges)

    # ---- what differs

    @abstractmethod
    def _send(self) -> None:
        """Send everything that is buffered."""

    @abstractmethod
    def _has_uncommitted(self) -> bool:
        """Return whether closing now would discard anything."""

    @abstractmethod
    def _release(self) -> None:
        """Release what this life owns."""
