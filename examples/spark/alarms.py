"""`transformWithState`: a state machine for every machine in a hall, with the active alarms in a log.

    statelog dev start                     # a Kafka on 127.0.0.1:9092
    python -m examples.spark.alarms        # in the checkout; takes the address of another Kafka

A machine raises an alarm when three readings in a row are too hot, and the next cool one clears it. Spark stores the
processor's state of each machine. Its *output* goes to the log: a put when an alarm is raised, a delete when it is
cleared. So the log is the list of active alarms, and its history has the times when each was raised and cleared.

The processor emits at most one change of a machine in a micro-batch, so no key comes twice and any task may write it.
"""

import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from examples.spark.place import Example, Place, main

__all__ = ["EXAMPLE", "Alarms", "keep_alarms"]

IN_A_ROW = 3
TOO_HOT = 80
READING = "machine bigint, second bigint, celsius bigint"
VALUE = json.dumps({"type": "record", "name": "Alarm", "fields": [{"name": "since", "type": "long"}]})
Reading = Mapping[str, Any]


def step(hot: int, since: int, second: int, celsius: int) -> tuple[int, int]:
    """Apply one reading: return the hot readings in a row, and the start of the alarm, -1 for none."""
    if celsius < TOO_HOT:
        return 0, -1
    return hot + 1, second if since < 0 and hot + 1 >= IN_A_ROW else since


class Alarms(StatefulProcessor):
    """The alarm of each machine."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state of a machine: the two numbers of `step`."""
        self._remembered: Any = handle.getValueState("alarm", "hot bigint, since bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803 - Spark's names
        """Process the readings of a machine in order, and yield its change."""
        hot, before = self._remembered.get() or (0, -1)
        since = before
        for row in sorted(rows, key=lambda row: int(row["second"])):
            hot, since = step(hot, since, row["second"], row["celsius"])
        self._remembered.update((hot, since))
        if since != before:
            yield Row(key=key[0], op="delete" if since < 0 else "put", since=since)

    def close(self) -> None:
        """Release nothing."""


def keep_alarms(spark: SparkSession, place: Place) -> bool:
    """Process all readings, and compare the alarms in the log with those of a plain loop."""
    batches = readings(random.Random(7))
    watched = place.stream(spark, batches, READING).groupBy("machine")
    alarms = watched.transformWithState(Alarms(), "key bigint, op string, since bigint", "append", "None")
    options = {**place.options, "writerId": "alarms", "uniqueKeys": "true"}
    place.run_to_the_end(alarms.writeStream.format("statelog").options(**options))
    standing = {machine: value["since"] for machine, value in place.state().items()}
    print(f"{sum(len(batch) for batch in batches)} readings, {len(standing)} alarms stand: {standing}")
    return standing == watched_plainly(reading for batch in batches for reading in batch)


def readings(chance: random.Random) -> list[list[Reading]]:
    """Return batches of four seconds; each machine is read once a second."""
    return [
        [
            {"machine": machine, "second": second, "celsius": chance.randrange(40, 110)}
            for second in range(first, first + 4)
            for machine in range(40)
        ]
        for first in range(0, 16, 4)
    ]


def watched_plainly(all_readings: Iterable[Reading]) -> dict[int, int]:
    """Return the alarms that are active at the end, by a loop over the readings in order."""
    machines: dict[int, tuple[int, int]] = {}
    for reading in all_readings:
        machine = reading["machine"]
        machines[machine] = step(*machines.get(machine, (0, -1)), reading["second"], reading["celsius"])
    return {machine: since for machine, (_, since) in machines.items() if since >= 0}


EXAMPLE = Example(name="alarms", key_type="long", value_schema=VALUE, program=keep_alarms)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
