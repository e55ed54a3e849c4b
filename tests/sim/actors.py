"""Deterministic interleaving of blocking code: actors on threads, of which exactly one runs at any time.

An actor runs until it calls `pause`, and stays there until it is stepped again or killed. So code that knows nothing of
a simulation is cut into steps by any caller of `pause`: a store's fault hook, a Kafka call, a crash point.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from statelog.kafka.port import OffsetRange, Record
from statelog.testing import Crash
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka, MemoryProducer, MemoryReader

__all__ = ["Actor", "SteppedKafka", "Stepper"]

_DEADLINE_S = 60.0


class Actor:
    """One thread of blocking code. `error` is the error that it ended with, other than its own death."""

    def __init__(self, stepper: "Stepper", body: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self.over = False
        self._stepper = stepper
        self._body = body
        self._go = threading.Semaphore(0)
        self._killed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Run until the next pause or the end. Raises the actor's error."""
        self._go.release()
        assert self._stepper.paused.acquire(timeout=_DEADLINE_S), "an actor neither pauses nor ends"
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """Kill the actor at its pause."""
        if not self.over:
            self._killed = True
            self.step()
        self._thread.join(_DEADLINE_S)

    def stand_still(self) -> None:
        """Hand over on the actor's thread and wait for the next step. A dead actor does nothing more."""
        if self._killed:
            raise Crash
        self._stepper.paused.release()
        self._go.acquire()
        if self._killed:
            raise Crash

    def _run(self) -> None:
        self._stepper.current.actor = self
        self._go.acquire()
        try:
            if not self._killed:
                self._body()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `step`, on the simulation's thread
            self.error = error
        finally:
            self.over = True
            self._stepper.paused.release()


class _Current(threading.local):
    actor: Actor | None = None


class Stepper:
    """A maker of actors that knows the calling thread."""

    def __init__(self) -> None:
        self.paused = threading.Semaphore(0)
        self.current = _Current()

    def actor(self, body: Callable[[], None]) -> Actor:
        """Return a new actor, before its first instruction."""
        return Actor(self, body)

    def pause(self, *_: object) -> None:
        """Pause here if an actor calls; any other thread just goes on."""
        actor = self.current.actor
        if actor is not None and not actor.over:
            actor.stand_still()


class SteppedKafka(MemoryKafka):
    """A view of the twin's cluster that calls `before` with the name of the call, before each of the calls `at`.

    `before` may pause, unlike the cluster's own hooks: they hold its lock.
    """

    def __init__(
        self, cluster: MemoryCluster, before: Callable[[str], None], at: Collection[str] = ("offsets",)
    ) -> None:
        super().__init__(cluster=cluster, idle=lambda _: None)
        self._at = at
        self._before = before

    def _reach(self, call: str) -> None:
        if call in self._at:
            self._before(call)

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Return the twin's answer."""
        self._reach("offsets")
        return super().offsets(topic, partitions, at_least=at_least)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Return the twin's answer."""
        self._reach("delete_records")
        return super().delete_records(topic, before)

    def producer(self) -> MemoryProducer:
        """Return the twin's producer. Records reach the cluster at a `poll`."""
        self._reach("producer")
        made = _SteppedProducer(self)
        made.reach = self._reach
        return made

    def reader(self, topic: str) -> MemoryReader:
        """Return the twin's reader."""
        self._reach("reader")
        made = _SteppedReader(self, topic)
        made.reach = self._reach
        return made


class _SteppedProducer(MemoryProducer):
    reach: Callable[[str], None]

    def poll(self, timeout_s: float) -> int:
        self.reach("poll")
        return super().poll(timeout_s)


class _SteppedReader(MemoryReader):
    reach: Callable[[str], None]

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        self.reach("read")
        return super().read(ranges, stall_timeout_s=stall_timeout_s)
