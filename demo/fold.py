"""The expected result: the state of every aircraft, by a loop over the sorted flights. Pure, and without Spark.

Rules: a flight counts as a flight and adds its minutes of late arrival (early or never arrived: 0); a cancelled one
counts as a cancellation. An aircraft whose latest flight was cancelled is not in the state; it returns with its counts
when it flies again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from demo.flights import Flight

__all__ = ["Difference", "Fleet", "differences", "fold_flights"]

Value = Mapping[str, "int | Mapping[str, str | datetime]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`state`: the value of every present aircraft, by tail number. `deleted`: the number of absent ones."""

    state: Mapping[str, Value]
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key with two different values; None for a missing value."""

    key: str
    expected: object
    found: object


@dataclass(slots=True)
class _Counts:
    flights: int = 0
    minutes_late: int = 0
    cancellations: int = 0
    latest: Flight | None = None


def fold_flights(flights: Iterable[Flight]) -> Fleet:
    """Return the state after these flights, which come in schedule order."""
    counts: dict[str, _Counts] = {}
    for flight in flights:
        aircraft = counts.setdefault(flight.tail, _Counts())
        aircraft.latest = flight
        if flight.cancelled:
            aircraft.cancellations += 1
        else:
            aircraft.flights += 1
            aircraft.minutes_late += max(0, flight.minutes_late or 0)
    state = {
        tail: _value(aircraft, aircraft.latest)
        for tail, aircraft in counts.items()
        if aircraft.latest is not None and not aircraft.latest.cancelled
    }
    return Fleet(state=state, deleted=len(counts) - len(state))


def differences(expected: Mapping[str, object], found: Mapping[str, object]) -> list[Difference]:
    """Return every key with different values, by key."""
    return [
        Difference(key=key, expected=expected.get(key), found=found.get(key))
        for key in sorted(expected.keys() | found.keys())
        if expected.get(key) != found.get(key)
    ]


def _value(aircraft: _Counts, latest: Flight) -> Value:
    return {
        "flights": aircraft.flights,
        "minutes_late": aircraft.minutes_late,
        "cancellations": aircraft.cancellations,
        "last_flight": {
            "flight": latest.flight,
            "origin": latest.origin,
            "destination": latest.destination,
            "scheduled": latest.scheduled,
        },
    }
