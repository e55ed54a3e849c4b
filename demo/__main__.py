"""`python -m demo`: flights -> Spark -> log -> snapshots -> recovery, and a second query that follows the log.

The driver of the first query is killed, and both results are compared with a plain fold.

The exit code is 0 if every value is right and everything promised happened, else 1.
"""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from demo.broker import BROKER_VARIABLE, demo_broker, end_left_over
from demo.failure import DemoFailed
from demo.flights import Input, read_input, write_slices
from demo.fold import Fleet, differences, fold_flights
from demo.followed import faults, fold_changes
from demo.place import Place, demo_directory, fresh_directory
from demo.recovery import Recovered, recover_in_halves
from demo.report import show_differences, show_followed, show_log, show_recovery, show_state, show_stream
from demo.screen import Screen
from demo.stream import Streamed, run_stream
from statelog.errors import StatelogError
from statelog.log import Log, LogDescription, LogOptions

__all__ = ["main"]

_BATCHES = 40
_PARTITIONS = 4
_SCHEMA = Path(__file__).with_name("aircraft.avsc")


def main() -> int:
    """Run the demo once, and return the exit code."""
    # SIGTERM ends the demo like Ctrl-C: every started process is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    screen = Screen()
    try:
        summary = _run(screen)
    except (DemoFailed, StatelogError) as error:
        screen.failed(str(error))
        return 1
    except KeyboardInterrupt:
        screen.failed("interrupted")
        return 130
    screen.done(summary)
    return 0


def _run(screen: Screen) -> str:
    started_s = time.monotonic()
    screen.title(
        "A year of flights -> Spark Structured Streaming -> a log of changes on Kafka -> snapshots -> recovery.\n"
        "The Spark driver is killed half way, while a second query follows the log. In the end every value of both\n"
        "results is compared with a plain loop over the flights."
    )
    directory = demo_directory()
    with _only_one(directory):
        end_left_over(directory)
        fresh_directory(directory)
        found, batches = _prepare(screen, directory)
        with demo_broker(directory, screen.event) as bootstrap:
            place = Place(log=_log_name(), bootstrap=bootstrap, directory=directory)
            with _created(place) as log:
                return _stream_and_recover(screen, place, log, found, batches, started_s)


def _prepare(screen: Screen, directory: Path) -> tuple[Input, int]:
    screen.act("The input")
    found = read_input()
    batches = write_slices(found.flights, directory / "input", _BATCHES)
    screen.event(
        f"{len(found.flights) + found.without_tail:,} flights of 2013; {found.without_tail:,} have no tail number and"
        f" are dropped; {len(found.flights):,} in the order of their schedule, in {batches} slices"
    )
    return found, batches


def _stream_and_recover(screen: Screen, place: Place, log: Log, found: Input, batches: int, started_s: float) -> str:
    screen.act("Streaming, with a kill")
    screen.event(f"made the log {place.log}: {_PARTITIONS} partitions, {log.descriptor.key_groups} key groups")
    try:
        streamed = run_stream(place, log, batches, screen)
    finally:
        screen.end_bar()
    show_stream(screen, streamed, len(found.flights))
    show_followed(screen, streamed.followed)

    screen.act("The log, before and after")
    described = log.describe()
    show_log(screen, described, streamed.truncated_bytes)
    _check_truncated(streamed, described)

    screen.act("Recovery")
    recovered = recover_in_halves(place, log.descriptor.key_groups)
    show_recovery(screen, recovered)
    show_state(screen, recovered.state)

    screen.act("The proof")
    fleet = fold_flights(found.flights)
    _prove_recovered(screen, fleet, recovered)
    _prove_followed(screen, fleet, streamed)
    starts = sum(offsets.start for offsets in described.data_offsets.values())
    ends = sum(offsets.end for offsets in described.data_offsets.values())
    slowest_s = max(half.total_s for half in recovered.halves)
    return (
        f"{len(found.flights):,} flights in {batches} batches, 1 kill, {streamed.snapshots} snapshots, {starts} of"
        f" {ends} chunks truncated, {len(recovered.state):,} aircraft recovered in {slowest_s:.2f} s and followed by a"
        " second query, 0 differences in both;"
        f" {time.monotonic() - started_s:.0f} s in all"
    )


def _prove_recovered(screen: Screen, fleet: Fleet, recovered: Recovered) -> None:
    _compare(screen, fleet, recovered.state, "recovered")
    screen.event(
        f"a plain loop over the flights gives the same {len(fleet.state):,} aircraft with the same values; the other"
        f" {fleet.deleted} are deleted on both sides, because their latest flight was cancelled"
    )
    screen.event(
        f"the recovered state is Parquet, for DuckDB, pandas or Spark: {recovered.halves[0].file.parent}/*.parquet"
    )


def _prove_followed(screen: Screen, fleet: Fleet, streamed: Streamed) -> None:
    """Check that the second query read every commit whole and once, and that its rows fold to the same state."""
    followed = streamed.followed
    commits = {commit.offset + 1: commit.changes for commit in streamed.commits}
    wrong = faults(followed, commits)
    if wrong:
        raise DemoFailed(f"the second query did not read every change once: {'; '.join(wrong)}")
    _compare(screen, fleet, fold_changes(followed.rows), "followed")
    read = sum(position > followed.begin_position for position in commits)
    screen.event(
        f"the second query kept {followed.state_rows:,} aircraft of the snapshot and {read} commits behind it, each"
        f" whole and once: {len(followed.rows):,} rows, which fold to the same {len(fleet.state):,} aircraft"
    )


def _compare(screen: Screen, fleet: Fleet, state: Mapping[str, object], name: str) -> None:
    different = differences(fleet.state, state)
    if different:
        show_differences(screen, different, name)
        raise DemoFailed(f"{len(different)} of {len(fleet.state)} {name} values differ from the plain fold")


def _check_truncated(streamed: Streamed, log: LogDescription) -> None:
    if streamed.snapshots < 2 or not any(offsets.start for offsets in log.data_offsets.values()):
        raise DemoFailed(f"the materializer made {streamed.snapshots} snapshots and truncated nothing")


@contextmanager
def _created(place: Place) -> Generator[Log]:
    """Yield a new log; on an external broker, delete it at the end."""
    log = Log.create(
        place.log,
        place.where,
        LogOptions(partitions=_PARTITIONS, key_type="string", value_schema=_SCHEMA.read_text(encoding="utf-8")),
    )
    try:
        yield log
    finally:
        log.close()
        if os.environ.get(BROKER_VARIABLE):
            Log.delete(place.log, place.where)


def _log_name() -> str:
    """Return the log's name, which is unique on an external broker."""
    return f"flights-{os.urandom(4).hex()}" if os.environ.get(BROKER_VARIABLE) else "flights"


@contextmanager
def _only_one(directory: Path) -> Generator[None]:
    """Allow one demo at a time in this directory. The system releases the lock of a dead process."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "demo.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoFailed(f"another demo is running in {directory}") from None
        yield


if __name__ == "__main__":
    sys.exit(main())
