"""The second query's result: rows of its Parquet, checked against the log's commits and folded by key.

The fold and the check are pure; only `read_rows` reads.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

__all__ = ["Change", "Followed", "faults", "fold_changes", "read_rows"]

_MOST_FAULTS = 5


class Change(NamedTuple):
    """A row: a key's change in the commit right below `position`; or, at the first position, the key's state."""

    position: int
    key: str
    op: str
    value: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The second query's result: rows of the state at `begin_position`, and one for every change behind it.

    `lags_s`: the delay of each commit that was made while it read.
    """

    begin_position: int
    rows: tuple[Change, ...]
    lags_s: tuple[float, ...]

    @property
    def state_rows(self) -> int:
        """The number of rows of its first state."""
        return sum(row.position == self.begin_position for row in self.rows)


def read_rows(directory: Path) -> tuple[Change, ...]:
    """Read all rows that Spark's file sink wrote to a directory: of the files in the sink's own log, which are whole.

    The log's files are lists; some contain all earlier ones.
    """
    files: set[Path] = set()
    for entry in (directory / "_spark_metadata").iterdir():
        if not entry.name.startswith("."):
            lines = entry.read_text("utf-8").splitlines()[1:]
            files.update(Path(json.loads(line)["path"].removeprefix("file://")) for line in lines)
    return tuple(
        Change(row["position"], row["key"], row["op"], row["value"])
        for path in sorted(files)
        for row in pq.ParquetFile(path).read().to_pylist()
    )


def fold_changes(rows: Iterable[Change]) -> dict[str, object]:
    """Return the state of the rows: the newest row of each key, unless it is a delete."""
    newest: dict[str, Change] = {}
    for row in rows:
        if row.key not in newest or newest[row.key].position < row.position:
            newest[row.key] = row
    return {key: row.value for key, row in newest.items() if row.op == "put"}


def faults(followed: Followed, commits: Mapping[int, int]) -> list[str]:
    """Return the faults, for people; none if exactly the commits behind the first state are there, whole and once.

    `commits`: the number of changes of every valid commit, by the position right behind it.
    """
    found: list[str] = []
    twice = [key for key, count in Counter((row.position, row.key) for row in followed.rows).items() if count > 1]
    found += [f"{key} came twice at position {position}" for position, key in twice]
    expected = {position: count for position, count in commits.items() if position > followed.begin_position}
    read = Counter(row.position for row in followed.rows if row.position != followed.begin_position)
    for position in sorted(expected.keys() | read.keys()):
        if expected.get(position, 0) != read[position]:
            found.append(
                f"the commit below position {position} has {expected.get(position, 0)} changes, and {read[position]}"
                " were read"
            )
    return found[:_MOST_FAULTS]
