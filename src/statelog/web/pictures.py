"""Pictures of a log as SVG shapes: the fill of its topics, and the runs of its newest snapshot. Pure.

Invariants: attributes and classes alone style a shape, so that the page can forbid inline styles; each shape has a
title as text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from statelog.formatting import show_bytes, show_count, show_counted

WIDTH = 1000.0
_LANE = 16.0
_LEAST_LANE = 2.0
_MOST_HEIGHT = 480.0
_LEAST_WIDTH = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A rectangle: its place, its class (`kind`), and its title."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text next to a lane, whose middle is `y`."""

    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing `WIDTH` wide, and its description in one sentence."""

    height: float
    shapes: tuple[Shape, ...]
    labels: tuple[Label, ...]
    alt: str


Row = Mapping[str, Any]


def picture_of_topics(partitions: Sequence[Row]) -> Picture:
    """Draw a lane for each data partition: offsets in the newest snapshot, committed behind it, and not committed.

    All lanes have one scale: the fullest is as wide as the picture.
    """
    lane = _lane(len(partitions))
    most = max((row["log_end"] - row["log_start"] for row in partitions), default=0) or 1
    shapes = [
        shape for number, row in enumerate(partitions) for shape in _partition(row, number * lane, lane, WIDTH / most)
    ]
    records = sum(row["log_end"] - row["log_start"] for row in partitions)
    open_records = sum(
        max(0, row["committed_position"] - max(row["log_start"], row["snapshot_next_offset"])) for row in partitions
    )
    held = f"{show_counted(len(partitions), 'partition')} with {show_counted(records, 'offset')}"
    return Picture(
        height=lane * len(partitions),
        shapes=tuple(shapes),
        labels=_numbered([str(row["partition"]) for row in partitions], lane),
        alt=f"{held}, {show_count(open_records)} of them committed and in no snapshot yet",
    )


def _partition(row: Row, y: float, lane: float, scale: float) -> Iterator[Shape]:
    start, end = row["log_start"], row["log_end"]
    covered = min(max(start, row["snapshot_next_offset"]), end)
    committed = min(max(covered, row["committed_position"]), end)
    parts = (
        ("covered", start, covered, "in the newest snapshot"),
        ("open", covered, committed, "committed, in no snapshot yet"),
        ("loose", committed, end, "not committed"),
    )
    for kind, first, last, words in parts:
        if last > first:
            yield Shape(
                x=(first - start) * scale,
                y=y,
                width=max(_LEAST_WIDTH, (last - first) * scale),
                height=lane * 0.8,
                kind=kind,
                title=f"partition {row['partition']}: offsets {first} to {last}, {words}",
            )


def picture_of_runs(runs: Sequence[Row], key_groups: int) -> Picture:
    """Draw a lane for each run, from the lowest level down, over the key groups from left to right."""
    ordered = sorted(runs, key=lambda run: (run["level"], -run["end_position"], run["first_key_group"]))
    lanes = [list(same) for _, same in groupby(ordered, key=lambda run: (run["level"], run["end_position"]))]
    lane = _lane(len(lanes))
    scale = WIDTH / max(1, key_groups)
    shapes = [_run(run, number * lane, lane, scale) for number, same in enumerate(lanes) for run in same]
    rows, size_bytes = sum(run["rows"] for run in runs), sum(run["size_bytes"] for run in runs)
    levels = len({run["level"] for run in runs})
    return Picture(
        height=lane * len(lanes),
        shapes=tuple(shapes),
        labels=_numbered([f"L{same[0]['level']}" for same in lanes], lane),
        alt=f"{show_counted(len(runs), 'run')} on {show_counted(levels, 'level')} with {show_counted(rows, 'row')} in "
        f"{show_bytes(size_bytes)}, over {key_groups} key groups",
    )


def _run(run: Row, y: float, lane: float, scale: float) -> Shape:
    first, end = run["first_key_group"], run["end_key_group"]
    return Shape(
        x=first * scale,
        y=y,
        width=max(_LEAST_WIDTH, (end - first) * scale - 1),
        height=lane * 0.8,
        kind=f"level{min(run['level'], 5)}",
        title=f"level {run['level']}, key groups {first} to {end - 1}: {show_counted(run['rows'], 'row')}, "
        f"{show_bytes(run['size_bytes'])}, positions {run['start_position']} to {run['end_position']}",
    )


def _lane(lanes: int) -> float:
    return max(_LEAST_LANE, min(_LANE, _MOST_HEIGHT / max(1, lanes)))


def _numbered(texts: Sequence[str], lane: float) -> tuple[Label, ...]:
    """Label the lanes, at readable distances, and without repeating the label above."""
    every = max(1, round(_LANE / lane))
    readable = [(number, text) for number, text in enumerate(texts) if number % every == 0]
    return tuple(
        Label(y=number * lane + lane * 0.4, text=text)
        for at, (number, text) in enumerate(readable)
        if at == 0 or readable[at - 1][1] != text
    )
