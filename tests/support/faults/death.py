"""A process that dies at one of its calls to Kafka or the store, before or after the call takes effect."""

from typing import Any

from statelog.store.port import Store
from statelog.testing import Crash

__all__ = ["Death", "dying"]


class Death(Crash):
    """The end of a process at the call with this number, counted over all ports that share it."""

    def __init__(self, *, at: int, after: bool) -> None:
        super().__init__()
        self.left = at
        self.after = after


def dying(real: Any, death: Death) -> Any:
    """Return the port, or a client that it made, whose caller dies as `death` says."""
    return _Dying(real, death)


class _Dying:
    def __init__(self, real: Any, death: Death) -> None:
        self._real = real
        self._death = death

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if not callable(real):
            return real

        def call(*args: Any, **options: Any) -> Any:
            if name == "close":
                return real(*args, **options)
            self._death.left -= 1
            is_due = self._death.left == -1
            if is_due and not self._death.after:
                raise self._death
            try:
                result = real(*args, **options)
            except Exception as refusal:
                if is_due:
                    raise self._death from refusal
                raise
            if is_due:
                raise self._death
            return dying(result, self._death) if name in {"producer", "reader"} else result

        return call


Store.register(_Dying)  # `Where` takes no root that is neither an address nor a store.
