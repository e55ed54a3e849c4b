"""Unique keys: whether a key comes twice among the rows of a task, however many there are.

Nothing orders the rows of a key in a task, so which of them would win is an accident, and another attempt may end in
another way. What is remembered of a key is its fingerprint, 16 bytes: in memory up to a budget, in a spill file above.

Invariants:
- A key that comes twice is found; two different keys are not taken for one.
- Memory is bounded, whatever the number of rows.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statelog.closing import Closing
from statelog.errors import InvalidChange
from statelog.schemas.arrays import Fingerprints, fingerprints
from statelog.storage.local.spill import NamelessFile

__all__ = ["UniqueKeys"]

_MEMORY_ROWS = 4 << 20
"""So many fingerprints are held in memory, 64 MiB, and about so many are looked at together."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)

Half = NDArray[np.uint64]


class UniqueKeys(Closing):
    """Remembers the keys of a task, and finds one that comes twice: at the end, or earlier."""

    def __init__(self, memory_rows: int = _MEMORY_ROWS) -> None:
        self._memory_rows = memory_rows
        self._held: list[Fingerprints] = []
        self._held_rows = 0
        self._spilled: list[int] = []
        self._file: NamelessFile | None = None

    def add(self, keys: pa.Array, key_groups: NDArray[np.uint16] | None = None) -> None:
        """Remember the keys of some rows, or keys in the key groups that the caller chose for them.

        Raises InvalidChange if one came twice in the last few million rows; StorageFull, StoreUnavailable.
        """
        one, two = fingerprints(keys)
        if key_groups is not None:
            two = two ^ (key_groups.astype(np.uint64) * _MIX)
        self._held.append((one, two))
        self._held_rows += len(keys)
        if self._held_rows >= self._memory_rows:
            self._spill()

    def check(self) -> None:
        """Raise InvalidChange if a key came twice in all, StoreUnavailable."""
        if self._file is None:
            _refuse_repeats(*_joined(self._held))
            return
        self._spill()
        # Equal fingerprints share a remainder, so each pass over the file looks at a part of them only.
        passes = -(-sum(self._spilled) // self._memory_rows)
        for one in range(passes):
            _refuse_repeats(*_joined([_of_pass(block, one, passes) for block in self._blocks(self._file)]))

    def close(self) -> None:
        """Forget everything. Idempotent."""
        self._held, self._held_rows, self._spilled = [], 0, []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        if not self._held:
            return
        one, two = _joined(self._held)
        self._held, self._held_rows = [], 0
        _refuse_repeats(one, two)
        if self._file is None:
            self._file = NamelessFile(Path(tempfile.gettempdir()))
        offset = 16 * sum(self._spilled)
        data = memoryview(one.tobytes() + two.tobytes())
        while data:
            written = self._file.write_at(data, offset)
            data, offset = data[written:], offset + written
        self._spilled.append(len(one))

    def _blocks(self, file: NamelessFile) -> Iterator[Fingerprints]:
        """What was spilled, one block after another."""
        offset = 0
        for rows in self._spilled:
            halves = np.frombuffer(file.read_at(16 * rows, offset), np.uint64)
            yield halves[:rows], halves[rows:]
            offset += 16 * rows


def _of_pass(block: Fingerprints, number: int, passes: int) -> Fingerprints:
    one, two = block
    mine = ((one * _MIX) >> _HALF) % np.uint64(passes) == number
    return one[mine], two[mine]


def _joined(parts: list[Fingerprints]) -> Fingerprints:
    if not parts:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    return np.concatenate([one for one, _ in parts]), np.concatenate([two for _, two in parts])


def _refuse_repeats(one: Half, two: Half) -> None:
    """Sorts the first halves alone, which is several times faster than both, and looks at the second ones of equals."""
    ordered = np.sort(one)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return
    mine = np.isin(one, repeated)
    pairs = np.stack((one[mine], two[mine]), axis=1)
    twice = len(pairs) - len(np.unique(pairs, axis=0))
    if twice:
        raise InvalidChange(
            "a key comes more than once in a task, and nothing says which row is the last",
            hint="Set sequenceBy to a column that grows with every change of a key, or aggregate by key first",
            repeated_rows=twice,
        )
