"""Ways for tests to wait for an effect of another thread or process, and to cause one in between."""

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
    """Wait until `condition` is true, asking every `tick_s`. Raises AssertionError with the complaint after
    `timeout_s`.

    A slow condition is asked less often: the waiting test leaves the machine to the others.
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
    """A number; its first comparison triggers another action meanwhile."""

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
