"""Standbys of a worker for partitions that other workers own."""

import os
import signal
import threading

import pytest

import statelog
from statelog.errors import BrokerUnavailable
from statelog.producer.guard import Life
from statelog.tables import Standby, Table
from statelog.tables.standbys.standby import StandbyPool
from tests.support.rigs.log import TwinRig, twin_rig
from tests.support.told import told
from tests.support.waiting import wait_for


@pytest.fixture
def rig() -> TwinRig:
    """Return a log of three key groups, the first two of which hold a committed key."""
    rig = twin_rig("log")
    rig.create(partitions=3, key_groups=3, hash_rule="caller").close()
    for partition in range(2):
        with statelog.table("log", rig.where(), key_group=partition) as table:
            table[b"k"] = b"%d" % partition
            table.commit({"offset": 7 + partition})
    return rig


def _standby(rig: TwinRig, partition: int) -> Standby[bytes, bytes]:
    return statelog.standby("log", rig.where(), key_group=partition, poll_s=0.01)


def test_kept_and_promoted(rig: TwinRig) -> None:
    """Standbys are made once the group is stable, for wanted partitions that are not owned, and become their tables."""
    now_s = [0.0]
    pool = StandbyPool([0, 1, 2], lambda partition: _standby(rig, partition), lambda: now_s[0])
    pool.maintain(lambda _: False)
    pool.decided()
    pool.maintain(lambda _: False)
    assert not pool.open
    now_s[0] = 5.0
    pool.maintain(lambda partition: partition == 2)
    wait_for(lambda: len(pool.open) == 2)
    assert [standby[b"k"] for standby in pool.open.values()] == [b"0", b"1"]
    assert pool.promote(2) is None
    table = pool.promote(1)
    assert table is not None
    assert (dict(table.items()), table.progress) == ({b"k": b"1"}, {"offset": 8})
    table[b"k"] = b"2"
    table.commit({"offset": 9})
    assert list(pool.open) == [0]
    table.close()
    now_s[0] = 100.0
    pool.maintain(lambda partition: partition == 2)
    wait_for(lambda: len(pool.open) == 2)
    assert pool.open[1][b"k"] == b"2"
    pool.close()
    assert not pool.open


def test_what_does_not_open(rig: TwinRig) -> None:
    """A standby that fails to open is reported and retried. Meanwhile the table opens without it."""
    now_s, is_broken, asked = [0.0], [True], list[int]()

    def opened(partition: int) -> Standby[bytes, bytes]:
        asked.append(partition)
        if is_broken[0]:
            raise BrokerUnavailable("no answer")
        return _standby(rig, partition)

    pool = StandbyPool([0], opened, lambda: now_s[0])
    pool.decided()
    for turn in (1, 2):
        now_s[0] = 20.0 * turn
        pool.maintain(lambda _: False)
        wait_for(lambda: len(asked) == turn)  # noqa: B023 - it is over before the next turn
        with told("no answer"):
            assert pool.promote(0) is None
    is_broken[0] = False
    now_s[0] = 60.0
    pool.maintain(lambda _: False)
    wait_for(lambda: len(pool.open) == 1)
    pool.close()


def test_an_end_that_is_interrupted(rig: TwinRig) -> None:
    """Ctrl-C while closing waits for an opening standby: all are closed, that one once it is open."""
    now_s, may_go_on, made = [0.0], threading.Event(), list[Standby[bytes, bytes]]()

    def opened(partition: int) -> Standby[bytes, bytes]:
        if partition == 1:
            may_go_on.wait(60)
        made.append(_standby(rig, partition))
        return made[-1]

    pool = StandbyPool([0, 1], opened, lambda: now_s[0])
    pool.decided()
    now_s[0] = 10.0
    pool.maintain(lambda _: False)
    wait_for(lambda: len(pool.open) == 1)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    assert made[0].life is Life.CLOSED
    may_go_on.set()
    wait_for(lambda: len(made) == 2 and made[1].life is Life.CLOSED)


def test_promoted_while_it_ends(rig: TwinRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby promoted while its pool closes belongs to the promoting thread."""
    now_s = [0.0]
    pool = StandbyPool([0], lambda partition: _standby(rig, partition), lambda: now_s[0])
    pool.decided()
    now_s[0] = 10.0
    pool.maintain(lambda _: False)
    wait_for(lambda: len(pool.open) == 1)
    promote = Standby.promote

    def promote_and_close(standby: Standby[bytes, bytes]) -> Table[bytes, bytes]:
        table = promote(standby)
        pool.close()
        return table

    monkeypatch.setattr(Standby, "promote", promote_and_close)
    table = pool.promote(0)
    assert table is not None
    assert dict(table.items()) == {b"k": b"0"}
    table.close()
