"""The requests that S3 gets: its client could send more than ours, and each takes time and is billed."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from docker.errors import DockerException

from bench.slow_store import SlowStore, slow_store
from statelog.log import Log, LogOptions
from statelog.materializer.cleanup import VerifiedRuns
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round, run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.store.fsspec import open_store
from statelog.store.port import Store
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.log import settings_for, where_at


@pytest.fixture(scope="module")
def s3() -> Iterator[SlowStore]:
    """Yield a service and its proxy; skip, with docker's words, where there is none."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(slow_store())
        except DockerException as error:
            pytest.skip(f"needs Docker for an S3 service: {error}")
        yield found


@pytest.fixture
def store(s3: SlowStore) -> Store:
    """Return one log's directory; earlier requests are forgotten."""
    s3.slow_down(0.0)
    return open_store(s3.root, "requests", s3.storage_options)


def test_each_call_is_one_request(s3: SlowStore, store: Store) -> None:
    """A small file is read, and a directory listed, by one request each; so is a range, and opening needs none."""
    store.put("leases/a", b"0123456789")
    assert store.read("leases/a") == b"0123456789"
    assert [info.path for info in store.list("leases/")] == ["leases/a"]
    assert list(store.list("runs/")) == []
    with store.open("leases/a") as file:
        file.seek(3)
        assert file.read(4) == b"3456"
        assert file.read() == b"789"
    assert s3.asked == Counter(PUT=1, GET=3, LIST=2)


def test_a_file_of_several_megabytes_is_read_and_written_whole(s3: SlowStore, store: Store, tmp_path: Path) -> None:
    """The proxy forwards exactly the sent bytes, so that it counts the requests that were made."""
    (tmp_path / "a").write_bytes(data := bytes(range(256)) * 30_000)
    store.upload(tmp_path / "a", "runs/a")
    assert store.read("runs/a") == data
    assert s3.asked == Counter(PUT=1, GET=1)


def test_a_run_is_read_by_megabytes(s3: SlowStore, tmp_path: Path) -> None:
    """A recovery reads a run of a few megabytes by one request, with its footer, and never asks the store's time."""
    kafka = MemoryKafka(cluster=MemoryCluster())
    where = where_at(kafka, s3.root, storage_options=s3.storage_options)
    with Log.create("runs", where, LogOptions(partitions=1)) as log:
        with Writer(log, "writer") as writer:
            keys = pa.array([b"%06d" % number for number in range(100_000)])
            writer.append_batch(pa.RecordBatch.from_arrays([keys, keys], names=["key", "value"]))
            writer.commit()
        run_round(log, settings_for(tmp_path))
        with recover(log) as recovery:
            (part,) = recovery.plan.runs
            assert len(part.row_groups) > 1
            s3.slow_down(0.0)
            assert len(recovery.to_dict()) == 100_000
        assert s3.asked == Counter(PUT=1, GET=2, DELETE=1)  # Lease; manifest, again behind it; run; lease.


def test_a_round_asks_what_it_has_to(s3: SlowStore, tmp_path: Path) -> None:
    """A round, like a daemon's with remembered proofs, sends listings, its writes and its reads back.

    No request grows with the retained files, and none reads a clock: its writes carry the time.
    """
    kafka, verified = MemoryKafka(cluster=MemoryCluster()), VerifiedRuns()
    where = where_at(kafka, s3.root, storage_options=s3.storage_options)
    with Log.create("rounds", where, LogOptions(partitions=1)) as log:
        with Writer(log, "writer") as writer:
            for number in range(6):
                writer.put(b"a", b"%d" % number)
                writer.commit()
                s3.slow_down(0.0)
                outcome = Round(log, settings_for(tmp_path, fanout=100), verified=verified).run()
                assert isinstance(outcome, CompletedRound)
        assert s3.asked == Counter(LIST=9, GET=5, PUT=2, DELETE=1)
