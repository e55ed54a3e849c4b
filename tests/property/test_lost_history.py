"""After any loss of acknowledged records and any later appends, every resumed client raises until the loss is accepted.

A client resumes from its memory; a person accepts the loss. After that the log is one history again.
"""

from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statelog.errors import Damaged, DataLoss
from statelog.log import Log, accept_ledger_loss
from statelog.log.producers import append_all
from statelog.producer import Writer
from statelog.recovery import Cursor, plan_changes, recover
from tests.support.rigs.log import TwinRig, key_in, twin_rig

pytestmark = pytest.mark.usefixtures("at_once")

_PARTITIONS = 2
_APPENDS = st.lists(
    st.sampled_from(["junk", "data", "barrier", "open a", "open b", "commit a", "commit b", "persist b"]), max_size=12
)


class Remembered:
    """The memory of readers and processes at one moment: each client goes on from it."""

    def __init__(self, rig: TwinRig) -> None:
        self.log = rig.open()
        cursor = recover(self.log).stream().apply(lambda _: None)
        self.cursor, self.place = cursor.to_json(), self.log.place

    def go_on(self, rig: TwinRig) -> dict[str, bool]:
        """Return for each client whether it raised a loss error."""
        with rig.open() as log:
            return {
                "resume": _is_told(lambda: recover(log, resume=Cursor.from_json(self.cursor)).stream().close()),
                "at least": _is_told(lambda: recover(log, at_least=self.place)),
                "changes": _is_told(lambda: plan_changes(log, seen=[self.place])),
                "the process": _is_told(lambda: recover(self.log)),
                "its writer": _is_told(lambda: Writer(self.log, "c", partitions=[1]).close()),
                "its commits": _is_told(self.log.commits),
            }


def _is_told(act: Any) -> bool:
    try:
        act()
    except Damaged as error:
        assert isinstance(error, DataLoss)
        return True
    return False


def _commit(log: Log, name: str, partition: int, value: bytes) -> None:
    with Writer(log, name, partitions=[partition]) as writer:
        writer.put(key_in(log, partition), value)
        writer.commit()


def _append(rig: TwinRig, kind: str) -> None:
    """Append as somebody; a refused client appends nothing."""
    with rig.open() as log, suppress(Damaged):
        match kind.split():
            case ["junk"]:
                with closing(log.kafka.producer()) as producer:
                    append_all(producer, log.ledger_topic, 0, b"junk", 1)
            case ["data"]:
                with closing(log.kafka.producer()) as producer:
                    for partition in range(_PARTITIONS):
                        append_all(producer, log.data_topic, partition, b"junk", 1)
            case ["barrier"]:
                log.barrier()
            case ["open", name]:
                Writer(log, name, partitions=["ab".index(name)]).close()
            case ["commit", name]:
                _commit(log, name, "ab".index(name), b"after")
            case _:
                with Writer(log, "b", partitions=[1]) as writer:
                    writer.put(key_in(log, 1), b"never")
                    writer.persist(writer.grant.base.id + 1).result()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(st.sampled_from("ab"), min_size=1, max_size=5),
    lost=st.integers(1, 8),
    data_lost=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    appends=_APPENDS,
)
@pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")
def test_who_remembers_is_told_until_a_person_accepts(
    before: list[str], lost: int, data_lost: tuple[int, int], appends: list[str]
) -> None:
    """Every client with a memory raises until a person accepts the loss: on twins, with the data cut anywhere.

    The loss reaches into the remembered records.
    """
    rig = twin_rig("log")
    rig.create(partitions=_PARTITIONS, key_groups=8).close()
    for number, name in enumerate(before):
        with rig.open() as log:
            _commit(log, name, "ab".index(name), b"%d" % number)
    known = Remembered(rig)
    cluster = rig.cluster
    end = max(1, known.place.position - lost)
    cluster.lose_tail("log.ledger", 0, end)
    for partition, count in enumerate(data_lost):
        there = cluster.log("log", partition)
        cluster.lose_tail("log", partition, max(_committed(rig, end).get(partition, 0), there.end - count))
    for kind in appends:
        _append(rig, kind)
        assert all(known.go_on(rig).values())
    assert all(known.go_on(rig).values())
    with rig.open() as log:
        # A client with a memory has told a person.
        accept_ledger_loss(log, reason="test", operator="ann", seen=[known.place])
    with rig.open() as log:
        assert recover(log).position > end
        _commit(log, "a", 0, b"new")
        assert recover(log).to_dict()[key_in(log, 0)] == b"new"


def _committed(rig: TwinRig, end: int) -> dict[int, int]:
    """Return the committed positions of the ledger's remaining records: a restore brings the data below, too."""
    with rig.open() as log, closing(log.replay()) as ledger:
        ledger.fold_to(end)
        return ledger.fold.freeze().committed_positions
