"""The demo's plain fold and its input, the reference for the recovered state, are correct."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq

from demo.flights import in_schedule_order, write_slices
from demo.fold import differences, fold_flights

_COLUMNS = ("time_hour", "minute", "carrier", "flight", "tailnum", "origin", "dest", "dep_time", "arr_delay")


def _row(line: str) -> dict[str, str]:
    return dict(zip(_COLUMNS, line.split(","), strict=True))


def _flown(hour: int, late: str, *, tail: str = "N1", flight: int = 7, minute: int = 0) -> dict[str, str]:
    return _row(f"2013-01-01T{hour:02d}:00:00Z,{minute},UA,{flight},{tail},EWR,IAH,517,{late}")


def _cancelled(hour: int, *, tail: str = "N1", flight: int = 8) -> dict[str, str]:
    return _row(f"2013-01-01T{hour:02d}:00:00Z,0,UA,{flight},{tail},EWR,ORD,NA,NA")


def test_counts_and_last_flight() -> None:
    """Late minutes add up, early and missing arrivals count as 0, and the last flight is the latest one."""
    fleet = fold_flights(in_schedule_order([_flown(1, "11"), _flown(2, "-5"), _flown(3, "NA", flight=9)]).flights)
    value = fleet.state["N1"]
    assert (value["flights"], value["minutes_late"], value["cancellations"]) == (3, 11, 0)
    assert value["last_flight"] == {
        "flight": "UA 9",
        "origin": "EWR",
        "destination": "IAH",
        "scheduled": datetime(2013, 1, 1, 3, tzinfo=UTC),
    }


def test_cancelled_aircraft_is_deleted() -> None:
    """An aircraft whose latest flight was cancelled is not in the state. Others are untouched."""
    fleet = fold_flights(in_schedule_order([_flown(1, "1"), _flown(1, "2", tail="N2"), _cancelled(2)]).flights)
    assert set(fleet.state) == {"N2"}
    assert fleet.deleted == 1


def test_deleted_aircraft_flies_again() -> None:
    """An aircraft that flies after a cancellation returns with all earlier counts."""
    fleet = fold_flights(in_schedule_order([_flown(1, "1"), _cancelled(2), _cancelled(3), _flown(4, "5")]).flights)
    value = fleet.state["N1"]
    assert (value["flights"], value["minutes_late"], value["cancellations"]) == (2, 6, 2)
    assert fleet.deleted == 0


def test_only_cancelled_is_never_there() -> None:
    """An aircraft with only cancelled flights is not in the state."""
    fleet = fold_flights(in_schedule_order([_cancelled(1)]).flights)
    assert (dict(fleet.state), fleet.deleted) == ({}, 1)


def test_schedule_order_and_ties() -> None:
    """Flights are numbered by schedule, whatever the source's order. Equal schedules retain the source's order."""
    rows = [_flown(2, "0", flight=3), _flown(1, "0", flight=1, minute=59), _flown(1, "0", flight=2, minute=59)]
    assert [flight.flight for flight in in_schedule_order(rows).flights] == ["UA 1", "UA 2", "UA 3"]
    tied = in_schedule_order([_flown(1, "0"), _cancelled(1)]).flights
    assert fold_flights(tied).deleted == 1
    assert fold_flights(in_schedule_order([_cancelled(1), _flown(1, "0")]).flights).deleted == 0


def test_without_tail_number() -> None:
    """Flights without a tail number are counted and dropped, in both of the source's spellings."""
    found = in_schedule_order([_flown(1, "0", tail="NA"), _flown(1, "0", tail=""), _flown(1, "0")])
    assert (found.without_tail, len(found.flights)) == (2, 1)
    assert found.flights[0].number == 0


def test_slices_hold_every_flight_in_order(tmp_path: Path) -> None:
    """Slices by modification time are the whole input in order, and survive Parquet."""
    flights = in_schedule_order([_flown(hour, str(hour)) for hour in range(20)] + [_cancelled(21)]).flights
    assert write_slices(flights, tmp_path / "slices", 4) == 4
    paths = sorted((tmp_path / "slices").iterdir(), key=lambda path: path.stat().st_mtime)
    rows = [tuple(row.values()) for path in paths for row in pq.read_table(path).to_pylist()]
    assert rows == [tuple(flight) for flight in flights]


def test_differences_name_every_side() -> None:
    """A changed, a missing and an extra value are each a difference. Equal ones are not."""
    found = differences({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9, "d": 4})
    assert [(one.key, one.expected, one.found) for one in found] == [("b", 2, 9), ("c", 3, None), ("d", None, 4)]
