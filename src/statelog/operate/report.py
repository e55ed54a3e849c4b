"""`Report`: facts by name, and tables, the same for a command, for JSON and for a page. Pure.

Invariant: programs see names and values as they are; people see `words` and numbers in the unit that the end of their
name tells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statelog.formatting import clean, in_text, show_bytes, show_count, show_duration

_NO_COUNTS = ("pid", "offset", "key", "value")
"""Numbers that people see as they are."""
_TIMES = ("manifest_time", "renewed", "created", "moved", "accepted")
_PHRASES = {"held_by": "truncation held back by", "records_left": "records left in the log"}


@dataclass(frozen=True, slots=True)
class Listing:
    """A table: the names of its columns, and its rows; `optional` columns are left out where a terminal is narrow."""

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
    def told(self) -> tuple[Listing, ...]:
        """The listings for people: those with rows, and one that is alone, which says that there is nothing."""
        return tuple(one for one in self.listings if one.rows or len(self.listings) == 1)

    def to_json(self) -> dict[str, object]:
        """For programs: facts by name, listings as lists of objects."""
        return {
            **self.facts,
            **{one.name: [dict(zip(one.columns, row, strict=True)) for row in one.rows] for one in self.listings},
        }


def shown(name: str, value: object) -> str:
    """A value as people read it, in the unit that the end of its name tells."""
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
        return "< 1 s"  # Opening alone takes longer than such an estimate says.
    return show_duration(value) if name.endswith("_s") else show_count(value)


def words(name: str) -> str:
    """The name of a fact, or of a table, for people."""
    if name in _PHRASES:
        return _PHRASES[name]
    return name.removesuffix("_s").replace("_", " ") if not name.endswith("_per_s") else name.replace("_", " ")
