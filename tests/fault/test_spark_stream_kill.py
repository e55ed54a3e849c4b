"""SIGKILL of a streaming query, driver, JVM and workers at once, while others write and roll the log up."""

import json
import random
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from statelog.materializer.round.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.storage.log.log import Log
from tests.support.rigs.log import UNSAFE
from tests.support.services.broker import Broker
from tests.support.spark.rig import SparkLog
from tests.support.spark.stream_job import StreamJob

pytestmark = [pytest.mark.spark, pytest.mark.broker]

Written = list[tuple[int, int, int | None]]


@contextmanager
def _writing(rig: SparkLog, scratch: Path, rng: random.Random) -> Generator[Callable[[], Written]]:
    """Commits and rounds in a thread, until the block ends; gives what was committed: (position, key, n)."""
    stop, written = threading.Event(), Written()

    def write() -> None:
        settings = MaterializerSettings(scratch=scratch, retention=RetentionPolicy(keep=2, min_age_s=0.0))
        kafka, root = {"bootstrap.servers": rig.bootstrap}, str(rig.root)
        own = Log.open(rig.log.name, kafka=kafka, root=root, allow_unsafe=UNSAFE)
        with own as log, Writer(log, "w") as writer:
            while not stop.wait(0.2):
                changes = {key: None if rng.random() < 0.2 else rng.randrange(1000) for key in rng.sample(range(40), 8)}
                for key, n in changes.items():
                    writer.delete(key) if n is None else writer.put(key, {"n": n, "note": None})
                position = writer.commit().offset + 1
                written.extend((position, key, n) for key, n in changes.items())
                if rng.random() < 0.1:
                    run_round(log, settings)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield lambda: written
    finally:
        stop.set()
        thread.join()


def _rows(job: StreamJob) -> Written:
    """What the file sink's own log says it has."""
    files: list[Path] = []
    for entry in (job.rows / "_spark_metadata").iterdir():
        if entry.name.startswith("."):
            continue
        lines = entry.read_text("utf-8").splitlines()[1:]
        files += [Path(json.loads(line)["path"].removeprefix("file://")) for line in lines]
    rows = [row for path in sorted(set(files)) for row in pq.read_table(path).to_pylist()]
    return sorted((row["position"], row["key"], row["value"]["n"] if row["value"] else None) for row in rows)


def _begin(directory: Path) -> int:
    """Where the query began, by Spark's own log of offsets: rounds may have cut off what was committed before."""
    offset = (directory / "checkpoint" / "offsets" / "0").read_text("utf-8").splitlines()[-1]
    return int(json.loads(offset)["beginPosition"])


def _storm(rig: SparkLog, directory: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    options = {**rig.options, "startingPosition": "earliest", "readerId": "killed", "maxChangesPerTrigger": "100"}
    job = StreamJob(options=options, directory=str(directory), to_end=False)
    with _writing(rig, directory, rng) as written:
        for _ in range(kills):
            job.kill_after(rng.randint(1, 4), rng.random() / 2)
    assert replace(job, to_end=True).start().wait(280) == 0
    begin = _begin(directory)
    expected = sorted((row for row in written() if row[0] > begin), key=lambda row: row[:2])
    assert _rows(job) == expected
    assert len(expected) > 100, "and there was something to lose"


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("killed stream")
def test_a_killed_query_reads_every_change_once(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A death among commits and rounds, and then a life to the end: the sink has the history, change by change."""
    _storm(SparkLog.create(log_name, broker.bootstrap, tmp_path), tmp_path, kills=1, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_a_storm_of_kills(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """The same with thirty deaths, by a seed that differs in every run."""
    seed = random.SystemRandom().randrange(1 << 32)
    _storm(SparkLog.create(log_name, broker.bootstrap, tmp_path), tmp_path, kills=30, seed=seed)
