"""The benchmarks, one function each. statelog and its baseline alternate, so that a drifting machine affects both."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path

from bench.figures import Figure, medians, rate, timed
from bench.logs import bench_log, bulk_append, least_chunks, passed_over, put_singly, read_records
from bench.plain import plain_topic
from bench.setting import Setting
from bench.workload import Pairs, batches, every_key, pairs
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer import Writer
from statelog.reading.replay import replay as replay_chunks
from statelog.recovery import recover

__all__ = ["BENCHMARKS"]


def append(setting: Setting) -> list[Figure]:
    """Measure bulk and per-change append, acknowledged and committed, with one record per change as baseline.

    The floors of bulk append are to send the same chunks, and to make and send them, without checks or guarantees.
    """
    found = batches(setting.changes, setting.keys)
    few = pairs(batches(setting.scaled(0.2), setting.keys))
    bulk: list[float] = []
    single: list[float] = []
    plain: list[tuple[int, float]] = []
    floor: list[tuple[int, float]] = []
    made: list[tuple[int, float]] = []
    kept_bytes: int | None = None
    for _ in range(setting.rounds):
        with plain_topic(setting.bootstrap) as topic:
            plain.append((len(few), timed(lambda: topic.produce(few))))
        with bench_log(setting.bootstrap, setting.root) as log:
            bulk.append(timed(lambda: bulk_append(log, found, commits=10)))
            chunks = [(one.partition, one.value) for one in read_records(log)]
            kept_bytes = setting.kept_bytes(log.data_topic)
        with plain_topic(setting.bootstrap) as topic:
            floor.append((setting.changes, timed(partial(topic.send, chunks))))
        with plain_topic(setting.bootstrap) as topic:
            made.append((setting.changes, timed(lambda: topic.send(least_chunks(found)))))
        with bench_log(setting.bootstrap, setting.root) as log:
            single.append(timed(lambda: _append_singly(log, few)))
    work, name = "bulk append (append_batch), 10 commits", "one record per change"
    given = sum(len(key) + len(value) for key, value in few) / len(few)
    kept = [] if kept_bytes is None else [kept_bytes / setting.changes]
    return [
        rate(work, setting.changes, bulk, name, plain),
        rate(work, setting.changes, bulk, "floor: its chunks, sent by the client alone", floor),
        rate(work, setting.changes, bulk, "floor: keys hashed, rows moved, chunks made and sent", made),
        *(medians("bulk append, on the broker", "bytes a change", [each], "keys and values", [given]) for each in kept),
        rate("per-change append (put), 10 commits", len(few), single, name, plain),
    ]


def _append_singly(log: Log, few: Pairs) -> None:
    with Writer(log, "bench") as writer:
        put_singly(writer, few, commits=10)


def replay(setting: Setting) -> list[Figure]:
    """Measure the replay of a whole log into memory, with one record per change into a dict as baseline."""
    found = batches(setting.changes, setting.keys)
    decoded: list[float] = []
    to_dict: list[float] = []
    to_arrow: list[float] = []
    plain: list[tuple[int, float]] = []
    floor: list[tuple[int, float]] = []
    with plain_topic(setting.bootstrap) as topic, bench_log(setting.bootstrap, setting.root) as log:
        topic.produce(pairs(found))
        bulk_append(log, found, commits=10)
        for _ in range(setting.rounds):
            plain.append((setting.changes, timed(lambda: topic.replay(setting.changes))))
            floor.append((setting.changes, timed(lambda: passed_over(read_records(log)))))
            decoded.append(timed(lambda: _replay(log)))
            to_arrow.append(timed(lambda: recover(log).to_arrow()))
            to_dict.append(timed(lambda: recover(log).to_dict()))
    work, name = "replay to Arrow, every change", "one record per change, to a dict"
    return [
        rate(work, setting.changes, decoded, name, plain),
        rate(work, setting.changes, decoded, "floor: the client reads the same chunks", floor),
        rate("replay and fold to Arrow", setting.changes, to_arrow, name, plain),
        rate("replay and fold to a dict", setting.changes, to_dict, name, plain),
    ]


def _replay(log: Log) -> int:
    """Check and decode every committed change without folding, and return their number."""
    with recover(log) as recovery, closing(log.kafka.reader(log.data_topic)) as reader:
        chunks = replay_chunks(log, reader, recovery.plan.replay, stall_timeout_s=60)
        return sum(batch.num_rows for batch in [chunk.changes for chunk in chunks])


def snapshot(setting: Setting) -> list[Figure]:
    """Measure a round over a tenth of W onto the keys, then recovery from that snapshot and a tail."""
    tail = batches(setting.scaled(0.1), setting.keys, seed=1)
    few = pairs(tail)
    count = setting.keys + len(few)
    seconds: dict[str, list[float]] = {"round": [], "arrow": [], "dict": []}
    plain: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as scratch, plain_topic(setting.bootstrap) as topic:
        topic.produce(pairs(every_key(setting.keys)) + few)
        settings = MaterializerSettings(scratch=Path(scratch))
        for _ in range(setting.rounds):
            with bench_log(setting.bootstrap, setting.root) as log:
                bulk_append(log, every_key(setting.keys), commits=2)
                run_round(log, settings)
                bulk_append(log, tail, commits=2)
                seconds["arrow"].append(timed(lambda: recover(log).to_arrow()))
                seconds["dict"].append(timed(lambda: recover(log).to_dict()))
                plain.append((count, timed(lambda: topic.replay(count))))
                seconds["round"].append(timed(lambda: run_round(log, settings)))
    name = "replay of records to a dict"
    return [
        rate("materializer round", len(few), seconds["round"], name, plain),
        rate("recovery to Arrow, snapshot and tail", count, seconds["arrow"], name, plain),
        rate("recovery to a dict, snapshot and tail", count, seconds["dict"], name, plain),
    ]


def _elsewhere(module: str, function: str) -> Callable[[Setting], list[Figure]]:
    """Return a benchmark that is imported when it runs: each needs other extras."""

    def run(setting: Setting) -> list[Figure]:
        found: Callable[[Setting], list[Figure]] = getattr(import_module(f"bench.{module}"), function)
        return found(setting)

    return run


BENCHMARKS: Mapping[str, Callable[[Setting], list[Figure]]] = {
    "append": append,
    "put": _elsewhere("put", "put"),
    "latency": _elsewhere("latency", "latency"),
    "latency-far": _elsewhere("far", "latency_far"),
    "commits": _elsewhere("commits", "commits"),
    "light": _elsewhere("light", "light"),
    "opens": _elsewhere("opens", "opens"),
    "replay": replay,
    "snapshot": snapshot,
    "rounds": _elsewhere("rounds", "rounds"),
    "shapes": _elsewhere("shapes", "shapes"),
    "key-kinds": _elsewhere("key_kinds", "key_kinds"),
    "restore": _elsewhere("restore", "restore"),
    "rocksdb": _elsewhere("rocksdb", "rocksdb"),
    "cache": _elsewhere("cache", "cache"),
    "table-loop": _elsewhere("table_loop", "table_loop"),
    "table-commit": _elsewhere("table_commit", "table_commit"),
    "table-restart": _elsewhere("table_restart", "table_restart"),
    "table-open": _elsewhere("table_open", "table_open"),
    "table-takeover": _elsewhere("table_takeover", "table_takeover"),
    "due": _elsewhere("due", "due"),
    "outputs": _elsewhere("outputs", "outputs"),
    "standby-idle": _elsewhere("standby_idle", "standby_idle"),
    "object-store": _elsewhere("object_store", "object_store"),
    "fleet": _elsewhere("fleet", "fleet"),
    "spark-state": _elsewhere("spark_reads", "spark_state"),
    "spark-changes": _elsewhere("spark_reads", "spark_changes"),
    "spark-writes": _elsewhere("spark_writes", "spark_writes"),
    "spark-batches": _elsewhere("spark_batches", "spark_batches"),
    "spark-engine": _elsewhere("spark_engine", "spark_engine"),
    "spark-first": _elsewhere("spark_first", "spark_first"),
}
