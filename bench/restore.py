"""Restores, each with its floor: the least work of the same libraries.

Snapshot and tail to a table: pyarrow reads the snapshot's runs, without checking or merging. A log to a dict: the
client reads the same records, and two existing lists become a dict. Small commits without a snapshot: the client reads
the same records. A table is also opened on these commits. The baseline of both is a plain program, which reads a record
for each change into a dict.

Each floor leaves out work that every restore needs, so a second floor does that work, too. It knows the results of
searches in advance: the rows of the runs that the tail replaces, the newest rows, the start of a chunk's batch. A third
floor, of a dict, finds the newest rows by pyarrow: it groups the rows of each partition by their keys.
"""

import gc
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from bench.figures import Figure, Took, rate, timed
from bench.logs import IN_LEDGER, bench_log, bulk_append, passed_over, read_records
from bench.plain import plain_topic
from bench.setting import Setting
from bench.tables import open_table
from bench.workload import batches, every_key, pairs
from statelog.kafka.port import Record
from statelog.log import Log
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.pending import Pending
from statelog.recovery import recover
from statelog.schemas.changes.chunk import decode_head
from statelog.schemas.ledger.records import Commit, decode
from statelog.schemas.ledger.state import LastCommit
from statelog.tables import TableSettings

__all__ = ["restore"]

_PLAIN = "one record per change, to a dict"
_CHECKED = "client, hash, checked batch of each chunk, one new dict"
_FOUND = "the same, its newest rows found by pyarrow"
_LARGER = 10
_SMALL = {100: 0.1, 5: 0.05}
"""The share of the workload that is committed, by the changes of a commit."""
_UNDER_WAY = 50


def restore(setting: Setting) -> list[Figure]:
    """Measure restores to Arrow, from ten times the keys and a tail of a tenth; to a dict, from W; of small commits."""
    return [*_to_arrow(setting), *_to_dict(setting), *chain(*(_small_commits(setting, size) for size in _SMALL))]


def _to_arrow(setting: Setting) -> list[Figure]:
    keys, tail = setting.keys * _LARGER, batches(setting.keys, setting.keys * _LARGER)
    with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
        settings = MaterializerSettings(scratch=Path(scratch))
        all_keys = every_key(keys)
        for first in range(0, len(all_keys), _LARGER):
            bulk_append(log, all_keys[first : first + _LARGER], commits=1)
        del all_keys
        while isinstance(run_round(log, settings), CompletedRound):
            continue  # A large state takes several rounds.
        bulk_append(log, tail, commits=5)
        with recover(log) as recovery:
            files = [setting.root / log.name / part.run.path for part in recovery.plan.runs]
        replaced = pa.concat_arrays([batch.column("key") for batch in tail])
        is_left = pc.invert(pc.is_in(_read(files).column("key"), value_set=replaced))

        def without_replaced() -> pa.Table:
            passed_over(read_records(log))
            return _read(files).filter(is_left)

        ours, floor, least = _in_turns(setting, lambda: recover(log).to_arrow(), lambda: _read(files), without_replaced)
    work, count = "restore to Arrow, 10 x the keys and a tail", keys + setting.keys
    return [
        *_rates(work, count, ours, "read_table less what the tail replaces, and the client", count, least),
        *_rates(work, count, ours, "read_table of the runs", keys, floor),
    ]


def _read(files: list[Path]) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in files])


def _to_dict(setting: Setting) -> list[Figure]:
    with bench_log(setting.bootstrap, setting.root) as log:
        bulk_append(log, batches(setting.changes, setting.keys), commits=10)
        state = recover(log).to_dict()
        keys, values = list(state), list(state.values())
        del state

        def floor() -> dict[bytes, bytes]:
            passed_over(read_records(log))
            return dict(zip(keys, values, strict=True))

        newest = _newest(log)

        def of_new_bytes() -> dict[bytes, bytes]:
            passed_over(read_records(log))
            return _dict_of(newest)

        ours, least, anew, checked, found = _in_turns(
            setting, lambda: recover(log).to_dict(), floor, of_new_bytes, _checked(log, newest), _found(log)
        )
    work, count = "restore to a dict", setting.changes
    return [
        *_rates(work, count, ours, _CHECKED, count, checked),
        *_rates(work, count, ours, _FOUND, count, found),
        *_rates(work, count, ours, "client and one dict of new keys and values", count, anew),
        *_rates(work, count, ours, "client and one dict", count, least),
    ]


def _small_commits(setting: Setting, size: int) -> list[Figure]:
    few = batches(setting.scaled(_SMALL[size]), setting.keys, size)
    with plain_topic(setting.bootstrap) as topic, bench_log(setting.bootstrap, setting.root) as log:
        topic.produce(pairs(few))
        _commit_each(setting, log, few)
        count = sum(batch.num_rows for batch in few)
        ours, table, plain, floor, checked, found = _in_turns(
            setting,
            lambda: recover(log).to_dict(),
            lambda: _open(setting, log),
            lambda: topic.replay(count),
            lambda: passed_over(read_records(log)),
            _checked(log, _newest(log)),
            _found(log),
        )
    commits = f"commits of {size} changes"
    work = f"restore to a dict, {commits}"
    return [
        *_rates(work, count, ours, _PLAIN, count, plain),
        *_rates(work, count, ours, _CHECKED, count, checked),
        *_rates(work, count, ours, _FOUND, count, found),
        *_rates(work, count, ours, "client alone", count, floor),
        *_rates(f"open of a table, {commits}", count, table, _PLAIN, count, plain),
    ]


def _commit_each(setting: Setting, log: Log, few: list[pa.RecordBatch]) -> None:
    """Commit each batch separately, with some pending commits."""
    under_way: deque[Pending[LastCommit]] = deque()
    with open_table(setting, log.name, "dict", setting.root) as state:
        for number, batch in enumerate(few):
            for key, value in pairs([batch]):
                state.put(key, value)
            under_way.append(state.commit_async({"offset": number}))
            if len(under_way) > _UNDER_WAY:
                under_way.popleft().result()


def _open(setting: Setting, log: Log) -> None:
    open_table(setting, log.name, "dict", setting.root, settings=TableSettings(loading="first")).close()


def _newest(log: Log) -> list[pa.RecordBatch]:
    """Return keys and values of a log's state."""
    return recover(log).to_arrow().select(["key", "value"]).to_batches()


def _dict_of(newest: list[pa.RecordBatch]) -> dict[bytes, bytes]:
    made: dict[bytes, bytes] = {}
    for batch in newest:
        made.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return made


def _checked(log: Log, newest: list[pa.RecordBatch]) -> Callable[[], object]:
    """Return the work that every restore to a dict needs.

    The client reads, hashes each chunk, decodes Arrow's batch and checks its offsets, and fills a dict of new objects.
    """
    checked = _checked_batches(log)

    def work() -> dict[bytes, bytes]:
        for _ in checked():
            pass
        return _dict_of(newest)

    return work


def _found(log: Log) -> Callable[[], object]:
    checked = _checked_batches(log)

    def work() -> dict[bytes, bytes]:
        partitions: dict[int, list[pa.RecordBatch]] = {}
        for partition, batch in checked():
            partitions.setdefault(partition, []).append(batch)
        state: dict[bytes, bytes] = {}
        while partitions:  # Each is freed before the next one is taken.
            state |= _dict_of(_newest_of(pa.Table.from_batches(partitions.popitem()[1])))
        return state

    return work


def _newest_of(changes: pa.Table) -> list[pa.RecordBatch]:
    rows = pa.table({"key": changes.column("key"), "row": np.arange(changes.num_rows)})
    last = rows.group_by("key", use_threads=False).aggregate([("row", "max")]).column("row_max")
    return changes.take(last).select(["key", "value"]).to_batches()


def _checked_batches(log: Log) -> Callable[[], Iterator[tuple[int, pa.RecordBatch]]]:
    begins = {(one.partition, one.offset): _batch_at(one) for one in read_records(log)}
    schema = log.change_schema(0)

    def batches_of_chunks() -> Iterator[tuple[int, pa.RecordBatch]]:
        for one in read_records(log):
            xxhash.xxh3_64_intdigest(one.value)
            at = begins[one.partition, one.offset]
            if at is None:
                continue
            message = pa.ipc.read_message(pa.py_buffer(one.value).slice(at))
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            yield one.partition, batch

    return batches_of_chunks


def _batch_at(record: Record) -> int | None:
    """Return where the changes of a chunk begin, or those of a commit that carries them; None for others."""
    if record.partition == IN_LEDGER:
        commit = decode(record.value)
        return commit.batch_start if isinstance(commit, Commit) and commit.inline else None
    decoded = decode_head(record.value)
    assert decoded is not None, "a log of the benchmark's own has chunks and nothing else"
    return decoded[1] if decoded[1] < len(record.value) else None


def _in_turns(setting: Setting, *works: Callable[[], object]) -> list[list[Took]]:
    found = [list[Took]() for _ in works]
    for _ in range(setting.rounds):
        for work, took in zip(works, found, strict=True):
            gc.collect()
            took.append(timed(work))
    return found


def _rates(
    name: str, count: int, ours: list[Took], floor_name: str, floor_count: int, floor: list[Took]
) -> list[Figure]:
    """Return rates by the clock, and by CPU time, which other load on the machine affects less."""
    by_clock = rate(name, count, ours, floor_name, [(floor_count, one) for one in floor])
    of_floor = [(floor_count, one.cpu_s) for one in floor]
    by_cpu = rate(f"{name}, by CPU", count, [one.cpu_s for one in ours], floor_name, of_floor)
    return [by_clock, replace(by_cpu, unit="M changes/CPU s")]
