"""Micro-batches of a stream on the twins, in Spark's order of calls and with death between any two.

`Query` is a streaming query without Spark: the order in which Spark 4.3 asks a source, and its two logs. Its sink is
exactly-once by the number of the micro-batch, as ours and Spark's file sink are.
"""

import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statelog.environment import Environment
from statelog.errors import (
    AnchorMismatch,
    BeyondEnd,
    ConfigError,
    IdentityChanged,
    NotFound,
    ReaderInUse,
    SubscriptionEnded,
)
from statelog.history import COMPARE_S
from statelog.log import Log
from statelog.materializer import run_round
from statelog.reading.claims import list_leases, list_subscriptions
from statelog.reading.plan import Plan
from statelog.schemas.snapshot.claims import SubscriptionCap, newest_files
from statelog.spark.columns import change_columns, spark_arrow_schema
from statelog.spark.options import NO_LIMIT, Limit, stream_options
from statelog.spark.stream_offset import StreamOffset, is_reset
from statelog.spark.stream_planner import StreamPlanner
from statelog.spark.stream_reader import part_rows, parts_of
from statelog.testing import Crash
from tests.support.rigs.log import TwinLog, impatient, settings_for

Rows = list[dict[str, Any]]


def _go_on(_point: str) -> None:
    """Return False: no death."""


class Query:
    """A query on a log. `offsets` and `commits` are Spark's logs of micro-batches, `sink` the rows by batch."""

    def __init__(self, open_log: Callable[[], Log], options: Mapping[str, str], limit: Limit = NO_LIMIT) -> None:
        self._open = open_log
        self._stream = stream_options({"log": "x", "root": "x", "kafka.bootstrap.servers": "x", **options})
        self.limit = limit
        self.offsets: list[str] = []
        self.commits = 0
        self.sink: dict[int, Rows] = {}

    def run(self, point: Callable[[str], None] = _go_on) -> None:
        """Run until nothing new is committed. `point` is called between any two of Spark's steps."""
        log = self._open()
        planner = StreamPlanner(log, self._stream)
        until = log.ledger.end()
        schema_id = log.value_schemas.newest().id
        committed = json.loads(self.offsets[self.commits - 1]) if self.commits else None

        def read(offset: dict[str, Any]) -> StreamOffset:
            return StreamOffset.from_json(offset, log.descriptor.identity)

        while True:
            start = committed if committed is not None else planner.begin().to_json()
            point("started")
            if len(self.offsets) == self.commits:
                end = planner.end_of(read(start), self.limit, until=until).to_json()
                point("planned end")
                if end == start:
                    break
                self.offsets.append(json.dumps(end))
            point("offsets written")
            end = json.loads(self.offsets[-1])
            plan = planner.plan(read(start), read(end), schema_id)
            point("planned batch")
            self.sink[self.commits] = self._rows(log, plan, schema_id, starts_over=is_reset(read(start), read(end)))
            point("sunk")
            self.commits += 1
            committed = end
            point("committed")
        planner.close()
        log.close()

    def lives(self, deaths: Callable[[str], bool]) -> int:
        """Run until there is nothing left, dying wherever `deaths` says so. Return the number of deaths."""
        died = 0

        def point(name: str) -> None:
            if deaths(name):
                raise Crash

        while True:
            try:
                self.run(point)
            except Crash:
                died += 1
            else:
                return died

    @property
    def rows(self) -> Rows:
        """All rows of the sink, by batch."""
        return [row for number in sorted(self.sink) for row in self.sink[number]]

    def _rows(self, log: Log, plan: Plan, schema_id: int, *, starts_over: bool) -> Rows:
        columns = change_columns(log.descriptor, log.value_schemas.get(schema_id))
        wanted = spark_arrow_schema(columns)
        parts = parts_of(plan, log.descriptor, self._stream, starts_over=starts_over)
        tables = [pa.Table.from_batches(list(part_rows(log, part, wanted)), wanted) for part in parts]
        return [row for table in tables for row in table.to_pylist()]


READER = {"readerId": "lake"}
Changes = dict[bytes, bytes | None]


def _expected(history: list[Changes]) -> list[tuple[Any, ...]]:
    rows = ((key, value, number) for number, changes in enumerate(history) for key, value in changes.items())
    return sorted((key, "delete" if value is None else "put", value, number) for key, value, number in rows)


def _numbered(query: Query) -> list[tuple[Any, ...]]:
    """Return the rows, with the number of their commit in place of its position."""
    places = {position: i for i, position in enumerate(sorted({row["position"] for row in query.rows}))}
    return sorted((row["key"], row["op"], row["value"], places[row["position"]]) for row in query.rows)


def _write(twin: TwinLog, rng: random.Random, history: list[Changes]) -> None:
    keys = [f"k{rng.randrange(9)}".encode() for _ in range(rng.randint(1, 5))]
    changes = {key: None if rng.random() < 0.3 else str(rng.random()).encode() for key in keys}
    twin.write(changes)
    history.append(changes)


def _fold(rows: list[dict[str, Any]]) -> dict[bytes, bytes]:
    """Return the state that rows make. A reset empties it."""
    state: dict[bytes, bytes] = {}
    for row in sorted(rows, key=lambda row: (row["position"], row["op"] != "reset")):
        if row["op"] == "reset":
            state.clear()
        elif row["op"] == "delete":
            state.pop(row["key"], None)
        else:
            state[row["key"]] = row["value"]
    return state


@pytest.mark.parametrize("seed", range(3))
def test_every_change_comes_once_whatever_dies(seed: int, tmp_path: Path) -> None:
    """A query that is killed between any two of Spark's steps reads exactly the history, whatever others write."""
    rng, twin = random.Random(seed), TwinLog()
    history: list[Changes] = []
    for _ in range(4):
        _write(twin, rng, history)
    query = Query(twin.open, {"startingPosition": "earliest", **READER}, Limit(changes=6))

    def dies(_point: str) -> bool:
        twin.now_s += 40
        if rng.random() < 0.3:
            _write(twin, rng, history) if len(history) < 40 else None
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
        return rng.random() < 0.2

    died = query.lives(dies)
    query.run()
    assert _numbered(query) == _expected(history)
    assert died > 0
    assert max(len({row["position"] for row in rows}) for rows in query.sink.values()) < len(history)
    (held,) = newest_files(list_subscriptions(twin.open().store).files).values()
    assert held.subscription.is_taken_up


@pytest.mark.parametrize("seed", range(2))
def test_a_snapshot_start_has_the_state_and_then_every_change(seed: int, tmp_path: Path) -> None:
    """A stream from a snapshot gives the state and then each later commit once, also if the first micro-batch dies."""
    rng, twin = random.Random(seed), TwinLog()
    history: list[Changes] = []
    for _ in range(3):
        _write(twin, rng, history)
    twin.environment.run(run_round, twin.open(), settings_for(tmp_path, keep=9))
    at_start = dict(twin.model)
    query = Query(twin.open, {"startingPosition": "snapshot", **READER})

    def dies(_point: str) -> bool:
        if rng.random() < 0.4 and len(history) < 20:
            _write(twin, rng, history)
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path, keep=9))
        return rng.random() < 0.3

    query.lives(dies)
    query.run()
    first = query.sink[0]
    begun = _fold(first)
    assert {row["op"] for row in first} == {"put"} and all(row["writer"] is None for row in first)
    later = [row for number in query.sink if number for row in query.sink[number]]
    assert len({(row["position"], row["key"]) for row in later}) == len(later)
    assert all(row["position"] > first[0]["position"] for row in later)
    assert _fold(query.rows) == twin.model
    assert begun == at_start or begun != {}


def test_the_state_is_held_until_its_micro_batch_is_committed(tmp_path: Path) -> None:
    """A lease holds the state until its micro-batch is committed, and is then released."""
    twin = TwinLog()
    twin.write({b"k": b"0"})
    twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    query = Query(twin.open, {"startingPosition": "snapshot", **READER})
    held: dict[str, int] = {}

    def look(point: str) -> None:
        held[f"{query.commits} {point}"] = len(list_leases(twin.open().store))

    query.run(look)
    assert (held["0 planned batch"], held["0 sunk"], held["1 planned end"]) == (1, 1, 0)


@pytest.mark.parametrize("reader", [READER, {}], ids=["reader", "lease"])
@pytest.mark.parametrize("point", ["planned end", "offsets written", "planned batch", "sunk", "again"])
def test_a_first_state_is_there_however_often_it_dies(point: str, reader: dict[str, str], tmp_path: Path) -> None:
    """The state of a first micro-batch, or of a reset, is retained for a dead query as long as its hold lasts."""
    twin = TwinLog()
    twin.write({b"k": b"0"})
    starts_over = point == "again"
    start = {"startingPosition": "earliest" if starts_over else "snapshot"}
    query = Query(twin.open, {**start, "onTruncation": "snapshot", "leaseSeconds": "100000", **reader})
    if starts_over:
        query.run()
        twin.now_s += 8 * 86_400
    _roll_up(twin, tmp_path, 3)
    held = twin.open().manifests.numbers()[-1]
    deaths = _once("offsets written" if starts_over else point)

    def dies(name: str) -> bool:
        if not deaths(name):
            return False
        for lease in list_leases(twin.open().store):
            if lease.lease.holder != "spark-stream" or lease.lease.manifest_number:
                twin.open().store.delete(lease.path)  # The recovery's lease expires while the query is dead.
        _roll_up(twin, tmp_path, 6)
        return True

    assert query.lives(dies) == 1
    assert _fold(query.rows) == twin.model
    query.run()
    assert [row["op"] for row in query.rows].count("reset") == starts_over
    twin.now_s += 8 * 86_400
    _roll_up(twin, tmp_path, 3)
    assert held not in twin.open().manifests.numbers()


def test_lag_is_told_while_a_state_is_read_and_after_a_restart(tmp_path: Path) -> None:
    """Lag counts commits behind the snapshot from the first plan on, also in a planner with another one's batch."""
    twin = TwinLog()
    _roll_up(twin, tmp_path, 1)
    for number in range(3):
        twin.write({b"k": b"later-%d" % number})
    log = twin.open()
    end = log.ledger.end()
    where = {"log": "x", "root": "x", "kafka.bootstrap.servers": "x"}
    options = stream_options({**where, "startingPosition": "snapshot"})
    planner = StreamPlanner(log, options)
    begun = planner.begin()
    assert planner.report()["behindRecords"] == 0
    first = planner.end_of(begun)
    lag = {"position": end, "behindRecords": end - begun.position}
    assert planner.report() == lag
    again = StreamPlanner(log, options)
    again.plan(begun, first, 0)
    assert again.report() == lag


def test_a_run_that_ends_holds_no_more_than_the_next_one_needs() -> None:
    """The last check of a run that reads what is available moves the subscription to the end of its rows."""
    twin = TwinLog()
    for number in range(3):
        twin.write({b"k": str(number).encode()})
    query = Query(twin.open, {"startingPosition": "earliest", **READER}, Limit(changes=1))
    query.run()
    (held,) = newest_files(list_subscriptions(twin.open().store).files).values()
    assert held.subscription.position == query.rows[-1]["position"]


@pytest.mark.usefixtures("busy_ledger")
def test_where_a_stream_begins(tmp_path: Path) -> None:
    """A stream begins at earliest, latest, a position or a writer's checkpoint, with exactly the commits behind it."""
    twin = TwinLog()
    for number in range(4):
        twin.write({b"k": str(number).encode()})
    log = twin.open()
    commit = log.commits()["writer"]
    found: dict[str, list[bytes]] = {}
    for start in ("earliest", "latest", str(commit.offset)):
        query = Query(twin.open, {"startingPosition": start})
        query.run()
        found[start] = [row["value"] for row in query.rows]
    assert list(found.values()) == [[b"0", b"1", b"2", b"3"], [], [b"3"]]
    query = Query(twin.open, {"startingWriter": "writer", "startingCheckpoint": "2"})
    query.run()
    assert [row["value"] for row in query.rows] == [b"2", b"3"]
    for partition, there in log.data_offsets().items():
        twin.cluster.truncate("log", partition, there.end)
    with pytest.raises(NotFound, match="starts above"):
        Query(twin.open, {"startingPosition": "earliest"}).run()


def test_a_time_that_is_to_come_is_no_start() -> None:
    """A start time in the future is refused, as by Spark's Kafka source: the stream would begin now."""
    twin = TwinLog()
    with pytest.raises(ConfigError, match="in the future") as caught:
        Query(twin.open, {"startingTime": "2999-01-01T00:00:00Z"}).run()
    assert "latest" in str(caught.value)


def test_a_stopped_query_goes_on_if_it_has_a_reader(tmp_path: Path) -> None:
    """A stopped query's subscription holds its position for days, and releases the log once it has read on."""
    twin = TwinLog()
    twin.write({b"k": b"0"})
    query = Query(twin.open, {"startingPosition": "earliest", **READER})
    query.run()
    twin.now_s += 6 * 86_400
    _roll_up(twin, tmp_path, 5)
    query.run()
    assert [row["value"] for row in query.rows] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    start = twin.open().kafka.offsets("log.ledger", [0])[0].start
    query.run()
    _roll_up(twin, tmp_path, 2)
    assert twin.open().kafka.offsets("log.ledger", [0])[0].start > start


def test_a_stopped_query_without_a_reader_is_told_or_begun_anew(tmp_path: Path) -> None:
    """A stopped query whose position was truncated raises with the way out, or resets once to the state."""
    twin = TwinLog()
    twin.write({b"k": b"0", b"gone": b"0"})
    lost = Query(twin.open, {"startingPosition": "earliest"})
    healed = [Query(twin.open, {"startingPosition": "earliest", "onTruncation": "snapshot"}) for _ in range(5)]
    for query in (lost, *healed):
        query.run()
    twin.write({b"gone": None})
    _roll_up(twin, tmp_path, 5)
    with pytest.raises(NotFound, match="startingPosition=snapshot"):
        lost.run()
    twin.write({b"after": b"y"})
    for query, point in zip(healed, ("planned end", "offsets written", "planned batch", "sunk", ""), strict=True):
        assert query.lives(_once(point)) == bool(point)
        assert [row["op"] for row in query.rows].count("reset") == 1
        assert _fold(query.rows) == twin.model


def test_a_query_that_rested_goes_on_if_the_log_holds_its_place(tmp_path: Path) -> None:
    """A query whose lease expired in a long micro-batch continues if the ledger still has its position."""
    twin = TwinLog()
    log = twin.open()
    where = {"log": "x", "root": "x", "kafka.bootstrap.servers": "x"}
    options = stream_options({**where, "startingPosition": "earliest"})
    with closing(Environment(clock=twin.clock).run(StreamPlanner, log, options)) as planner:
        read = planner.begin()
        for value in (b"0", b"1"):
            twin.write({b"k": value})
            begun, read = read, planner.end_of(read)
            planner.plan(begun, read, 0)
        assert planner.end_of(read) == read
        for _ in range(2):
            twin.now_s += 90_000
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
            twin.write({b"k": b"2"})
        assert log.kafka.offsets("log.ledger", [0])[0].start == read.position
        later = planner.end_of(read)
        assert len(planner.plan(read, later, 0).commits) == 2


@pytest.mark.parametrize("on_truncation", ["fail", "snapshot"])
def test_a_running_query_that_is_truncated_past_is_told_or_begun_anew(on_truncation: str, tmp_path: Path) -> None:
    """A running query whose position was truncated raises or resets like a restarted one."""
    twin = TwinLog()
    twin.write({b"k": b"0"})
    log = twin.open()
    where = {"log": "x", "root": "x", "kafka.bootstrap.servers": "x", "leaseSeconds": "0"}
    options = stream_options({**where, "startingPosition": "earliest", "onTruncation": on_truncation})
    with closing(StreamPlanner(log, options)) as planner:
        begun = planner.begin()
        read = planner.end_of(begun)
        planner.plan(begun, read, 0)
        assert planner.end_of(read) == read
        _roll_up(twin, tmp_path, 4)
        if on_truncation == "fail":
            with pytest.raises(NotFound, match="startingPosition=snapshot"):
                planner.end_of(read)
        else:
            newest = log.manifests.newest()
            anew = planner.end_of(read)
            assert newest is not None and (anew.is_reset, anew.position) == (True, newest.position)


def _roll_up(twin: TwinLog, scratch: Path, count: int) -> None:
    for number in range(1, count + 1):
        twin.write({b"k": str(number).encode()})
        twin.environment.run(run_round, twin.open(), settings_for(scratch))


def _once(point: str) -> Any:
    left = [point]

    def dies(name: str) -> bool:
        if left and name == left[0]:
            left.clear()
            return True
        return False

    return dies


def test_an_ended_subscription_is_told_or_begun_anew(tmp_path: Path) -> None:
    """A query whose subscription was ended by the cap raises with reason and way out, or continues after a reset."""
    twin = TwinLog()
    twin.write({b"k": b"0"})
    told = Query(twin.open, {"startingPosition": "earliest", "readerId": "told"})
    healed = Query(twin.open, {"startingPosition": "earliest", "readerId": "healed", "onTruncation": "snapshot"})
    for query in (told, healed):
        query.run()
    twin.now_s += 100
    for number in range(1, 6):
        twin.write({b"k": str(number).encode()})
        twin.environment.run(
            run_round,
            twin.open(),
            settings_for(tmp_path, subscriptions=SubscriptionCap(idle_s=50.0)),
        )
    with pytest.raises(SubscriptionEnded, match="materializer allows 50 s") as error:
        told.run()
    assert "another readerId" in str(error.value)
    healed.run()
    assert (_fold(healed.rows), [row["op"] for row in healed.rows]) == ({b"k": b"5"}, ["put", "reset", "put"])
    newest = newest_files(list_subscriptions(twin.open().store).files)
    assert (bool(newest["told"].subscription.ended), newest["healed"].subscription.ended) == (True, "")


def test_two_queries_do_not_share_a_reader() -> None:
    """A second query with the same reader id is refused, and the first one continues."""
    twin = TwinLog()
    twin.write({b"k": b"0"})
    first = Query(twin.open, {"startingPosition": "earliest", **READER})
    first.run()
    twin.write({b"k": b"1"})
    with pytest.raises(ReaderInUse, match="lake"):
        Query(twin.open, {"startingPosition": "earliest", **READER}).run()
    first.run()
    assert [row["value"] for row in first.rows] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("loss", "told"), [("its tail", BeyondEnd), ("its log", IdentityChanged), ("its last record", AnchorMismatch)]
)
def test_a_running_query_is_told_what_its_ledger_lost(loss: str, told: type[Exception]) -> None:
    """A running query notices an end below what it has read, or another record there, before anything is written."""
    twin = TwinLog()
    twin.write({b"k": b"0"})
    log = impatient(twin)
    where = {"log": "x", "root": "x", "kafka.bootstrap.servers": "x"}
    with closing(StreamPlanner(log, stream_options({**where, "startingPosition": "earliest"}))) as planner:
        begun = planner.begin()
        read = planner.end_of(begun)
        planner.plan(begun, read, 0)
        assert planner.end_of(read) == read
        if loss == "its log":
            twin.cluster.recreate_topic("log.ledger")
        else:
            twin.cluster.lose_tail("log.ledger", 0, read.position - 1)
        if loss == "its last record":
            with twin.open() as other:
                other.barrier()
            time.sleep(COMPARE_S)
        with pytest.raises(told):
            planner.end_of(read)


def test_a_micro_batch_ends_at_a_commit_within_its_limits() -> None:
    """Five commits of three changes: two fit a batch of seven, a batch of one takes one, and without a limit all."""
    twin = TwinLog()
    for number in range(5):
        twin.write({f"{number}{i}".encode(): b"v" for i in range(3)})
    sizes: list[list[int]] = []
    for limit in (Limit(changes=7), Limit(changes=1), Limit(size_bytes=1), Limit()):
        query = Query(twin.open, {"startingPosition": "earliest"}, limit)
        query.run()
        sizes.append([len(rows) for rows in query.sink.values()])
    assert sizes == [[6, 6, 3], [3] * 5, [3] * 5, [15]]
