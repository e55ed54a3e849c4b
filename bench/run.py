"""The benchmarks, one function each. Baseline and ours take turns, so that a drifting machine hits both."""

import gc
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

from bench.cache import cache
from bench.figures import Figure, percentile, rate, timed
from bench.logs import bench_log, bulk_append
from bench.plain import plain_topic
from bench.rocksdb import rocksdb
from bench.setting import Setting
from bench.spark_batches import spark_batches
from bench.spark_engine import spark_engine
from bench.spark_first import spark_first
from bench.spark_reads import spark_changes, spark_state
from bench.spark_writes import spark_writes
from bench.workload import batches, every_key, pairs
from statelog.materializer.round.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer import Writer
from statelog.recovery import recover
from statelog.storage import Log
from statelog.storage.replay import replay as replay_chunks

__all__ = ["BENCHMARKS"]


def append(setting: Setting) -> list[Figure]:
    """Bulk and per-change append, each acked and committed, beside one record per change."""
    found = batches(setting.changes, setting.keys)
    few = pairs(batches(setting.scaled(0.2), setting.keys))
    bulk: list[float] = []
    single: list[float] = []
    plain: list[tuple[int, float]] = []
    for _ in range(setting.rounds):
        with plain_topic(setting.bootstrap) as topic:
            plain.append((len(few), timed(lambda: topic.produce(few))))
        with bench_log(setting.bootstrap, setting.root) as log:
            bulk.append(timed(lambda: bulk_append(log, found, commits=10)))
        with bench_log(setting.bootstrap, setting.root) as log:
            single.append(timed(lambda: _append_singly(log, few)))
    name = "one record per change"
    return [
        rate("bulk append (append_batch), 10 commits", setting.changes, bulk, name, plain),
        rate("per-change append (put), 10 commits", len(few), single, name, plain),
    ]


def _append_singly(log: Log, few: list[tuple[bytes, bytes]]) -> None:
    with Writer(log, "bench") as writer:
        put, every = writer.put, len(few) // 10
        for i, (key, value) in enumerate(few, 1):
            put(key, value)
            if i % every == 0:
                writer.commit(i)
        writer.commit(len(few) + 1)


def latency(setting: Setting) -> list[Figure]:
    """Commit of 100 changes over eight partitions, beside a Kafka transaction of the same and a plain flush."""
    few = pairs(batches(100_000, setting.keys))
    sets = [few[i % 900 * 100 :][:100] for i in range(setting.commits)]
    warm = min(20, len(sets) // 2)
    with plain_topic(setting.bootstrap) as topic:
        flush = topic.flush_latencies(sets)[warm:]
        transaction = topic.transaction_latencies(sets)[warm:]
    with bench_log(setting.bootstrap, setting.root) as log:
        ours = _commit_latencies(log, sets)[warm:]
    figures: list[Figure] = []
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        for name, other in (("one Kafka transaction", transaction), ("flush, not atomic", flush)):
            figures.append(
                Figure(
                    name=f"commit of 100 changes, {label}",
                    unit="ms",
                    value=percentile(ours, share) * 1e3,
                    lowest=min(ours) * 1e3,
                    highest=max(ours) * 1e3,
                    baseline_name=name,
                    baseline=percentile(other, share) * 1e3,
                    higher_is_better=False,
                )
            )
    return figures


def _commit_latencies(log: Log, sets: list[list[tuple[bytes, bytes]]]) -> list[float]:
    gc.collect()
    gc.freeze()
    with Writer(log, "bench") as writer:

        def commit(checkpoint_id: int, changes: list[tuple[bytes, bytes]]) -> None:
            for key, value in changes:
                writer.put(key, value)
            writer.commit(checkpoint_id, {"offset": "42"})

        return [timed(partial(commit, i, changes)) for i, changes in enumerate(sets, 1)]


def replay(setting: Setting) -> list[Figure]:
    """The whole log back into memory, nothing materialized, beside one record per change into a dict."""
    found = batches(setting.changes, setting.keys)
    decoded: list[float] = []
    to_dict: list[float] = []
    to_arrow: list[float] = []
    plain: list[tuple[int, float]] = []
    with plain_topic(setting.bootstrap) as topic, bench_log(setting.bootstrap, setting.root) as log:
        topic.produce(pairs(found))
        bulk_append(log, found, commits=10)
        for _ in range(setting.rounds):
            plain.append((setting.changes, timed(lambda: topic.replay(setting.changes))))
            decoded.append(timed(lambda: _replay(log)))
            to_arrow.append(timed(lambda: recover(log).to_arrow()))
            to_dict.append(timed(lambda: recover(log).to_dict()))
    name = "one record per change, to a dict"
    return [
        rate("replay to Arrow, every change", setting.changes, decoded, name, plain),
        rate("replay and fold to Arrow", setting.changes, to_arrow, name, plain),
        rate("replay and fold to a dict", setting.changes, to_dict, name, plain),
    ]


def _replay(log: Log) -> int:
    """Every committed change, checked and decoded, none folded; returns how many there were."""
    with recover(log) as recovery, closing(log.kafka.reader(log.data_topic)) as reader:
        chunks = replay_chunks(reader, log.data_topic, recovery.plan.replay, log.change_schema, stall_timeout_s=60)
        return sum(batch.num_rows for batch in [chunk.changes for chunk in chunks])


def snapshot(setting: Setting) -> list[Figure]:
    """A materializer round over a tenth of W onto the keys, then recovery from that snapshot plus a tail."""
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


BENCHMARKS = {
    "append": append,
    "latency": latency,
    "replay": replay,
    "snapshot": snapshot,
    "rocksdb": rocksdb,
    "cache": cache,
    "spark-state": spark_state,
    "spark-changes": spark_changes,
    "spark-writes": spark_writes,
    "spark-batches": spark_batches,
    "spark-engine": spark_engine,
    "spark-first": spark_first,
}
