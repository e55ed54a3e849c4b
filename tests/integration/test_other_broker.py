"""A broker that nobody here, nor Apache, wrote: kfake, of franz-go.

A log is made, written, rolled up, truncated and recovered on it, and fences writers. It differs from Apache's broker.
It refuses to delete records below its log start, where Apache's does nothing. It takes only batches of leader epoch -1
(the program in the services' folder sets it). It answers an empty fetch with a null, which librdkafka logs as an error
and asks again. It takes message.timestamp.type=LogAppendTime, but its records carry the senders' times.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import statelog
from statelog.errors import Fenced
from statelog.materializer import CompletedRound, run_round
from statelog.operate.kafka_needs import Need
from statelog.producer import Writer
from statelog.recovery import recover
from tests.support.rigs.log import LogRig, ports_closed, real_rig, settings_for
from tests.support.rigs.shell import Shell, doctors_topics
from tests.support.services.emulators import Unobtainable, open_kfake


@pytest.fixture(scope="module")
def kfake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield host and port of the broker."""
    with ExitStack() as stack:
        try:
            server = open_kfake(stack, tmp_path_factory.mktemp("kfake"))
        except Unobtainable as error:
            pytest.skip(f"no other broker is tested in this run: {error}")
        yield server


@pytest.fixture
def rig(kfake: str, log_name: str, tmp_path: Path) -> Iterator[LogRig]:
    """Yield a place for one log there."""
    with ports_closed(real_rig(log_name, kfake, tmp_path / "root")) as made:
        yield made


@pytest.mark.usefixtures("busy_ledger")
def test_a_log_is_written_rolled_up_and_recovered(rig: LogRig, tmp_path: Path) -> None:
    """The state is the model after each round, and both topics are truncated."""
    model: dict[object, object] = {}
    with rig.create() as log:
        for number in range(5):
            with Writer(log, "w") as writer:
                for key in (b"k%d" % number, b"each"):
                    writer.put(key, b"%d" % number)
                    model[key] = b"%d" % number
                assert writer.commit({"offset": number}).metadata == {"offset": number}
            outcome = run_round(log, settings_for(tmp_path))
            assert isinstance(outcome, CompletedRound)
            assert not outcome.cleanup.held_back
            assert recover(log).to_dict() == model
        described = log.describe()
        assert described.ledger_offsets.start > 0
        assert any(offsets.start > 0 for offsets in described.data_offsets.values())
    assert rig.state() == model


def test_a_second_writer_fences_the_first(rig: LogRig) -> None:
    """The first writer's persisted records are never part of history after a second one fenced it."""
    with rig.create() as log:
        first = Writer(log, "w")
        first.put(b"k", b"first")
        handle = first.persist().result()
        with Writer(log, "w") as second:
            second.put(b"k", b"second")
            second.commit()
        with pytest.raises(Fenced):
            first.confirm(handle)
        assert recover(log).to_dict() == {b"k": b"second"}


def test_a_doctor_is_content(kfake: str, tmp_path: Path) -> None:
    """A doctor finds only the waived checks, the records' times and no transactions, and leaves no topic."""
    shell = Shell(kfake, tmp_path / "root", "unused")
    found = {one["name"]: one for one in shell.json("doctor", "--kafka")["findings"]}
    notes = {name: one["severity"] for name, one in found.items() if one["severity"] != "ok"}
    assert notes == dict.fromkeys((Need.REPLICAS, Need.CLOCK, Need.TRANSACTIONS), "note")
    assert doctors_topics(kfake) == []


@pytest.mark.parametrize("backend", ["dict", "rocksdb"])
def test_a_table_comes_back(rig: LogRig, backend: str, tmp_path: Path) -> None:
    """A table comes back with its state and progress, also in a process without its directory."""
    rig.create().close()
    kept: dict[str, Any] = {} if backend == "dict" else {"backend": "rocksdb", "directory": tmp_path / "local"}
    for number in range(3):
        with statelog.table(rig.name, rig.where(), **kept) as table:
            assert len(table) == number
            table[b"k%d" % number] = b"v"
            table.commit({"offset": number})
    with statelog.table(rig.name, rig.where()) as table:
        assert dict(table) == {b"k%d" % number: b"v" for number in range(3)}
        assert table.progress == {"offset": 2}
