"""The tree of errors agrees with the drawing at the top of its module, and every error survives a pickle."""

import pickle
import re
from collections.abc import Iterator
from typing import TypeVar

import pytest

from statelog import errors
from statelog.errors import StatelogError, StatelogWarning

T = TypeVar("T")


def drawn() -> dict[str, str]:
    """Return each error's parent in the drawing: errors on a line behind another one are below it."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([ │├└─]*)([A-Z].*)", line)
        if found is None:
            continue
        here, *behind = re.split("  +", found[2])
        depth, names = len(found[1]), re.findall(r"\w+", here)
        if "─" in found[1] or not found[1]:
            above = [one for one in above if one[0] < depth]
            parents |= dict.fromkeys(names, above[-1][1]) if above else {}
            above.append((depth, names[0]))
            names = re.findall(r"\w+", " ".join(behind))
        parents |= dict.fromkeys(names, above[-1][1])
    return parents


def below(kind: type[T]) -> Iterator[type[T]]:
    """Return a class and all that are derived from it in its module."""
    yield kind
    for one in kind.__subclasses__():
        if one.__module__ == errors.__name__:
            yield from below(one)


ALL = list(below(StatelogError))
WARNINGS = list(below(StatelogWarning))


def test_the_drawing_is_the_tree() -> None:
    """Every error and warning is drawn below its parent, nothing else is drawn, and all are public."""
    kinds: list[type[Exception]] = [*ALL[1:], *WARNINGS]
    there = {kind.__name__: kind.__bases__[0].__name__ for kind in kinds}
    assert drawn() == there
    assert not [name for name in there if name.startswith("_")]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: str(kind.__name__))
def test_an_error_travels_between_processes(kind: type[StatelogError]) -> None:
    """A pickled error retains class, message, hint and facts, as between Spark's workers and the driver."""
    error = kind("it broke", hint="mend it", partition=3, topic="t")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.message, again.hint, again.facts, str(again)) == (error.message, "mend it", error.facts, str(error))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: str(kind.__name__))
def test_an_error_is_said_again_with_what_its_caller_knows(kind: type[StatelogError]) -> None:
    """A derived error has the same class and message, another hint, and added or replaced facts.

    The first one is unchanged.
    """
    error = kind("wrong", hint="Do this", topic="t", offset=1)
    again = error.restated(hint="Do that", offset=2, partition=3)
    assert (type(again), again.message, again.hint) == (kind, "wrong", "Do that")
    assert again.facts == {"topic": "t", "offset": 2, "partition": 3}
    assert (error.restated().hint, error.facts) == ("Do this", {"topic": "t", "offset": 1})
