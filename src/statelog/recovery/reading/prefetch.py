"""`Prefetch`: work done ahead of its consumer, with results in order.

That is how several requests to a store are in flight at once, and how a row group is decoded while the one before is
used. Never decides what the pieces do.

Invariants:
- Begun ahead are only as many pieces, and of as many bytes, as the allowance grants to all who share it. The piece that
  is needed next is begun in any case.
- Belongs to one thread; only the pieces run elsewhere.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

from statelog.environment import Start, begin

__all__ = ["Allowance", "Piece", "Prefetch"]

T = TypeVar("T")


class Piece(NamedTuple, Generic[T]):
    """Some work, and about how many bytes its result holds."""

    size_bytes: int
    work: Callable[[], T]


class Allowance:
    """What may be begun ahead, by all who share this together: `most` pieces, of `most_bytes`."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._left = most
        self._left_bytes = most_bytes

    def take(self, size_bytes: int) -> bool:
        """Whether one more piece may be begun; then it counts until it is given back."""
        if not self._left or size_bytes > self._left_bytes:
            return False
        self._left -= 1
        self._left_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """A piece is ahead no more."""
        self._left += 1
        self._left_bytes += size_bytes


class Prefetch(Iterator[T]):
    """The results of `pieces`, whose first ones are begun at once. `wait` waits for one, and raises its error."""

    def __init__(
        self, pieces: Iterable[Piece[T]], start: Start, allowance: Allowance, wait: "Callable[[Future[T]], T]"
    ) -> None:
        self._left = deque(pieces)
        self._start = start
        self._allowance = allowance
        self._wait = wait
        self._under_way: deque[tuple[int, Future[T]]] = deque()
        self._begin_ahead()

    def __next__(self) -> T:
        if self._under_way:
            size_bytes, result = self._under_way.popleft()
            self._allowance.give_back(size_bytes)
        elif self._left:
            result = begin(self._start, self._left.popleft().work)
        else:
            raise StopIteration
        self._begin_ahead()
        return self._wait(result)

    def close(self) -> "list[Future[T]]":
        """Begin no more, and drop what is under way, which ends by itself, and is returned. Idempotent."""
        self._left.clear()
        dropped = list(self._under_way)
        self._under_way.clear()
        for size_bytes, _ in dropped:
            self._allowance.give_back(size_bytes)
        return [future for _, future in dropped]

    def _begin_ahead(self) -> None:
        while self._left and self._allowance.take(self._left[0].size_bytes):
            size_bytes, work = self._left.popleft()
            self._under_way.append((size_bytes, begin(self._start, work)))
