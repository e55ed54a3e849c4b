"""`RocksdbDues`: the dues of a table's rows in its RocksDB database: a column family of its own. Imports rocksdict.

`recovery/rocksdb_dues.py` has the entries. The family is made when the first due comes, and stays. A change of dues is
a part of the write batch that changes the rows.

Invariants:
- The index is exact after every write batch, because a batch that changes a row removes the entries of its old due.
- No row is due before `f` says. So a search skips what was deleted at the front, which RocksDB retains for a while.
- Who has changed dues in a batch writes it before the next call, of any thread.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, cast

import rocksdict

from statelog.recovery.rocksdb_dues import BY_DUE, BY_KEY, DUE_BYTES, DUE_FAMILY, FLOOR, due_bytes
from statelog.tables.state.dues import DueKey, IsWanted

_BEHIND_KEYS = b"l"
"""Sorts behind every entry `k`."""
_LAST = b"\xff" * DUE_BYTES
"""Behind every due."""
_ENTRY = len(BY_DUE) + DUE_BYTES
"""Where the raw key of an entry `t` begins."""


class RocksdbDues:
    """The dues of a database. `options`: of the family. Errors are the library's own."""

    def __init__(self, options: rocksdict.Options) -> None:
        self._options = options
        self._database: rocksdict.Rdict | None = None
        self._family: rocksdict.Rdict | None = None
        self._handle: rocksdict.ColumnFamily | None = None
        self._floor = due_bytes(0)
        self._earliest: bytes | None = None
        self._is_known = True
        """Whether `_earliest` is up to date."""
        self._seen: dict[bytes, bytes] = {}
        """The dues of rows that were found to be due since the last change."""

    def open(self, database: rocksdict.Rdict, *, is_there: bool) -> None:
        """Use this open database, which has the family or not."""
        self._database = database
        if is_there:
            family = self._hold(database.get_column_family(DUE_FAMILY))
            self._floor, self._is_known = family.get(FLOOR) or self._floor, False

    @property
    def is_there(self) -> bool:
        """Whether any row ever had a due."""
        return self._family is not None

    def _hold(self, family: rocksdict.Rdict) -> rocksdict.Rdict:
        assert self._database is not None
        self._family, self._handle = family, self._database.get_column_family_handle(DUE_FAMILY)
        return family

    # ---- reads

    def due_ms(self, raw: bytes) -> int | None:
        """Return the due of a row; None if it has none."""
        found = None if self._family is None else self._family.get(BY_KEY + raw)
        return None if found is None else int.from_bytes(found, "big")

    @property
    def earliest_ms(self) -> int | None:
        """The earliest due of all rows; None if none has one."""
        earliest = self._found_earliest()
        return None if earliest is None else int.from_bytes(earliest, "big")

    def _found_earliest(self) -> bytes | None:
        if not self._is_known:
            first = next(self._entries(self._floor, _LAST), None)
            self._earliest = None if first is None else first[len(BY_DUE) : _ENTRY]
            self._floor, self._is_known = self._earliest or self._floor, True
        return self._earliest

    def overdue(self, now_ms: int, most: int, of_raw: Callable[[bytes], Any], is_wanted: IsWanted) -> list[DueKey]:
        """Return up to `most` wanted keys that are due, as `of_raw` makes them, with their dues, oldest first."""
        self._seen, found = {}, list[DueKey]()
        earliest, seen = self._found_earliest(), self._seen
        if earliest is None or now_ms < 0:
            return found
        for entry in self._entries(earliest, due_bytes(now_ms + 1)):
            raw = entry[_ENTRY:]
            key = of_raw(raw)
            if is_wanted(key):
                seen[raw] = due = entry[len(BY_DUE) : _ENTRY]
                found.append((key, int.from_bytes(due, "big")))
                if len(found) == most:
                    break
        return found

    def overdue_count(self, now_ms: int) -> int:
        """Count the rows that are due."""
        earliest = self._found_earliest()
        return 0 if earliest is None or now_ms < 0 else sum(1 for _ in self._entries(earliest, due_bytes(now_ms + 1)))

    def _entries(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the entries `t` from the due `start` on and below `end`, in their order."""
        if self._family is None:
            return
        rows, behind = self._family.iter(), BY_DUE + end
        valid, key, step = rows.valid, rows.key, rows.next
        try:
            rows.seek(BY_DUE + start)
            while valid():
                entry = key()
                if entry >= behind:
                    return
                yield entry
                step()
            rows.status()  # As in every scan of the store.
        finally:
            del rows, valid, key, step

    def hidden(self, start: bytes, end: bytes | None, now_ms: int, *, reverse: bool) -> Callable[[bytes], bool] | None:
        """Return a function that says whether a row is due, for the raw keys of one scan, in its order.

        None if no row at all is due. The function holds the database open.
        """
        earliest_ms = self.earliest_ms
        if self._family is None or earliest_ms is None or earliest_ms > now_ms:
            return None
        rows, now = self._family.iter(), due_bytes(now_ms)
        seek(rows, BY_KEY + start, _BEHIND_KEYS if end is None else BY_KEY + end, reverse=reverse)
        step = rows.prev if reverse else rows.next

        def is_due(raw: bytes) -> bool:
            wanted = BY_KEY + raw
            while rows.valid():
                key = rows.key()
                if key == wanted:
                    return bool(rows.value() <= now)
                if (key < wanted) if reverse else (key > wanted):
                    return False
                step()
            rows.status()
            return False

        return is_due

    # ---- changes

    def put(
        self, batch: rocksdict.WriteBatch, raw: Sequence[bytes], dues_ms: Mapping[bytes, int], *, are_new: bool = False
    ) -> None:
        """Give changed rows, each once, their dues; one that is not in `dues_ms` has none. `are_new`: none had one."""
        if self._family is None:
            if not dues_ms:
                return
            assert self._database is not None
            self._hold(self._database.create_column_family(DUE_FAMILY, self._options))
        olds = {} if are_new or self._found_earliest() is None else self._olds(raw)
        news = {key: due_bytes(due_ms) for key, due_ms in dues_ms.items()}
        for key in [key for key, due in olds.items() if news.get(key) == due]:
            del olds[key], news[key]
        if not olds and not news:
            return
        ended = sorted([BY_DUE + due + key for key, due in olds.items()])
        begun = sorted([BY_DUE + due + key for key, due in news.items()])
        untimed = [BY_KEY + key for key in olds if key not in news]
        timed = [key for key in raw if key in news]
        deque(map(batch.delete, [*ended, *untimed], repeat(self._handle)), maxlen=0)
        deque(map(batch.put, map(BY_KEY.__add__, timed), map(news.__getitem__, timed), repeat(self._handle)), maxlen=0)
        deque(map(batch.put, begun, repeat(b""), repeat(self._handle)), maxlen=0)
        self._note(ended, begun)
        batch.put(FLOOR, self._floor, self._handle)

    def _olds(self, raw: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the dues of these rows, in the order of the rows. Those that were just found are not read again."""
        seen, self._seen = self._seen, {}
        assert self._family is not None
        unseen = [key for key in raw if key not in seen] if seen else raw
        found = cast("list[bytes | None]", self._family.get([BY_KEY + key for key in unseen]))
        read = {key: due for key, due in zip(unseen, found, strict=True) if due is not None}
        return {key: due for key in raw if (due := seen.get(key) or read.get(key))} if seen else read

    def _note(self, ended: list[bytes], begun: list[bytes]) -> None:
        """Keep the earliest due and the floor, of sorted entries `t` that end and begin."""
        if self._is_known and self._earliest is None:
            self._floor = self._earliest = begun[0][len(BY_DUE) : _ENTRY]
            return
        if ended and ended[0][len(BY_DUE) : _ENTRY] == self._earliest:
            self._is_known = False
        if begun:
            first = begun[0][len(BY_DUE) : _ENTRY]
            self._floor = min(self._floor, first)
            if self._is_known and self._earliest is not None:
                self._earliest = min(self._earliest, first)

    # ---- the end

    def release(self) -> list[rocksdict.Rdict]:
        """Release everything but the family, and return it, to be closed."""
        self._handle = None
        return [] if self._family is None else [self._family]

    def abandon(self) -> None:
        """Leak it in a forked child, as the store does."""
        for held in (self._family, self._handle):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def seek(rows: rocksdict.RdictIter, start: bytes, end: bytes | None, *, reverse: bool) -> None:
    """Go to the first row from `start` on, or in reverse to the last one below `end` (None: the last of all)."""
    if not reverse:
        rows.seek(start)
    elif end is None:
        rows.seek_to_last()
    else:
        rows.seek_for_prev(end)
        if rows.valid() and rows.key() == end:
            rows.prev()
