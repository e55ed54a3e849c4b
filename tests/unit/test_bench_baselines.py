"""The baselines of `make bench` are written as a good user of the library would, without needless work."""

import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.plain import CONSUMER, PRODUCER
from bench.processors import family_cpu_s, process_cpu_s
from bench.remote_store import Link, RemoteStore
from bench.rounds import merge_newest
from bench.workload import KINDS, USUAL_KEYS, batches, every_key
from statelog.kafka.config import client_config, consumer_properties, producer_properties

_OWN = client_config({"bootstrap.servers": "localhost:9092"})


def test_a_plain_consumer_never_waits_longer_than_ours() -> None:
    """A plain consumer waits no longer than a reader of statelog, so that a quick loop does not run dry."""
    ours = consumer_properties(_OWN)["fetch.queue.backoff.ms"]
    assert int(CONSUMER["fetch.queue.backoff.ms"]) <= int(ours)


def test_a_plain_producer_compresses_as_ours() -> None:
    """The baseline compresses as our producer does."""
    ours = producer_properties(_OWN)
    assert {name: ours[name] for name in ("compression.type", "acks")} == {
        name: PRODUCER[name] for name in ("compression.type", "acks")
    }


def test_a_far_file_is_read_to_its_end_by_one_request(tmp_path: Path) -> None:
    """A read of a remote file of any length is one request, and opening it none, as in an object store."""
    link, data = Link(request_s=0.0, bytes_s=1e12), os.urandom(1 << 20)
    store = RemoteStore(tmp_path, "log", link)
    store.put("runs/one", data)
    asked = link.requests
    with store.open("runs/one") as file:
        assert link.requests == asked
        assert file.read() == data
        assert link.requests == asked + 1
        file.seek(3)
        assert file.read(1 << 19) == data[3 : 3 + (1 << 19)]
        assert link.requests == asked + 2


def test_the_floor_of_a_merge_keeps_the_last_row_of_each_key() -> None:
    """A merge of sorted tables retains the last row of each key, and its result is sorted."""
    tables = [_sorted(every_key(500)[0], 0), _sorted(batches(200, 600)[0], 1), _sorted(batches(200, 700)[0], 2)]
    merged = merge_newest([tables[0].slice(1), *tables[1:]])
    newest: dict[bytes, int] = {}
    for table in (tables[0].slice(1), *tables[1:]):
        newest |= dict(zip(table.column("key").to_pylist(), table.column("of").to_pylist(), strict=True))
    assert dict(zip(merged.column("key").to_pylist(), merged.column("of").to_pylist(), strict=True)) == newest
    assert merged.column("key").to_pylist() == sorted(newest)


def _sorted(batch: pa.RecordBatch, of: int) -> pa.Table:
    """Return the keys of a batch, each once, with the number of their table."""
    keys = sorted(set(batch.column("key").to_pylist()))
    return pa.table({"key": pa.array(keys, pa.binary()), "of": [of] * len(keys)})


@pytest.mark.parametrize("keys", [2, 101, 40_000])
def test_few_keys_come_in_several_batches(keys: int) -> None:
    """Few keys still come in several batches, since benchmarks halve them, so that a run of any size ends."""
    found = every_key(keys)
    assert len(found) > 1
    assert sum(one.num_rows for one in found) == len({key for one in found for key in one.column("key").to_pylist()})


@pytest.mark.parametrize("kind", list(KINDS))
def test_keys_of_each_kind_differ_and_come_again(kind: str) -> None:
    """Each number has one key that no other number has. All keys of a kind have the same length."""
    ids = np.arange(20_000)
    keys = KINDS[kind](ids).to_pylist()
    assert len(set(keys)) == len(ids)
    assert len({len(key) for key in keys}) == 1
    assert KINDS[kind](ids[::-1]).to_pylist() == keys[::-1]


def test_other_kinds_differ_in_more_than_a_number_of_eight_bytes() -> None:
    """Keys of the other kinds differ in more than eight bytes, since the usual ones are the best case of sorting."""
    varied = {kind: _bytes_that_differ(KINDS[kind](np.arange(5000)).to_pylist()) for kind in KINDS}
    assert varied.pop(USUAL_KEYS) <= 8
    assert min(varied.values()) > 8


def _bytes_that_differ(keys: list[bytes]) -> int:
    return sum(any(one[at] != other[at] for one, other in pairwise(keys)) for at in range(len(keys[0])))


def test_the_processors_time_of_a_process_is_counted() -> None:
    """The processor time of a process of any name is counted, so that a benchmark reports the broker's."""
    before_s, family_before_s, until_s = process_cpu_s(os.getpid()), family_cpu_s(), time.process_time() + 0.1
    while time.process_time() < until_s:
        pass
    assert process_cpu_s(os.getpid()) > before_s
    assert family_cpu_s() > family_before_s
