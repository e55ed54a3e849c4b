"""Formatting of counts, sizes, durations, times and texts for people. Pure, and quick to load."""

import datetime
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

_JSON = json.JSONEncoder(default=str, ensure_ascii=False, allow_nan=False)
_CONTROLS = re.compile(r"[\x7f-\x9f]")
"""Control characters that JSON does not escape, but terminals act on."""


def show_count(number: float) -> str:
    """Format a count with commas between thousands."""
    return f"{number:,.0f}"


def show_counted(number: float, what: str) -> str:
    """Format a count with its noun: one change, or several changes."""
    return f"{show_count(number)} {what}{'s' * (number != 1)}"


def show_bytes(number: float) -> str:
    """Format a size in a suitable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def show_duration(seconds: float) -> str:
    """Format a duration, with a precision for people."""
    if 0 < seconds < 0.01:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def show_time(seconds: float, timespec: str = "seconds") -> str:
    """Format a time since 1970, in UTC. `timespec` is that of `datetime.isoformat`."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec=timespec)


def as_json(value: object) -> str:
    """Return one line of JSON, without control characters. Values that JSON lacks, such as NaN, become text."""
    try:
        text = _JSON.encode(value)
    except ValueError:
        text = _JSON.encode(_spelt(value))
    return text if text.isprintable() else _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _spelt(value: object) -> object:
    """Replace numbers that JSON lacks by their names, as JavaScript and Spark spell them."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {name: _spelt(one) for name, one in cast("Mapping[object, object]", value).items()}
        case list() | tuple():
            return [_spelt(one) for one in cast("Sequence[object]", value)]
        case _:
            return value


def clean(text: str) -> str:
    """Escape control characters, except for line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)


def in_text(value: object) -> str:
    """Return text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else as_json(value)
