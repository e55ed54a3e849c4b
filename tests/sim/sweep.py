"""Sweeps: a fixed play runs once for each fault, at each operation that can have it; the complaint names its play.

A `Sweep` knows the operations of its play without a fault, which must succeed. Each process of the tests finds them
once.
"""

import random
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from tests.sim.nemesis import Kind, Operation
from tests.sim.world import World

__all__ = ["Faults", "Sweep", "Telling"]

Faults = Mapping[int, Kind]
Way = TypeVar("Way", bound=Hashable)
"""The variant of a play: its differences other than faults."""


class Telling(NamedTuple, Generic[Way]):
    """A play to run: its name, its faults by the number of the operation, and its variant."""

    name: str
    faults: Faults
    way: Way


def _any(_: Operation) -> bool:
    return True


@dataclass(frozen=True)
class Sweep(Generic[Way]):
    """A sweep, whose `tell` plays in a scratch directory and judges. Raises any complaint."""

    tell: Callable[[Path, Faults, Way], World]
    _known: dict[Way, list[Operation]] = field(default_factory=dict[Way, list[Operation]])

    def operations(self, way: Way) -> list[Operation]:
        """Return the operations of the play without a fault."""
        if way not in self._known:
            with tempfile.TemporaryDirectory() as scratch:
                world = self.tell(Path(scratch), {}, way)
            assert not world.errors
            self._known[way] = world.nemesis.operations
        return self._known[way]

    def single(
        self, kind: Kind, way: Way, *, only: Callable[[Operation], bool] = _any, first: int = 0, each: int = 1
    ) -> Iterator[Telling[Way]]:
        """Yield every `each`-th of the operations that can have this fault, from the `first` on."""
        chosen = [one for one in self.operations(way) if one.can(kind) and only(one)][first::each]
        return (Telling(f"{one} {kind.value}, {way}", {one.number: kind}, way) for one in chosen)

    def pairs(self, count: int, ways: Sequence[Way]) -> Iterator[Telling[Way]]:
        """Yield so many pairs of faults of one play, the same ones every time.

        The second fault strikes the operation that has its number then.
        """
        chance = random.Random(7)
        for _ in range(count):
            way = chance.choice(ways) if len(ways) > 1 else ways[0]
            operations = self.operations(way)
            one = chance.choice(operations)
            first = chance.choice([kind for kind in Kind if one.can(kind)])
            second = min(one.number + 1 + int(chance.expovariate(0.05)), len(operations) - 1)
            other = chance.choice([kind for kind in Kind if operations[second].can(kind)])
            name = f"{one} {first.value}, then {second} {other.value}, {way}"
            yield Telling(name, {one.number: first, second: other}, way)

    def play(self, tellings: Iterator[Telling[Way]]) -> None:
        """Run them all. Raises AssertionError that names each failed one."""
        complaints = {one.name: said for one in tellings if (said := self.complaint(one))}
        assert not complaints, "\n".join(f"{name}: {said}" for name, said in complaints.items())

    def complaint(self, one: Telling[Way]) -> str:
        """Return the complaint of the judge, or of a stopped actor; empty if all is well."""
        with tempfile.TemporaryDirectory() as scratch:
            try:
                world = self.tell(Path(scratch), one.faults, one.way)
                assert world.nemesis.played or not one.faults, "no such operation was made"
            except Exception as error:  # noqa: BLE001 - whatever went wrong is reported with the fault behind it
                return f"{type(error).__name__}: {error}"
        return ""
