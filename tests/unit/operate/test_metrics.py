"""Metrics and traces of a process: each request of its ports and each step, under the documented names."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

import statelog
from statelog.environment import current_environment, watch
from statelog.errors import ConfigError, NotFound
from statelog.log import Log, Where
from statelog.materializer import Materializer
from statelog.materializer.outcome import Cleanup
from statelog.materializer.statistics import MaterializerStatistics
from statelog.operate import export_metrics, export_traces
from statelog.operate.collector import Metrics
from statelog.operate.drill import drill
from statelog.operate.exporting import export_from_worker
from statelog.operate.metrics import METRICS, samples_of
from statelog.producer import Writer
from statelog.recovery import Progress, RecoverySettings, recover
from statelog.recovery.settings import RecoveryTuning
from tests.support.processes.starts import in_fork
from tests.support.rigs.log import TwinLog, settings_for, twin_rig
from tests.support.rigs.table import TableRig
from tests.support.rooms import ROOT

Scrape = Callable[[], dict[str, dict[tuple[str, ...], float]]]


@pytest.fixture
def scrape(tmp_path: Path) -> Iterator[Scrape]:
    """Return a function that reads like Prometheus: the values by label, by the name of the sample."""
    registry = CollectorRegistry()
    end = export_metrics(registry, directories=[tmp_path])

    def read() -> dict[str, dict[tuple[str, ...], float]]:
        found: dict[str, dict[tuple[str, ...], float]] = {}
        assert b"statelog_" in generate_latest(registry)  # The text format can represent it, too.
        for family in registry.collect():
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
        return found

    yield read
    end()


def test_the_page_has_every_metric() -> None:
    """The page's table of metrics equals the code's."""
    rows = [f"| `{name}` | {one.kind.value} | {', '.join(one.labels)} | {one.text} |" for name, one in METRICS.items()]
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert [line for line in page.splitlines() if line.startswith("| `statelog_")] == rows


def test_names_follow_the_conventions() -> None:
    """Counters end in total, times are in seconds and sizes in bytes, and every name has our prefix."""
    for name, one in METRICS.items():
        assert name.startswith("statelog_")
        assert name.endswith("_total") == (one.kind == "counter"), name
        assert not name.endswith(("_s", "_ms", "_kb")), name


def test_a_life_of_a_log_is_seen(scrape: Scrape, tmp_path: Path) -> None:
    """Writer, round, recovery, table and standby each report their statistics, requests and times."""
    twin = TwinLog()
    name = twin.name
    with twin.open() as log:
        writer = Writer(log, "web")
        writer.put(b"a", b"1")
        writer.commit()
        daemon = Materializer(log, settings_for(tmp_path))
        daemon.run_once()
        with recover(log) as recovery:
            assert recovery.to_dict() == {b"a": b"1"}
        found = scrape()
        assert found["statelog_writer_commits_total"] == {(name, "web"): 1}
        assert found["statelog_writer_changes_total"] == {(name, "web"): 1}
        assert found["statelog_rounds_total"][name, "completed"] == 1
        assert found["statelog_rolled_up_changes_total"] == {(name,): 1}
        for step in ("open", "commit", "round", "recovery"):
            assert found[f"statelog_{step}_seconds_count"][(name,)] >= 1, step
        assert found["statelog_recovery_last_seconds"][(name,)] > 0
        assert "statelog_recovery_progress_ratio" not in found  # No one continues.
        requests = found["statelog_request_seconds_count"]
        assert requests["kafka", "send"] >= 2
        assert requests["store", "put_if_absent"] >= 1
        assert requests["store", "upload"] == 1
        assert requests["store", "read_range"] >= 1
        assert found["statelog_requests_total"] == {(name, *of): count for of, count in requests.items()}
        assert found["statelog_request_bytes_total"][name, "store", "upload"] > 100
        assert found["statelog_commit_changes_total"] == {(name,): 1}
        assert found["statelog_commit_bytes_total"][(name,)] > 0
        assert found["statelog_disk_free_bytes"][(str(tmp_path),)] > 0
        writer.close()
    assert "statelog_writer_commits_total" not in scrape()


@pytest.mark.parametrize(
    ("held_by", "shown"), [("", []), ("manifest 12", ["manifest"]), ("lease of loader", ["lease of loader"])]
)
def test_what_holds_truncation_is_named(held_by: str, shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that holds truncation is named.

    A manifest's number is left out, since each round would start a new series.
    """
    with TwinLog().open() as log:
        daemon = Materializer(log)
        found = MaterializerStatistics(cleanup=Cleanup(held_by=held_by, held_back="x"))
        monkeypatch.setattr(daemon, "statistics", lambda: found)
        samples = list(samples_of(daemon, "visits", ""))
    assert [one.labels for one in samples if one.metric == "statelog_truncation_held"] == [
        ("visits", by) for by in shown
    ]
    assert [one.value for one in samples if one.metric == "statelog_cleanup_held_back"] == [1]


def test_a_table_and_its_standby_are_seen(scrape: Scrape) -> None:
    """Open tables and standbys report where their states are, and how they were opened."""
    tables = TableRig(twin_rig("table"), None)
    here = current_environment()
    with tables.open(environment=here) as table:
        table[b"a"] = b"1"
        table.commit()
        with tables.standby(environment=here) as standby:
            found = scrape()
            assert set(found["statelog_table_position"].values()) == {table.position}
            assert set(found["statelog_table_changes_total"].values()) == {1}
            assert set(found["statelog_standby_position"].values()) == {standby.position}
            assert "statelog_standby_age_seconds" in found
            assert found["statelog_table_open_seconds_count"]
    assert "statelog_table_position" not in scrape()


def test_errors_are_counted_by_their_names(scrape: Scrape) -> None:
    """Errors are counted by name, for the request and for the step around it."""
    rig = twin_rig("missing")
    with pytest.raises(NotFound):
        Log.open("missing", rig.where())
    found = scrape()
    assert found["statelog_request_errors_total"] == {("missing", "store", "read", "NotFound"): 1}
    assert found["statelog_step_errors_total"] == {("missing", "open", "NotFound"): 1}


def test_a_recovery_shows_how_far_it_is(scrape: Scrape) -> None:
    """A recovery reports its progress from its first report until it is over."""
    twin = TwinLog()
    for number in range(20):
        twin.write({b"%d" % number: b"1"})
    seen: list[list[float]] = []

    def look(_: Progress) -> None:
        seen.append(_progress(scrape()))

    often = RecoverySettings(_tuning=RecoveryTuning(progress_interval_s=0.0))
    with twin.open() as log, recover(log, on_progress=look, settings=often) as recovery:
        recovery.to_dict()
    assert seen[0]
    assert all(0 <= one < 1 for found in seen for one in found)
    assert not seen[-1]


def test_of_several_recoveries_the_one_furthest_behind_is_shown(scrape: Scrape) -> None:
    """Of several concurrent recoveries, the one furthest behind is shown. A finished or failed one is not."""
    (metrics,) = current_environment().observers

    class Recovery:
        pass

    first, second = Recovery(), Recovery()
    metrics.progress(first, "log", 0.9, 1.0)
    metrics.progress(second, "log", 0.2, 8.0)
    metrics.progress(first, "log", 0.95, 0.5)
    assert _progress(scrape()) == [0.2]
    assert scrape()["statelog_recovery_left_seconds"] == {("log",): 8.0}
    metrics.progress(second, "log", 1.0, 0.0)
    assert _progress(scrape()) == [0.95]
    del first
    assert "statelog_recovery_progress_ratio" not in scrape()


def _progress(found: dict[str, dict[tuple[str, ...], float]]) -> list[float]:
    return list(found.get("statelog_recovery_progress_ratio", {}).values())


def test_requests_are_of_the_log_that_they_are_made_for(scrape: Scrape) -> None:
    """Requests count for the log that made them, also where logs share a client, or one is opened by another's."""
    rig = twin_rig("first")
    with rig.create() as log:
        where = replace(twin_rig("second").where(), kafka=log.kafka)
        before = sum(value for labels, value in scrape()["statelog_requests_total"].items() if labels[0] == "first")
        with statelog.open("second", where, create=True) as other:
            other.describe()
        found = scrape()["statelog_requests_total"]
        assert sum(value for labels, value in found.items() if labels[0] == "first") == before
        assert found["second", "kafka", "create_topic"] == 2


def test_nobody_watches_unless_asked(scrape: Scrape) -> None:
    """Ports are wrapped for observers, and only once. A removed observer receives nothing more."""
    assert current_environment().observers
    rig = twin_rig("watched")
    with rig.create() as log:
        assert type(log.kafka).__name__ == "MeasuredKafka"
        with Log.open(log.name, Where(log.kafka, log.store, allow_unsafe=("replication", "min-insync"))) as again:
            assert again.kafka is log.kafka
            assert again.store is log.store


def test_a_process_that_is_not_watched_has_its_own_ports() -> None:
    """Without observers, ports are not wrapped, and neither library is loaded."""
    assert not current_environment().observers
    with twin_rig("plain").create() as log:
        assert type(log.kafka).__name__ == "MemoryKafka"
    program = (
        "import sys, statelog, statelog.operate, statelog.cli.materialize, statelog.cli.program\n"
        "sys.exit(any(name.split('.')[0] in ('prometheus_client', 'opentelemetry') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_extra_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is an error that names it. A worker process that did not ask for metrics works without it."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    for export in (export_metrics, export_traces):
        with pytest.raises(ConfigError) as caught:
            export()
        assert "pip install 'statelog[" in caught.value.hint
    export_from_worker()
    assert not current_environment().observers


@contextmanager
def traced() -> Generator[tuple[TracerProvider, InMemorySpanExporter]]:
    """Return a tracer for the block, and the exporter that has its spans afterwards."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    end = export_traces(provider)
    try:
        yield provider, exporter
    finally:
        end()


def test_spans_nest() -> None:
    """Each span lies below the one that was current when it began: a program's, or that of the enclosing step."""
    tables = TableRig(twin_rig("table"), None)
    with traced() as (provider, exporter), provider.get_tracer("program").start_as_current_span("program"):
        with tables.open(environment=current_environment()) as table:
            table[b"a"] = b"1"
            table.commit()
        with tables.rig.open() as log:
            drill(log, RecoverySettings())
        with suppress(NotFound):
            Log.open("missing", twin_rig("missing").where())
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans if span.context}
    nested = {(span.name, names[span.parent.span_id] if span.parent else "") for span in spans}
    assert ("program", "") in nested
    assert ("statelog.table_open", "program") in nested
    assert ("statelog.recovery", "statelog.table_open") in nested
    assert ("statelog.commit", "program") in nested
    assert ("statelog.open", "program") in nested
    commits = [span.attributes for span in spans if span.name == "statelog.commit"]
    assert [one["statelog.changes"] for one in commits if one] == [1]


def test_a_shared_directory_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing shared directory is refused on request, and not at the first scrape.

    A worker of another program works without it.
    """
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="names no directory"):
        export_metrics(CollectorRegistry())
    export_from_worker()
    assert not current_environment().observers


def test_spans_of_steps() -> None:
    """Open and commit have one span each, with the log's name and the error of a failed one."""
    twin = TwinLog()
    with traced() as (_, exporter):
        twin.write({b"a": b"1"})
        with pytest.raises(NotFound):
            Log.open("missing", twin_rig("missing").where())
    twin.write({b"a": b"2"})
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert {"statelog.open", "statelog.commit"} == set(spans)
    attributes = spans["statelog.open"].attributes
    assert attributes is not None
    assert (attributes["statelog.log"], attributes["error.type"]) == ("missing", "NotFound")
    assert not spans["statelog.open"].status.is_ok
    span = spans["statelog.commit"]
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time >= span.start_time


def test_a_fork_shows_nothing_of_its_parent() -> None:
    """A child reports none of its parent's objects, and a scrape under way at the fork does not block it."""
    registry, metrics, twin = CollectorRegistry(), Metrics(), TwinLog()
    registry.register(metrics)
    unwatch = watch(metrics)

    def check() -> None:
        signal.alarm(30)
        assert b"statelog_writer" not in generate_latest(registry)
        with twin.open() as log, Writer(log, "child") as writer:
            writer.put(b"k", b"v")
            found = generate_latest(registry)
            assert b'statelog_writer_changes_total{log="log",writer="child"} 1.0' in found
            writer.commit()

    try:
        with twin.open() as log, Writer(log, "parent") as writer, _held(vars(metrics)["_lock"]):
            writer.put(b"k", b"v")
            assert in_fork(check) == 0
            writer.commit()
    finally:
        unwatch()


def test_threads_that_watch_at_once_are_all_told_and_all_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that start and stop observing concurrently do not overwrite each other's changes."""
    both, before = threading.Barrier(2), current_environment().observers

    def slowly(*args: Any, **changes: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.1)
        return replace(*args, **changes)

    monkeypatch.setattr("statelog.environment.replace", slowly)
    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(watch, (Metrics(), Metrics())))
        told = len(current_environment().observers) - len(before)
        both.reset()
        for end in ends:
            threads.submit(end)
    assert (told, current_environment().observers) == (2, before)


@contextmanager
def _held(lock: threading.Lock) -> Generator[None]:
    """Hold a lock in another thread as long as the block lasts."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(10)
    try:
        yield
    finally:
        is_over.set()
        thread.join()
