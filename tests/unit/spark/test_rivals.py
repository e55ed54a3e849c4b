"""Rivals as the ledger tells of them: whom an Open would fence, and when they were last heard of."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from statelog.environment import Environment
from statelog.errors import LogInUse
from statelog.producer.epoch import open_epoch
from statelog.schemas.ledger.handle import Checkpoint
from statelog.schemas.ledger.state import LastCommit, LiveEpoch
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.ownership import RECENT_S, Rival, check_ownership, find_rivals
from statelog.spark.query_run import run_tag, sibling_nonce
from statelog.storage.log.log import Log
from statelog.testing.cluster import MemoryCluster
from tests.support.rigs.log import twin_rig

OPENED_S = 1_000_000.0
WHERE = {"log": "log", "root": "memory://twin", "kafka.bootstrap.servers": "memory:9092"}
ONE = write_options({**WHERE, "writerId": "one", "queryId": "q1", "checkpointLocation": "/one"}, streaming=True)
TWO = write_options({**WHERE, "writerId": "two", "queryId": "q2", "checkpointLocation": "/two"}, streaming=True)


PLAIN = write_options({**WHERE, "writerId": "two"}, streaming=False)


@contextmanager
def opened_by_one(*, stamped: bool) -> Generator[Log]:
    """A log that a query has opened, on brokers that stamp what they append, or not."""
    rig = twin_rig("log", cluster=MemoryCluster(clock=lambda: OPENED_S))
    with rig.create() as log:
        if not stamped:
            rig.set_topic_config(log.ledger_topic, {"message.timestamp.type": "CreateTime"})
        Environment(nonce=lambda: sibling_nonce(run_tag(ONE, log.descriptor.identity))).run(
            open_epoch, log, "one"
        ).close()
        yield log


def seen_by_two(log: Log, now_s: float) -> list[Rival]:
    """What another query finds."""
    ledger = log.ledger.newest_client()
    ledger.fold_end()
    ledger.close()
    return find_rivals(log, ledger.fold, TWO, now_s)


def test_the_age_of_a_rival_is_that_of_its_last_record() -> None:
    """By the brokers' stamps; one that was silent for long stands in nobody's way."""
    with opened_by_one(stamped=True) as log:
        (rival,) = seen_by_two(log, OPENED_S + 60)
        assert rival.age_s == 60
        with pytest.raises(LogInUse):
            check_ownership(TWO, "q2", run_tag(TWO, log.descriptor.identity), None, [rival])
        check_ownership(
            TWO, "q2", run_tag(TWO, log.descriptor.identity), None, seen_by_two(log, OPENED_S + RECENT_S + 1)
        )


def test_a_rival_whose_age_nobody_knows_may_live() -> None:
    """Without the brokers' stamps it is not taken for dead: it would be fenced in silence."""
    with opened_by_one(stamped=False) as log:
        rivals = seen_by_two(log, OPENED_S + 60)
        with pytest.raises(LogInUse):
            check_ownership(TWO, "q2", run_tag(TWO, log.descriptor.identity), None, rivals)


@pytest.mark.parametrize(
    ("writer", "opened_by", "owner", "take_over_from", "is_ours"),
    [
        ("two", TWO, None, None, True),
        ("two", ONE, None, None, True),
        ("two", PLAIN, None, None, False),
        ("two", ONE, "q2", None, True),
        ("two", TWO, "q1", None, False),
        ("two", ONE, "q1", "q1", True),
        ("one", ONE, "q2", "q2", False),
    ],
)
def test_a_rival_is_ours_by_its_commits_else_by_what_opened_it(
    writer: str, opened_by: WriteOptions, owner: str | None, take_over_from: str | None, is_ours: bool
) -> None:
    """Of another name it never is; with takeOverFrom the query is, too, that the option names. A query that has not
    committed, of a writer that never has, is a first try: nobody's rows are lost with it.
    """
    with twin_rig("log").create() as log:
        identity = log.descriptor.identity
    live = LiveEpoch(1, writer, sibling_nonce(run_tag(opened_by, identity)), frozenset({0}))
    last = LastCommit(Checkpoint(1, live.nonce), 2, {"queryId": owner}) if owner else None
    rival = Rival(live, 60.0, has_committed=last is not None, last=last)
    options = replace(TWO, take_over_from=take_over_from)
    with nullcontext() if is_ours else pytest.raises(LogInUse):
        check_ownership(options, "q2", run_tag(options, identity), None, [rival])
