"""A job, its daemon and a Spark query on a rough network, or with a far cluster: through the proxy."""

import queue
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import statelog
from statelog.errors import OutcomeUnknown, PersistFailed, StatelogError, Unavailable
from statelog.log import Log, LogOptions
from statelog.materializer import Event, EventKind, Materializer
from statelog.producer import Writer
from statelog.recovery import recover
from tests.support.providers.provider import Provider
from tests.support.providers.proxy import ProviderProxy
from tests.support.rigs.log import LogRig, real_rig, settings_for
from tests.support.services.broker import Broker
from tests.support.services.proxied import BUSY, FAR, ROUGH, Proxies
from tests.support.spark.rig import (
    Row,
    SparkLog,
    fold_rows,
    forget_last_commit,
    read_stream,
    run_stream,
    scattered,
    write_batches,
)
from tests.support.told import lines

pytestmark = pytest.mark.broker
_KEYS = 50
_ROLLS = 4
_DEADLINE_S = 60.0
_PASSING = (Unavailable, PersistFailed, OutcomeUnknown)
"""The errors after which a job opens its writer again, and goes on from the last commit."""


def _opened(rig: LogRig) -> Log:
    """Return the log, made if needed, as soon as the cluster answers."""
    while True:
        with suppress(Unavailable):
            return statelog.open(rig.name, rig.where(), create=LogOptions(partitions=4))


def _job(rig: LogRig, proxy: ProviderProxy) -> int:
    """Commit one number after the other until the brokers have restarted often enough; return the last one."""
    number = 0
    while proxy.rolls < _ROLLS:
        with suppress(*_PASSING), _opened(rig) as log, Writer(log, "w") as writer:
            last = writer.last_commit
            begun = int(str(last.metadata["offset"])) + 1 if last else 0
            assert begun >= number, "every acknowledged commit is there"
            number = begun
            while proxy.rolls < _ROLLS:
                writer.put(b"k%d" % (number % _KEYS), b"%d" % number)
                writer.commit({"offset": number})
                number += 1
    return number - 1


def test_a_job_and_its_daemon_while_brokers_are_started_anew(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Sessions end, connections break with commits in flight, leaders move: nothing is lost, and rounds go on."""
    events: queue.Queue[Event] = queue.Queue()
    settings = settings_for(tmp_path, interval_s=0.3, jitter=0.0, failures_tolerated=1000, failures_tolerated_s=600.0)
    with ProviderProxy(broker.bootstrap, ROUGH) as proxy, lines():
        rig = real_rig(log_name, proxy.bootstrap, tmp_path / "root", {"socket.timeout.ms": "3000"})
        with _opened(rig) as log:
            daemon = Materializer(log, settings, on_event=events.put)
            ended = list[StatelogError]()
            thread = threading.Thread(target=lambda: _run(daemon, ended))
            thread.start()
            try:
                number = _job(rig, proxy)
            finally:
                daemon.stop()
                thread.join(_DEADLINE_S)
        assert not thread.is_alive()
        assert ended == []
    completed = [event for event in list(events.queue) if event.kind is EventKind.ROUND_COMPLETED]
    assert completed
    direct = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    with direct.open() as log, recover(log) as recovery:
        newest = range(max(0, number - _KEYS + 1), number + 1)
        assert recovery.to_dict() == {b"k%d" % (n % _KEYS): b"%d" % n for n in newest}


def _run(daemon: Materializer, ended: list[StatelogError]) -> None:
    try:
        daemon.run()
    except StatelogError as error:
        ended.append(error)


@pytest.mark.spark
@pytest.mark.parametrize("network", [BUSY, pytest.param(FAR, marks=pytest.mark.soak)], ids=lambda one: str(one.name))
def test_a_query_over_a_network(
    network: Provider, spark: SparkSession, proxies: Proxies, log_name: str, tmp_path: Path
) -> None:
    """Every micro-batch is one commit, and a replayed one adds nothing."""
    batches: list[list[Row]] = [[(key, key * 10) for key in range(50)], [(key, None) for key in range(0, 50, 7)]]
    rig = SparkLog.create(log_name, proxies.bootstrap(network), tmp_path)
    write_batches(tmp_path / "input", batches)
    options = {**rig.options, "writerId": "job", "uniqueKeys": "true"}
    for _ in range(2):
        rows = scattered(read_stream(spark, tmp_path / "input"))
        run_stream(rows, "statelog", options, tmp_path / "checkpoint")
        last = rig.last_commit("job")
        assert last is not None
        assert last.checkpoint.id == len(batches)
        assert rig.numbers() == fold_rows(batches)
        forget_last_commit(tmp_path / "checkpoint")
