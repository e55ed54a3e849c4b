"""The number of requests to Kafka and the store of each entry point, on the twins, without repeated verification.

A figure may only fall; a change that raises one says why.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from statelog.history import history
from statelog.kafka.port import Record
from statelog.log import Log
from statelog.materializer import run_round
from statelog.producer import Writer
from statelog.recovery import recover
from statelog.schemas.ledger.fold import LedgerFold
from statelog.testing.kafka import MemoryKafka, MemoryProducer, MemoryReader
from statelog.testing.store import MemoryStore
from tests.support.rigs.log import TwinLog, key_in, settings_for, twin_rig
from tests.support.rigs.table import TableRig
from tests.support.waiting import wait_for

_PORTS: dict[type, tuple[str, ...]] = {
    MemoryKafka: ("cluster_id", "describe_topic", "offsets", "delete_records", "publish_offset", "producer", "reader"),
    MemoryReader: ("read",),
    MemoryProducer: ("send",),
    MemoryStore: (
        "put_if_absent",
        "put",
        "upload",
        "download",
        "read",
        "open",
        "list",
        "delete",
        "check",
        "now_s",
    ),
}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the requests to the ports so far, by name, within a second, however slow the machine.

    An identity, which is asked for at once, is one request, of however many parts the twin makes it.
    """
    monkeypatch.setattr(Log, "recheck_s", 3600.0)
    monkeypatch.setattr(history, "COMPARE_S", 3600.0)
    asked: Counter[str] = Counter()
    for port, names in _PORTS.items():
        for name in names:
            monkeypatch.setattr(port, name, _counted(asked, f"{port.__name__}.{name}", getattr(port, name)))
    identify = MemoryKafka.identify

    def ask_at_once(kafka: MemoryKafka, topics: Sequence[str]) -> object:
        found = identify(kafka, topics)
        asked.subtract({"MemoryKafka.describe_topic": len(topics), "MemoryKafka.cluster_id": 1})
        asked["MemoryKafka.identify"] += 1
        return found

    monkeypatch.setattr(MemoryKafka, "identify", ask_at_once)
    return asked


def _counted(asked: Counter[str], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        asked[name] += 1
        return method(*args, **kwargs)

    return ask


def test_a_log_a_writer_and_a_recovery(requests: Counter[str], tmp_path: Path) -> None:
    """Opening a log, a writer and a recovery, and a round, make few requests, with a snapshot and a tail.

    Each opens right behind the one before.
    """
    twin = TwinLog()
    twin.write({b"a": b"1"})
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    twin.write({b"c": b"3"})
    requests.clear()
    with twin.open() as log:
        assert requests.total() <= 4, requests
        requests.clear()
        with Writer(log, "w") as writer:
            assert requests.total() <= 13, requests  # One reads the Open back, two the witnesses of small commits.
            requests.clear()
            for sends in (2, 1):  # A witness accompanies it, once a second.
                writer.put(b"k", b"v")
                writer.commit()
                assert requests == {"MemoryProducer.send": sends}
                requests.clear()
        requests.clear()
        with recover(log) as recovery:
            assert recovery.to_dict() == {b"a": b"1", b"c": b"3", b"k": b"v"}
        assert requests.total() <= 16, requests  # Two read again what the ledger carries.
        requests.clear()
        twin.environment.run(run_round, log, settings_for(tmp_path))
        assert requests.total() <= 41, requests


def test_a_table_and_its_standby(requests: Counter[str], tmp_path: Path) -> None:
    """Opening a table with a snapshot makes few requests, and so do an idle standby and its promotion."""
    tables = TableRig(twin_rig("table"), None)
    with tables.open() as table:
        table[b"a"] = b"1"
        table.commit()
    tables.roll_up(tmp_path)
    requests.clear()
    with tables.open():
        assert requests.total() <= 23, requests
    requests.clear()
    with tables.standby() as standby:
        assert requests.total() <= 20, requests
        requests.clear()
        assert standby.refresh()
        assert requests.total() <= 2, requests
        requests.clear()
        with standby.promote():
            assert requests.total() <= 13, requests  # One reads the Open back, two the witnesses of small commits.


def test_what_is_idle_asks_nothing(requests: Counter[str]) -> None:
    """An idle standby and follower wait at the broker: a commit arrives by itself, and nothing is asked in between."""
    tables = TableRig(twin_rig("table"), None)
    with (
        tables.open() as table,
        tables.rig.open() as log,
        recover(log).follow(poll_s=0.02) as stream,
        tables.standby(poll_s=0.02) as standby,
    ):
        for number in (b"1", b"2", b"3"):
            table[b"a"] = number
            table.commit()
            wait_for(lambda number=number: standby.get(b"a") == number)  # type: ignore[misc]  # a default binds it
            while not next(stream).changes.num_rows:
                pass
            time.sleep(1.5)  # After a second, the records that were read are compared once more.
            requests.clear()
            time.sleep(1.0)
            assert not requests, requests


def test_each_record_of_the_ledger_is_folded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer, a recovery and a table fold each record of the ledger once. A promotion folds only its own Open."""
    folded: Counter[str] = Counter()
    monkeypatch.setattr(LedgerFold, "apply", _counted(folded, "record", LedgerFold.apply))

    def records_since(before: int = 0) -> int:
        count = folded.total() - before
        folded.clear()
        return count

    tables = TableRig(twin_rig("table"), None)
    with tables.open() as table:
        for number in range(30):
            table[b"a"] = b"%d" % number
            table.commit()
        end = table.position
    records_since()
    with tables.rig.open() as log, Writer(log, "w") as writer:
        assert records_since() <= writer.position
    with tables.rig.open() as log, recover(log) as recovery:
        assert recovery.plan.position > end
        assert records_since() <= recovery.plan.position
    with tables.open() as table:
        assert records_since() <= table.position + 1
    with tables.standby() as standby:
        standby.refresh()
        records_since()
        with standby.promote():
            assert records_since() <= 2


def test_each_record_is_folded_once_for_all_writers_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """All writers of a process fold each record of a log once."""
    twin = twin_rig("log")
    with twin.create(partitions=32, key_groups=64) as log, ExitStack() as closing:
        writers = [closing.enter_context(Writer(log, f"w{one}", partitions=[one])) for one in range(32)]
        folded: Counter[str] = Counter()
        monkeypatch.setattr(LedgerFold, "apply", _counted(folded, "record", LedgerFold.apply))
        for _ in range(3):
            for writer in writers:
                writer.commit()
        assert folded.total() == 96


def test_an_opening_beside_a_load_reads_little_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An opening during a load reads only the last records of each partition that no commit lists."""
    twin, read = twin_rig("log"), list[Record]()
    with twin.create(partitions=2, key_groups=4) as log:
        load = Writer(log, "load")
        for number in range(50):
            for partition in range(2):
                load.put(key_in(log, partition), b"%d" % number)
            load.persist(number + 1).result()
    reads = MemoryReader.read

    def noted(self: MemoryReader, *args: Any, **kwargs: Any) -> Iterator[Record]:
        for record in reads(self, *args, **kwargs):
            read.append(record)
            yield record

    monkeypatch.setattr(MemoryReader, "read", noted)
    with twin.open() as log, recover(log) as recovery:
        assert recovery.to_dict() == {}
        assert len(read) <= 2 * 4 + 2 * log.position
