"""The identity check of every reader: a byte mirror of the log, with its offsets and other ids, is soon refused.

On the twins and on a real broker.
"""

import time
from collections.abc import Callable

import pytest

from statelog.environment import Environment
from statelog.errors import BeyondEnd, BrokerUnavailable, IdentityChanged, NotFound
from statelog.history import IDENTIFY_S
from statelog.log import Log
from statelog.materializer import tail_now
from statelog.producer.writer import Writer
from statelog.recovery import RecoverySettings, recover
from statelog.recovery.settings import RecoveryTuning
from tests.support.faults.mirror import mirror
from tests.support.rigs.log import LogRig, TwinRig, twin_rig
from tests.support.rigs.table import TableRig
from tests.support.told import told
from tests.support.waiting import wait_for

WAIT_S = 60.0


def fail_over(rig: LogRig, name: str) -> None:
    """Let a mirror's topics answer for both topics of the log from now on."""
    kafka = rig.kafka()
    for topic in (name, f"{name}.ledger"):
        mirror(kafka, topic)
    kafka.close()


def awaited(what: Callable[[], object]) -> None:
    """Repeat the call until it raises."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        what()
        time.sleep(0.2)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the cluster's identity every second, and not every minute."""
    monkeypatch.setattr("statelog.history.history.IDENTIFY_S", 1.0)


@pytest.mark.usefixtures("often")
def test_a_standby_notices_that_another_cluster_answers(rig: LogRig) -> None:
    """A standby notices that another cluster answers: only the ids differ there, and every read raises from then on."""
    tables = TableRig(rig, None)
    with tables.open() as table:
        table[b"k"] = b"v"
        table.commit()
        standby = tables.standby()
        assert standby.refresh()
    fail_over(rig, rig.name)
    with told("has failed"), pytest.raises(IdentityChanged):
        awaited(standby.refresh)
    with pytest.raises(IdentityChanged):
        standby.get(b"k")
    standby.close()


@pytest.fixture
def twin() -> TwinRig:
    """Return a log in memory, with a commit."""
    rig = twin_rig("l")
    with rig.create() as log, Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        writer.commit(checkpoint_id=1)
    return rig


@pytest.mark.usefixtures("often")
def test_a_follower_notices_that_another_cluster_answers(twin: TwinRig) -> None:
    """A follower notices that another cluster answers, a quiet one as well: else it would be silent for ever."""
    settings = RecoverySettings(_tuning=RecoveryTuning(stall_timeout_s=WAIT_S))
    with twin.open() as log, recover(log, settings=settings).follow(poll_s=0.01) as stream:
        while stream.take(0.1) is not None:
            pass
        twin.cluster.cluster_id = "another"
        with pytest.raises(IdentityChanged, match="another"):
            awaited(lambda: stream.take(0.1))


def test_a_follower_asks_once_a_minute(twin: TwinRig) -> None:
    """A follower checks the cluster's identity once a minute, not at every poll."""
    now_s = [100.0]
    tables = TableRig(twin, None)
    with tables.standby(writer="w", environment=Environment(clock=lambda: now_s[0])) as standby:
        twin.cluster.cluster_id = "another"
        now_s[0] += IDENTIFY_S * 0.9
        assert standby.refresh()
        now_s[0] += IDENTIFY_S * 0.2
        with told("has failed"), pytest.raises(IdentityChanged):
            standby.refresh()


def test_a_writer_is_told_nothing_by_another_cluster(twin: TwinRig) -> None:
    """A writer accepts no answer of another cluster: its ledger has the same last record, so only the ids differ."""
    now_s = [100.0]
    environment = Environment(clock=lambda: now_s[0])
    with environment.run(twin.open) as log:
        writer = environment.run(Writer, log, "w")
        writer.commit()
        twin.cluster.cluster_id = "another"
        now_s[0] += IDENTIFY_S
        with pytest.raises(IdentityChanged):
            writer.commit()
        writer.close()


@pytest.mark.parametrize("ask", [Log.commits, Log.describe, tail_now])
def test_a_log_that_was_opened_long_ago_asks_who_answers(twin: TwinRig, ask: Callable[[Log], object]) -> None:
    """A log that was opened long ago checks the identity of the cluster, which may hold the same records."""
    with twin.open() as log:
        log.recheck_s = 0.0
        ask(log)
        twin.cluster.cluster_id = "another"
        with pytest.raises(IdentityChanged):
            ask(log)


def test_a_log_that_was_made_anew_is_no_lost_tail(rig: LogRig) -> None:
    """A re-created log has a shorter ledger than the fold: a reader reports its identity, not lost records."""
    with rig.create() as log:
        with Writer(log, "w") as writer:
            for i in (1, 2, 3):
                writer.commit(checkpoint_id=i)
        log.history.read()
        Log.delete(rig.name, rig.where())

        def is_led() -> bool:
            """Return whether a leader answers, which stops a moment later than the cluster stops naming its topic."""
            try:
                return bool(log.kafka.offsets(log.ledger_topic, [0]))
            except NotFound:
                return False

        wait_for(lambda: not is_led())
        with pytest.raises(NotFound, match="it was deleted"):
            log.history.read()
        rig.create().close()
        with pytest.raises(IdentityChanged):
            log.history.read()


def test_a_lost_tail_is_told_while_nobody_says_who_answers(twin: TwinRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A detected loss is never hidden behind an unanswered identity check."""
    with twin.open() as log:
        log.history.read()
        twin.cluster.lose_tail(log.ledger_topic, 0, 1)

        def nobody_says(_max_age_s: float) -> None:
            raise BrokerUnavailable("asleep")

        monkeypatch.setattr(log, "_identify", nobody_says)
        with pytest.raises(BeyondEnd):
            log.history.read()
