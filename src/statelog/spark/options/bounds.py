"""Where a range of changes begins and ends, as options say it: a position, a writer's checkpoint, or a time. Pure."""

from collections.abc import Mapping
from datetime import datetime

from statelog.errors import ConfigError
from statelog.reading.plan import AtCheckpoint, AtPosition, AtTime, Bound
from statelog.spark.options.parsing import number

__all__ = ["BOUNDS", "bound"]

BOUNDS = tuple(
    f"{side}{what}" for side in ("starting", "ending") for what in ("Position", "Writer", "Checkpoint", "Time")
)
"""The names of all options that say where a range begins or ends."""


def bound(given: Mapping[str, str], side: str, *, open_word: str) -> Bound | None:
    """The bound of a side, `starting` or `ending`; None if it is left open, or `open_word` is its position.

    Raises ConfigError, with the names, for contradictions and for what cannot be read.
    """
    position, time = given.get(f"{side}position"), given.get(f"{side}time")
    writer, checkpoint = given.get(f"{side}writer"), number(given, f"{side}Checkpoint")
    ways = [
        name
        for name, text in ((f"{side}Position", position), (f"{side}Time", time), (f"{side}Writer", writer))
        if text is not None
    ]
    if len(ways) > 1:
        raise ConfigError(f"the options {' and '.join(ways)} exclude each other", hint="Give one of them")
    if (writer is None) != (checkpoint is None):
        raise ConfigError(
            f"{side}Writer and {side}Checkpoint go together", hint="A checkpoint is a writer's: name both, or neither"
        )
    if writer is not None and checkpoint is not None:
        return AtCheckpoint(writer, checkpoint)
    if time is not None:
        return AtTime(_milliseconds(f"{side}Time", time))
    if position is None or position.lower() == open_word:
        return None
    if not position.isdecimal():
        raise ConfigError(
            f"the option {side}Position is {position!r}", hint=f"Give a ledger position, 0 or more, or {open_word}"
        )
    return AtPosition(int(position))


def _milliseconds(name: str, text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None or time.timestamp() < 0:
        raise ConfigError(
            f"the option {name} is {text!r}",
            hint="Give milliseconds since 1970, or ISO 8601 with an offset: 2026-01-31T12:00:00Z",
        )
    return int(time.timestamp() * 1000)
