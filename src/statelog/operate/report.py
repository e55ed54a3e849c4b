"""`Report`: named facts and tables, shared by commands, JSON and the web page. Pure.

Invariant: programs get names and values unchanged; people get `words`, and numbers in the unit of the name's suffix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statelog.formatting import clean, in_text, show_bytes, show_count, show_duration

_NO_COUNTS = ("pid", "offset", "key", "value")
"""Numbers that people see unformatted."""
_TIMES = ("manifest_time", "renewed", "created", "moved", "accepted", "overdue_since")
_PHRASES = {
    "held_by": "truncation held back by",
    "records_left": "records left in the log",
    "due_rows": "rows with a due",
    "overdue_rows_max": "rows overdue, at most",
}


@dataclass(frozen=True, slots=True)
class Listing:
    """A table. A narrow terminal leaves out the `optional` columns."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    optional: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a command."""

    title: str
    facts: Mapping[str, object]
    listings: tuple[Listing, ...] = ()

    @property
    def printed(self) -> tuple[Listing, ...]:
        """The listings for people: those with rows; a single listing also when it is empty."""
        return tuple(one for one in self.listings if one.rows or len(self.listings) == 1)

    def to_json(self) -> dict[str, object]:
        """Return the report for programs: facts by name, listings as lists of objects."""
        return {
            **self.facts,
            **{one.name: [dict(zip(one.columns, row, strict=True)) for row in one.rows] for one in self.listings},
        }


def shown(name: str, value: object) -> str:
    """Format a value for people, in the unit of its name's suffix."""
    if value is None:
        return "-"
    if name in _TIMES and isinstance(value, str):
        return f"{value[:19].replace('T', ' ')} UTC"
    if not isinstance(value, int | float) or isinstance(value, bool) or name in _NO_COUNTS:
        return clean(in_text(value))
    if name.endswith("_per_s"):
        return f"{shown(name.removesuffix('_per_s'), value)}/s"
    if name.endswith("bytes"):
        return show_bytes(value)
    if name.endswith("estimate_s") and value < 1:
        return "< 1 s"  # Opening a log takes longer than such an estimate.
    return show_duration(value) if name.endswith("_s") else show_count(value)


def words(name: str) -> str:
    """Return the name of a fact or a table for people."""
    if name in _PHRASES:
        return _PHRASES[name]
    return name.removesuffix("_s").replace("_", " ") if not name.endswith("_per_s") else name.replace("_", " ")
