"""How tests wait for what another thread or process brings about."""

from collections.abc import Callable

from statelog.testing import process

__all__ = ["wait_for"]


def wait_for(
    condition: Callable[[], bool],
    complaint: str = "it never came about",
    *,
    timeout_s: float = 120.0,
    tick_s: float = 0.005,
) -> None:
    """Ask until `condition` is true, every `tick_s`. AssertionError says the complaint after `timeout_s`."""
    assert process.wait_for(condition, timeout_s, pause_s=tick_s), complaint
