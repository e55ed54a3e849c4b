"""The result: the run in numbers, and the state as a table."""

import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

from demo.fold import Difference
from demo.followed import Followed
from demo.recovery import Recovered
from demo.screen import Screen, kib, rate
from demo.stream import Streamed
from statelog.log import LogDescription

__all__ = ["show_differences", "show_followed", "show_log", "show_recovery", "show_state", "show_stream"]

_ROWS = 8


def show_stream(screen: Screen, streamed: Streamed, flights: int) -> None:
    """Show the rates of the two runs of the job."""
    per_batch = flights / len(streamed.commits)
    rows: list[list[str]] = []
    for name, life in zip(("until the kill", "after the restart"), streamed.lives, strict=True):
        # The first batch waits for Spark's start, so rates begin after it.
        warm = life.commits[1:]
        gaps = [after.at_s - before.at_s for before, after in pairwise(life.commits)]
        rows.append(
            [
                name,
                f"{life.start_s:.1f} s",
                str(len(life.commits)),
                f"{statistics.median(gaps):.2f} s" if gaps else "-",
                rate(round(per_batch * len(warm)), life.span_s),
                rate(sum(commit.changes for commit in warm), life.span_s),
                kib(sum(commit.size_bytes for commit in life.commits)),
            ]
        )
    columns = ("the job", "first commit", "batches", "median batch", "flights", "changes", "committed")
    screen.table(columns, rows)


def show_followed(screen: Screen, followed: Followed) -> None:
    """Show how far behind the log the second query was. It was checked every 50 ms."""
    if followed.lags_s:
        median_s, most_s = statistics.median(followed.lags_s), max(followed.lags_s)
        screen.event(
            f"a commit was in the second query's result after {median_s:.1f} s (median of {len(followed.lags_s)}, at"
            f" most {most_s:.1f} s)"
        )


def show_log(screen: Screen, log: LogDescription, truncated_bytes: int) -> None:
    """Show the log start before and after by partition, and the snapshot that replaces the truncated part."""
    rows = [
        [f"data {partition}", "0", f"{offsets.start:,}", f"{offsets.end:,}"]
        for partition, offsets in sorted(log.data_offsets.items())
    ]
    rows.append(["ledger", "0", f"{log.ledger_offsets.start:,}", f"{log.ledger_offsets.end:,}"])
    screen.table(("topic", "log start before", "log start now", "log end"), rows)
    manifest = log.manifest
    if manifest is not None:
        size = kib(sum(run.size_bytes for run in manifest.runs))
        screen.event(
            f"snapshot {manifest.number} holds {sum(run.rows for run in manifest.runs):,} rows in"
            f" {len(manifest.runs)} runs of {size}; {kib(truncated_bytes)} of chunks are truncated behind it"
        )


def show_recovery(screen: Screen, recovered: Recovered) -> None:
    """Show the results of the two workers."""
    rows = [
        [
            f"{half.key_groups.start} to {half.key_groups.stop - 1}",
            f"{half.manifest}",
            f"{half.run_rows:,} ({kib(half.run_bytes)})",
            f"{half.tail_changes:,} ({kib(half.tail_bytes)})",
            f"{half.rows:,}",
            f"{half.total_s:.3f} s",
            rate(half.run_rows + half.tail_changes, half.total_s),
        ]
        for half in recovered.halves
    ]
    columns = ("key groups", "snapshot", "rows read of it", "changes read behind it", "aircraft", "took", "read")
    screen.table(columns, rows)
    screen.event(f"both workers together, with the start of their processes: {recovered.wall_s:.1f} s")


def show_state(screen: Screen, state: Mapping[str, object]) -> None:
    """Show the aircraft with the most delay."""
    values = cast("Mapping[str, Mapping[str, Any]]", state)
    by_lateness = sorted(values.items(), key=lambda item: item[1]["minutes_late"], reverse=True)
    rows: list[list[str]] = []
    for tail, value in by_lateness[:_ROWS]:
        last = value["last_flight"]
        rows.append(
            [
                tail,
                f"{value['flights']:,}",
                f"{value['minutes_late']:,}",
                f"{value['cancellations']:,}",
                f"{last['flight']} {last['origin']}-{last['destination']} {last['scheduled']:%d %b %H:%M}",
            ]
        )
    columns = ("aircraft", "flights", "minutes late", "cancelled", "last flight (UTC)")
    screen.table(columns, rows, title=f"the {len(rows)} of {len(state):,} aircraft that were late the most")


def show_differences(screen: Screen, found: list[Difference], name: str) -> None:
    """Show the first keys with different values; `name`: the source of the values found."""
    rows = [[one.key, str(one.expected), str(one.found)] for one in found[:_ROWS]]
    screen.table(("aircraft", "the plain fold says", name), rows, title=f"{len(found)} values differ")
