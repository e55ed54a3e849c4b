"""`Repeats`: retries a store call that failed transiently, a few times, below the port.

A store of many machines answers 500 or 503 now and then and asks for the request to be repeated; a merge of a large
state makes tens of thousands of requests, and would hardly ever end if each of these answers ended it. What a failed
call may have done already is settled by who makes it: all calls of the port may be made twice, and a create that then
finds its own file says AlreadyExists, which its caller compares.

Invariant: only what is transient by its own word is repeated; a refusal, a full disk or a timeout is raised at once.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from statelog.storage.store.errors import is_transient

__all__ = ["REPEAT_DELAYS_S", "Repeats"]

T = TypeVar("T")

REPEAT_DELAYS_S = (0.1, 0.3, 1.0, 3.0)
"""The pause before each repeat. A store that is away for longer is the caller's to wait for."""


class Repeats:
    """Makes calls, and makes them again. `sleep` pauses for so many seconds."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep

    def __call__(self, call: Callable[[], T]) -> T:
        """What `call` returns, or what it raises in the end."""
        for delay_s in REPEAT_DELAYS_S:
            try:
                return call()
            except Exception as error:
                if not is_transient(error):
                    raise
            self._sleep(delay_s)
        return call()
