"""`Seams`: what a room takes from outside beside the two ports: the time, fresh nonces, and a place to die in.

Everything has the real one as its default. A simulation gives its own clocks and nonces, so that it runs the same
twice, and its own `crash`, so that it can end or hold the work between any two steps.

Invariant: a frozen value that pickles as long as what it was given does.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["REAL", "Clock", "CrashPoint", "NewNonce", "Seams", "random_nonce"]

Clock = Callable[[], float]
"""The time in seconds."""
NewNonce = Callable[[], bytes]
"""Makes 16 bytes that were never made before."""
CrashPoint = Callable[[str], None]
"""Is called with the name of a step that is done; what it raises ends the work there."""


def random_nonce() -> bytes:
    """16 random bytes: one life of a writer, one manifest, one run."""
    return os.urandom(16)


def _go_on(_step: str) -> None:
    """The crash point that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """The seams of a room. For tests: programs have no need of them.

    clock       seconds from any start, never backwards: paces waits and measures durations
    wall_clock  seconds since 1970: what manifests tell people, and ages
    nonce       a fresh nonce
    crash       called with the name of each step once it is done
    """

    clock: Clock = time.monotonic
    wall_clock: Clock = time.time
    nonce: NewNonce = random_nonce
    crash: CrashPoint = _go_on

    def new_id(self) -> str:
        """32 hex digits that nobody had before: the name of a lease, a run or a directory."""
        return self.nonce().hex()


REAL = Seams()
"""The seams of production."""
