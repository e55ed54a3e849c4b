"""Sweeps: a fixed play is told once for each fault, at each operation that can have it; who complains is named.

A `Sweep` knows the operations of its play without a fault, which has to be well; they are found once by each process of
the tests.
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
"""How a play is told: what else besides its faults is different from one telling to the next."""


class Telling(NamedTuple, Generic[Way]):
    """A play to be told: its name, what goes wrong in it, by the number of the operation, and its way."""

    name: str
    faults: Faults
    way: Way


def _any(_: Operation) -> bool:
    return True


@dataclass(frozen=True)
class Sweep(Generic[Way]):
    """`tell` tells the play in a scratch directory and judges it. Raises whatever is wrong."""

    tell: Callable[[Path, Faults, Way], World]
    _known: dict[Way, list[Operation]] = field(default_factory=dict[Way, list[Operation]])

    def operations(self, way: Way) -> list[Operation]:
        """Those of the play without a fault."""
        if way not in self._known:
            with tempfile.TemporaryDirectory() as scratch:
                world = self.tell(Path(scratch), {}, way)
            assert not world.errors
            self._known[way] = world.nemesis.operations
        return self._known[way]

    def single(
        self, kind: Kind, way: Way, *, only: Callable[[Operation], bool] = _any, first: int = 0, each: int = 1
    ) -> Iterator[Telling[Way]]:
        """Every `each`-th of the operations that can have this fault, from the `first` on."""
        chosen = [one for one in self.operations(way) if one.can(kind) and only(one)][first::each]
        return (Telling(f"{one} {kind.value}, {way}", {one.number: kind}, way) for one in chosen)

    def pairs(self, count: int, ways: Sequence[Way]) -> Iterator[Telling[Way]]:
        """So many pairs of faults of one play, and the same ones every time. The second one strikes whatever stands at
        its number then.
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
        """Tell them all. Raises AssertionError that names each one that went wrong."""
        complaints = {one.name: said for one in tellings if (said := self._complaint(one))}
        assert not complaints, "\n".join(f"{name}: {said}" for name, said in complaints.items())

    def _complaint(self, one: Telling[Way]) -> str:
        """What the judge, or an actor that stopped, has to say; empty if all is well."""
        with tempfile.TemporaryDirectory() as scratch:
            try:
                world = self.tell(Path(scratch), one.faults, one.way)
                assert world.nemesis.played or not one.faults, "no such operation was made"
            except Exception as error:  # noqa: BLE001 - whatever went wrong is reported with the fault behind it
                return f"{type(error).__name__}: {error}"
        return ""
