"""`Seams`: the rooms' inputs beside the two ports: clocks, fresh nonces, crash points.

The defaults are the real ones. A simulation passes its own clocks and nonces, so that it runs the same way twice, and
its own `crash`, to stop or pause the work between any two steps.

Invariant: a frozen value that pickles if what it was given does.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["REAL", "Clock", "CrashPoint", "NewNonce", "Seams", "random_nonce"]

Clock = Callable[[], float]
"""The time in seconds."""
NewNonce = Callable[[], bytes]
"""Makes 16 bytes, different every time."""
CrashPoint = Callable[[str], None]
"""Called with the name of a step that is done; an exception ends the work there."""


def random_nonce() -> bytes:
    """16 random bytes: one life of a writer, one manifest, one run."""
    return os.urandom(16)


def _go_on(_step: str) -> None:
    """The crash point that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """Where tests take over. Programs never need it.

        >>> Writer(log, "web", seams=Seams(crash=print)).close()
        opened

    clock       seconds since any start, monotonic: paces waits and measures durations
    wall_clock  seconds since 1970: for ages, and for people who read manifests
    nonce       makes a fresh nonce
    crash       called with the name of each step that is done
    """

    clock: Clock = time.monotonic
    wall_clock: Clock = time.time
    nonce: NewNonce = random_nonce
    crash: CrashPoint = _go_on

    def new_id(self) -> str:
        """32 fresh hex digits: the name of a lease, a run or a directory."""
        return self.nonce().hex()


REAL = Seams()
"""The seams of production."""
