"""The inputs of simulated programs, whose messages are numbered, and the states that they leave. Pure.

The state of a program is right if it is the fold of its input below its progress: a judge needs to know no more.
"""

import zlib
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import cache

from tests.support.samples.folds import apply_all

__all__ = ["COPIED", "WORK", "Chain", "Puts"]

State = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Puts:
    """An input where each message puts one of so many keys, taken in strides; one in `deletes` deletes it."""

    keys: int
    stride: int
    deletes: int

    def change(self, offset: int) -> tuple[bytes, bytes | None]:
        """Return the change at an offset; None deletes."""
        key = b"k%d" % (offset * self.stride % self.keys)
        return key, None if offset % self.deletes == self.deletes - 1 else b"%d" % offset

    def fold(self, end: int) -> State:
        """Return the state after the messages below `end`, with the keys in the order of their last puts."""
        state: State = {}
        apply_all(state, map(self.change, range(end)))
        return state


@dataclass(frozen=True, slots=True)
class Chain:
    """An input where each message changes one key to a digest of the old value and the message.

    A message that is left out, comes twice or out of order shows in the state for good.
    """

    keys: int

    def step(self, state: MutableMapping[bytes, bytes], offset: int) -> None:
        """Apply the message at an offset to a state."""
        key = b"k%d" % (offset * 7 % self.keys)
        if offset % 17 == 16:
            state.pop(key, None)
        else:
            state[key] = b"%d" % zlib.crc32(b"%d" % offset, zlib.crc32(state.get(key, b"")))

    def fold(self, end: int) -> State:
        """Return the state after the messages below `end`."""
        begun = end // 2_000 * 2_000
        state = dict(_folded(self, begun))
        for offset in range(begun, end):
            self.step(state, offset)
        return state


@cache
def _folded(chain: Chain, end: int) -> State:
    state = dict(_folded(chain, end - 2_000)) if end else {}
    for offset in range(max(end - 2_000, 0), end):
        chain.step(state, offset)
    return state


WORK = Chain(keys=13)
"""The input of groups of workers."""
COPIED = Puts(keys=97, stride=31, deletes=11)
"""The input that dying processes copy into a log, or process into a table."""
