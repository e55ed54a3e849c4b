"""How tests wait for what another thread or process brings about, and bring it about in between."""

import time
from collections.abc import Callable

from statelog.testing import process

__all__ = ["Compared", "wait_for"]

_RESTS = 9
_LONGEST_REST_S = 0.2


def wait_for(
    condition: Callable[[], bool],
    complaint: str = "it never came about",
    *,
    timeout_s: float = 120.0,
    tick_s: float = 0.005,
) -> None:
    """Ask until `condition` is true, every `tick_s`; AssertionError says the complaint after `timeout_s`.

    An answer that takes long is asked for less often: who waits leaves the machine to those that it waits for.
    """
    took_s = 0.0

    def ask() -> bool:
        nonlocal took_s
        begun_s = time.monotonic()
        answer = condition()
        took_s = time.monotonic() - begun_s
        return answer

    def rest(least_s: float) -> None:
        time.sleep(max(least_s, min(_RESTS * took_s, _LONGEST_REST_S)))

    assert process.wait_for(ask, timeout_s, pause_s=tick_s, sleep=rest), complaint


class Compared(int):
    """A number; when it is compared for the first time, something else happens meanwhile."""

    meanwhile: list[Callable[[], object]]

    def _begin(self) -> None:
        if self.meanwhile:
            self.meanwhile.pop()()

    def __eq__(self, other: object) -> bool:
        self._begin()
        return int(self) == other

    def __gt__(self, other: int) -> bool:
        self._begin()
        return int(self) > other

    __hash__ = int.__hash__
