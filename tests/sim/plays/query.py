"""A streaming query without Spark: the order in which Spark 4.3 asks a source, its two logs, and death anywhere.

The sink is exactly-once by the number of the micro-batch, as ours and Spark's file sink are.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from statelog.reading.plan import Plan
from statelog.spark.columns import change_columns, spark_arrow_schema
from statelog.spark.options.stream import stream_options
from statelog.spark.stream.admission import NO_LIMIT, Limit
from statelog.spark.stream.offset import StreamOffset, is_reset
from statelog.spark.stream.parts import part_rows, parts_of
from statelog.spark.stream.planner import StreamPlanner
from statelog.storage.log.log import Log
from tests.sim.actors import Crash

__all__ = ["Query"]

Rows = list[dict[str, Any]]


def _go_on(_point: str) -> None:
    """No death."""


class Query:
    """A query on a log. `offsets` and `commits` are Spark's logs of micro-batches, `sink` the rows by batch."""

    def __init__(self, open_log: Callable[[], Log], options: Mapping[str, str], limit: Limit = NO_LIMIT) -> None:
        self._open = open_log
        self.options = dict(options)
        self.limit = limit
        self.offsets: list[str] = []
        self.commits = 0
        self.sink: dict[int, Rows] = {}

    def run(self, point: Callable[[str], None] = _go_on) -> None:
        """One life, up to what is committed by now. `point` is called between any two of Spark's steps."""
        log = self._open()
        planner = StreamPlanner(
            log, stream_options({"log": "x", "root": "x", "kafka.bootstrap.servers": "x", **self.options})
        )
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
            self.sink[self.commits] = self._rows(log, plan, schema_id, begins_anew=is_reset(read(start), read(end)))
            point("sunk")
            self.commits += 1
            committed = end
            point("committed")
        planner.close()
        log.close()

    def lives(self, deaths: Callable[[str], bool]) -> int:
        """Live until there is nothing left, dying wherever `deaths` says so; how often it died."""
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

    def _rows(self, log: Log, plan: Plan, schema_id: int, *, begins_anew: bool) -> Rows:
        columns = change_columns(log.descriptor, log.value_schemas.get(schema_id))
        wanted = spark_arrow_schema(columns)
        parts = parts_of(
            plan, log.descriptor, begins_anew=begins_anew, minimum=None, key_groups=None, value_schema_id=schema_id
        )
        tables = [pa.Table.from_batches(list(part_rows(log, part, wanted)), wanted) for part in parts]
        return [row for table in tables for row in table.to_pylist()]
