"""A log whose store is a real HDFS: rounds, recovery, rights, and what a root of the wrong protocol is told."""

import uuid
from pathlib import Path

import pytest

from statelog.errors import ConfigError, StatelogError
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.storage.log.log import Log
from statelog.storage.log.where import LogOptions, Where
from statelog.storage.store.fsspec import open_store
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.log import UNSAFE, settings_for
from tests.support.services.hdfs import Hdfs

pytestmark = pytest.mark.xdist_group("tests/contract/test_store_contract.py")  # Its process has an HDFS already.


def test_a_log_lives_on_hdfs(hdfs: Hdfs, tmp_path: Path) -> None:
    """Made, written, rolled up with merges and cleanup, and recovered, all of it over WebHDFS."""
    cluster, root = MemoryCluster(), hdfs.root(f"logs/{uuid.uuid4().hex}")
    kafka = MemoryKafka(cluster=cluster)
    model: dict[object, object] = {}
    with Log.create(
        "x", Where(kafka, root, allow_unsafe=UNSAFE, replication_factor=1), LogOptions(partitions=2)
    ) as log:
        for number in range(5):
            with Writer(log, "writer") as writer:
                writer.put(b"k%d" % number, b"v" * 2000)
                model[b"k%d" % number] = b"v" * 2000
                writer.commit(checkpoint_id=number + 1)
            outcome = run_round(log, settings_for(tmp_path, fanout=2))
            assert isinstance(outcome, CompletedRound)
            assert not outcome.cleanup.held_back
        assert log.manifests.numbers() == [4, 5]
        assert recover(log).to_dict() == model
        paths = {info.path for info in log.store.list()}
        assert not [path for path in paths if path.startswith("leases/")]


def test_another_user_is_told_of_the_right_that_is_missing(hdfs: Hdfs) -> None:
    """What HDFS refuses to a user is told with that user's name, in one line, and nothing is written."""
    root = f"private-{uuid.uuid4().hex}"
    open_store(hdfs.root(root), "x").put_if_absent("descriptor.avro", b"x")
    store = open_store(hdfs.root(root, user="mallory"), "x")
    with pytest.raises(StatelogError) as caught:
        store.put_if_absent("manifests/1.avro", b"x")
    assert "user=mallory" in caught.value.message
    assert "\n" not in str(caught.value)
    assert [info.path for info in store.list()] == ["descriptor.avro"]


@pytest.mark.parametrize("root", ["hdfs://name-node:8020/state", "webhdfs://name-node/state"])
def test_a_root_of_hdfs_own_protocol_is_refused(root: str) -> None:
    """The refusal says how the same place is written."""
    with pytest.raises(ConfigError) as caught:
        open_store(root, "x")
    assert "webhdfs://" in caught.value.hint
