"""Competing writers in the ledger: whom an Open would fence, and when they were last active."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from statelog.errors import LogInUse
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.schemas.ledger.fold import LedgerFold
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.ownership import RECENT_S, check_competitors
from statelog.testing.cluster import MemoryCluster
from tests.support.rigs.log import twin_rig

WRITTEN_S = 1_000_000.0
WHERE = {"log": "log", "root": "memory://twin", "kafka.bootstrap.servers": "memory:9092"}
QUERY = write_options({**WHERE, "writerId": "two", "partitions": "0"}, streaming=True)
PLAIN = write_options({**WHERE, "writerId": "two", "partitions": "0"}, streaming=False)


def committed_by_one(log: Log) -> None:
    """Commit as a query with the writer `one`."""
    with Writer(log, "one", partitions=[0]) as writer:
        writer.commit({"queryId": "q1", "batchId": 0})


def opened_by_one(log: Log) -> None:
    """Open, and die before the first commit."""
    Writer(log, "one", partitions=[0]).close()


def committed_by_python(log: Log) -> None:
    """Commit as a writer that is no job of Spark's."""
    with Writer(log, "one", partitions=[0]) as writer:
        writer.commit()


def committed_and_opened_again(log: Log) -> None:
    """Commit, and restart the query without a commit."""
    committed_by_one(log)
    opened_by_one(log)


def committed_on_another(log: Log) -> None:
    """Commit to another partition."""
    with Writer(log, "one", partitions=[1]) as writer:
        writer.commit({"queryId": "q1", "batchId": 0})


def fenced(log: Log) -> None:
    """Commit, and let another writer take over."""
    committed_by_one(log)
    Writer(log, "three").close()


def ended_by_us(log: Log) -> None:
    """Commit, and take the partition ourselves."""
    committed_by_one(log)
    Writer(log, "two", partitions=[0]).close()


@pytest.mark.parametrize("options", [QUERY, PLAIN], ids=["query", "plain"])
@pytest.mark.parametrize(
    ("history", "is_rival"),
    [
        (committed_by_one, True),
        (committed_and_opened_again, True),
        (opened_by_one, False),
        (committed_by_python, False),
        (committed_on_another, False),
        (fenced, False),
        (ended_by_us, False),
    ],
)
def test_a_query_of_another_writer_that_has_committed_bars_others(
    history: Callable[[Log], None], is_rival: bool, options: WriteOptions
) -> None:
    """A recent commit of another writer's query bars writers of its partitions, except with `takeOver`."""
    with twin_rig("log", cluster=MemoryCluster(clock=lambda: WRITTEN_S)).create(partitions=2, key_groups=4) as log:
        history(log)
        fold = LedgerFold(log.descriptor.identity, log.history.read().state)
        if is_rival:
            with pytest.raises(LogInUse) as caught:
                check_competitors(log, fold, options, WRITTEN_S + 60)
            assert (caught.value.facts["writer"], caught.value.facts["query_id"]) == ("one", "q1")
            assert (caught.value.facts["partitions"], caught.value.facts["last_seen_s"]) == ("0", 60)
        else:
            check_competitors(log, fold, options, WRITTEN_S + 60)
        check_competitors(log, fold, options, WRITTEN_S + RECENT_S + 1)
        check_competitors(log, fold, replace(options, take_over=True), WRITTEN_S + 60)


def test_a_rival_whose_age_nobody_knows_may_live() -> None:
    """A competing writer without broker timestamps counts as alive, since it would be fenced silently."""
    rig = twin_rig("log", cluster=MemoryCluster(clock=lambda: WRITTEN_S))
    with rig.create(partitions=2, key_groups=4) as log:
        rig.set_topic_config(log.ledger_topic, {"message.timestamp.type": "CreateTime"})
        committed_by_one(log)
        fold = LedgerFold(log.descriptor.identity, log.history.read().state)
        with pytest.raises(LogInUse):
            check_competitors(log, fold, QUERY, WRITTEN_S + 2 * RECENT_S)
