"""`Closing`: whoever has a `close` is a context manager that ends with it.

Invariant: leaving the block closes, however the block ends, and hides no exception of it.
"""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Closing"]


class Closing(ABC):
    """A context manager that closes itself."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what is held. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
