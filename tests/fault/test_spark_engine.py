"""The Spark engine under faults: any fate of a task gives the local engine's rows, and memory stays within bounds."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statelog.log import Log, Where
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round
from statelog.materializer.work import FOLD_BYTES
from statelog.producer.writer import Writer
from statelog.recovery import recover_snapshot
from statelog.spark.engine import SparkEngine, TaskWork
from statelog.spark.option_texts import log_address
from tests.support.services.broker import Broker
from tests.support.spark.engine_job import CASES
from tests.support.spark.engine_pair import settings_at
from tests.support.spark.engine_tasks import MeasuredWork, engine_of, parts_of
from tests.support.spark.rig import SparkLog

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(600)]

_WORKER_MIB = 200
"""The memory of a Python worker with all its imports, and no task."""


def test_what_happens_to_a_task_does_not_show(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Killed workers, a killed executor, and real speculation do not show in the result.

    Attempts ran concurrently, before and after both had uploaded. Each time one attempt's runs are taken, and the
    others' are deleted in the end.
    """
    errors = tmp_path / "errors"
    with errors.open("wb") as output:
        command = [sys.executable, "-m", "tests.support.spark.engine_job", "standalone", broker.bootstrap]
        done = subprocess.run(
            [*command, str(tmp_path / log_name)], stdout=subprocess.PIPE, stderr=output, timeout=500, check=False
        )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(*line["case"], line["error"]) for line in lines] == [(*case, "") for case in CASES], errors.read_text(
        "utf-8"
    )[-3000:]
    assert done.returncode == 0


def test_the_memory_of_a_task_follows_neither_backlog_nor_state(
    spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path
) -> None:
    """The memory of a task follows neither backlog nor state, by the kernel's count.

    One commit of 96 MiB and one of 384 MiB, folded each by one task, then as much again, folded and merged: workers of
    the larger log take about as much as the smaller one's.
    """
    peaks = {mib: _peaks_mib(spark, broker, f"{log_name}-{mib}", tmp_path, mib) for mib in (96, 384)}
    for kind in ("fold", "merge"):
        small, large = peaks[96][kind], peaks[384][kind]
        assert large < 1.5 * small, (kind, peaks)
        assert large < _WORKER_MIB + 8 * FOLD_BYTES / (1 << 20), (kind, peaks)


def _peaks_mib(spark: SparkSession, broker: Broker, name: str, directory: Path, mib: int) -> dict[str, float]:
    """Return the greatest memory of a worker, by its task's kind, in two rounds of so many MiB of new keys each."""
    rig = SparkLog.create(name, broker.bootstrap, directory, partitions=1, value_schema=None)
    peaks = directory / f"peaks-{mib}"
    peaks.mkdir()
    maker = partial(SparkEngine, spark=spark, where=log_address(rig.options), most_tasks=2)

    def measured(_: int, work: TaskWork) -> TaskWork:
        return MeasuredWork(**parts_of(work), directory=peaks)

    settings = settings_at(directory, budget_bytes=8 << 30)
    random = np.random.default_rng(mib)
    for number in range(2):
        with Writer(rig.log, "w") as writer:
            for first in range(number * mib, (number + 1) * mib, 16):
                writer.append_batch(_rows(random, first << 10, 16 << 10))
            writer.commit(checkpoint_id=number + 1)
        assert isinstance(Round(rig.log, settings, make_engine=engine_of(maker, measured, [])).run(), CompletedRound)
    assert recover_snapshot(name, Where(None, str(rig.root))).to_arrow().num_rows == 2 * mib << 10
    Log.delete(name, Where({"bootstrap.servers": rig.bootstrap}, str(rig.root)))
    found: dict[str, float] = {}
    for note in peaks.iterdir():
        kind = note.name.partition("-")[0]
        found[kind] = max(found.get(kind, 0.0), int(note.read_text("ascii")) / 1024)
    sys.stdout.write(f"{mib} MiB: {found}\n")
    return found


def _rows(random: np.random.Generator, first: int, count: int) -> pa.RecordBatch:
    """Return puts of new keys with incompressible values of 1 KiB."""
    keys = pa.array(np.arange(first, first + count, dtype=np.int64))
    data = random.integers(0, 256, count << 10, dtype=np.uint8).tobytes()
    offsets = np.arange(0, (count + 1) << 10, 1 << 10, dtype=np.int32).tobytes()
    values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])
