"""The layers of a table: ordered keys, and transactions that do not nest."""

import random
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from statelog.errors import Misuse
from statelog.schemas.outputs.output import Output
from statelog.tables.layers import Layer, Layers
from tests.support.faults.signals import at_line, handled


@pytest.mark.parametrize("seed", range(5))
def test_changes_between_two_keys(seed: int) -> None:
    """A range has the newest change of each key in all layers, however few or many came since the last request."""
    chance, layers = random.Random(seed), Layers()
    model: dict[int, int | None] = {}
    for step in range(60):
        for _ in range(chance.choice([0, 1, 3, 300])):
            key = chance.randrange(2_000)
            model[key] = layers.active.changes[key] = chance.choice([None, step])
        if step % 7 == 3:
            layers.seal()
        start, end = (chance.choice([None, chance.randrange(2_000)]) for _ in range(2))
        wanted = {
            key: value for key, value in model.items() if (start is None or key >= start) and (end is None or key < end)
        }
        assert layers.between(start, end) == wanted
        assert dict(layers.merged()) == model


class _TooLate(Exception):
    """An exception that a handler raises to end a slow call."""


def _end_it() -> None:
    raise _TooLate


@pytest.mark.parametrize("new", [3, 150])
def test_a_handler_that_raises_while_keys_are_put_in_order(new: int) -> None:
    """A handler that raises at any line while keys are sorted does not make the next call repeat a key."""
    at, came = 0, True
    while came:
        layers = Layers()
        for first in (0, 1):
            layers.active.changes.update({b"%03d" % n: b"" for n in range(2 * new - first, 0, -2)})
            with handled(_end_it), suppress(_TooLate):
                came = at_line(at, partial(layers.between, None, None))
        assert layers.active.between(None, None) == sorted(layers.active.changes)
        at += 1


def test_what_is_looked_at_is_what_is_wanted() -> None:
    """A range does not process changes outside of it: a repeated request compares few keys and sorts none."""

    class Key(int):
        compared = 0

        def __lt__(self, other: Any) -> bool:
            Key.compared += 1
            return int(self) < int(other)

        __hash__ = int.__hash__

    layers = Layers()
    layers.active.changes.update({Key(n): n for n in random.Random(1).sample(range(100_000), 100_000)})
    layers.between(Key(0), Key(1))
    layers.active.changes[Key(100_000)] = 0
    Key.compared = 0
    assert list(layers.between(Key(500), Key(510)).values()) == list(range(500, 510))
    assert Key.compared < 100


def test_transactions_that_do_not_nest() -> None:
    """Transactions that do not nest are all undone with an error, and the next one works."""
    layers = Layers()
    layers.active.changes["k"] = "before"
    first = layers.begin()
    layers.active.changes["k"] = "first"
    second = layers.begin()
    layers.active.changes["k"] = "second"
    with pytest.raises(Misuse, match="undone"):
        layers.end(first, keep=True)
    third = layers.begin()
    for late in (second, first):
        with pytest.raises(Misuse):
            layers.end(late, keep=True)
    layers.active.changes["j"] = "third"
    layers.end(third, keep=True)
    layers.seal()
    assert layers.merged() == {"k": "before", "j": "third"}


def _send(layers: Layers, count: int) -> None:
    layers.active.outputs.append((count, Output("topic", b"%d" % count)))


def _numbers(layer: Layer | None) -> list[int]:
    assert layer is not None
    return [count for count, _ in layer.outputs]


def test_messages_go_with_their_changes() -> None:
    """What seals, keeps, drops or restores changes does the same with the messages between them, in their order."""
    layers = Layers()
    _send(layers, 1)
    kept, dropped = layers.begin(), layers.begin()
    _send(layers, 2)
    layers.end(dropped, keep=False)
    _send(layers, 3)
    layers.end(kept, keep=True)
    assert (_numbers(layers.active), layers.unsent, layers.is_clean) == ([1, 3], 2, False)
    assert _numbers(layers.seal()) == [1, 3]
    assert (layers.unsent, layers.is_clean) == (0, True)
    layers.unseal()
    assert layers.unsent == 2


def test_messages_are_cut_with_their_changes() -> None:
    """A cut takes the messages behind a count of changes, and is refused if a change before it was replaced."""
    layers = Layers()
    _send(layers, 1)
    layers.active.changes["a"] = "before"
    _send(layers, 3)
    layers.active.changes["b"] = "later"
    _send(layers, 5)
    later = layers.cut(1, 3, 2)
    assert (_numbers(layers.active), _numbers(later)) == ([1, 3], [5])
    assert later is not None
    assert (layers.active.changes, later.changes) == ({"a": "before"}, {"b": "later"})
    layers.active.changes["a"] = "replaced"
    _send(layers, 7)
    assert layers.cut(1, 5, 2) is None
