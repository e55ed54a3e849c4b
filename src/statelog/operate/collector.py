"""`Metrics`: the Prometheus metrics of this process. Needs the extra `metrics`.

An observer that counts requests and steps in the client's histograms and counters; a scrape reads the statistics of
every open object. With PROMETHEUS_MULTIPROC_DIR, the former cover all processes, statistics only this one.

Invariants:
- Objects are held weakly, and forgotten once they are closed, and in a fork: a scrape shows open objects only.
- A scrape asks no broker and no store.
"""

import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from os import PathLike, fspath
from typing import Any, NamedTuple, cast

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from statelog.errors import StatelogError
from statelog.observing import Request, TimedStep
from statelog.operate.metrics import METRICS, OBSERVED, Kind, Metric, Sample, samples_of
from statelog.producer import Life

_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


class _Made(NamedTuple):
    """An object whose statistics a scrape reads while it exists."""

    of: "weakref.ref[object]"
    log: str
    name: str


class _LogProgress(NamedTuple):
    log: str
    fraction: float
    left_s: float | None


class Metrics(Collector):
    """An observer, and a collector. Thread-safe."""

    def __init__(self, directories: Sequence[str | PathLike[str]] = ()) -> None:
        self._directories = [fspath(one) for one in directories]
        self._begin()
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: None if (still := this()) is None else still._begin())
        self._counters: dict[str, Counter] = {}
        self._times: dict[str, Histogram] = {}
        for name, one in OBSERVED.items():
            if one.kind is Kind.COUNTER:
                self._counters[name] = Counter(name, one.text, one.labels, registry=None)
            else:
                self._times[name] = Histogram(name, one.text, one.labels, buckets=_BUCKETS_S, registry=None)

    def _begin(self) -> None:
        """Start with nothing open. A fork inherits no open objects, and no thread that could release the lock."""
        self._lock = threading.Lock()
        self._made: list[_Made] = []
        self._progress = weakref.WeakKeyDictionary[object, _LogProgress]()
        self._last_s: dict[str, float] = {}

    # ---- as an observer

    def request(self, request: Request) -> None:
        """Count a finished request of a port."""
        of = request.log, request.port, request.operation
        self._times["statelog_request_seconds"].labels(request.port, request.operation).observe(request.seconds)
        self._count("requests", *of)
        self._count("request_bytes", *of, by=request.size_bytes)
        if request.error:
            self._count("request_errors", *of, request.error)

    def began(self, step: TimedStep) -> Callable[[TimedStep], None]:
        """Return the function that counts this step when it ends."""
        del step
        return self._ended

    def _ended(self, step: TimedStep) -> None:
        self._times[f"statelog_{step.name}_seconds"].labels(step.log).observe(step.seconds)
        if step.error:
            self._count("step_errors", step.log, step.name, step.error)
        elif step.name == "commit":
            self._count("commit_changes", step.log, by=step.changes)
            self._count("commit_bytes", step.log, by=step.size_bytes)
        if step.name == "recovery":
            with self._lock:
                if not step.error:
                    self._last_s[step.log] = step.seconds
                else:  # It may belong to another recovery of the log; that one reports again.
                    for of in [of for of, one in self._progress.items() if one.log == step.log]:
                        del self._progress[of]

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._counters[f"statelog_{name}_total"].labels(*labels).inc(by)

    def progress(self, of: object, log: str, fraction: float, left_s: float | None) -> None:
        """Record the progress of a recovery."""
        with self._lock:
            self._progress[of] = _LogProgress(log, fraction, left_s)
            if fraction >= 1.0:
                del self._progress[of]

    def made(self, thing: object, log: str, name: str) -> None:
        """Register an object whose statistics a scrape reads."""
        with self._lock:
            self._made = [one for one in self._made if one.of() is not None]
            self._made.append(_Made(weakref.ref(thing), log, name))

    def open_things(self) -> list[tuple[object, str]]:
        """Return the open objects, each with its log."""
        with self._lock:
            return [(thing, one.log) for one in self._made if (thing := one.of()) is not None and _is_open(thing)]

    # ---- as a collector

    def describe(self) -> Iterator[Family]:
        """Return no families: they depend on the open objects."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """Yield the current metrics."""
        yield from self._counted()
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for sample in self._samples():  # With equal labels the newer object counts: the other one is closing.
            found.setdefault(sample.metric, {})[sample.labels] = sample.value
        for name, values in found.items():
            yield _family(name, METRICS[name], values)

    def _counted(self) -> Iterator[Family]:
        path = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if path is None:
            for one in (*self._times.values(), *self._counters.values()):
                yield from one.collect()
            return
        names = {name.removesuffix("_total") for name in OBSERVED}  # The client adds the suffix again.
        of_all: Any = MultiProcessCollector  # The client has no annotations there.
        yield from (family for family in cast("list[Family]", of_all(None, path).collect()) if family.name in names)

    def _samples(self) -> Iterator[Sample]:
        with self._lock:
            made, progress, last_s = list(self._made), list(self._progress.values()), dict(self._last_s)
        for one in made:
            with suppress(StatelogError):  # Closed meanwhile.
                yield from _of(one)
        for log, fraction, left_s in sorted(progress, key=lambda one: one.fraction, reverse=True):
            yield Sample("statelog_recovery_progress_ratio", (log,), fraction)  # The last sample of a log counts.
            if left_s is not None:
                yield Sample("statelog_recovery_left_seconds", (log,), left_s)
        for log, seconds in last_s.items():
            yield Sample("statelog_recovery_last_seconds", (log,), seconds)
        for path in self._directories:
            with suppress(OSError):
                disk = shutil.disk_usage(path)
                yield Sample("statelog_disk_free_bytes", (path,), disk.free)
                yield Sample("statelog_disk_bytes", (path,), disk.total)


def _of(made: _Made) -> Iterator[Sample]:
    thing = made.of()
    if _is_open(thing):
        yield from samples_of(thing, made.log, made.name)


def _is_open(thing: object) -> bool:
    return getattr(thing, "life", Life.OPEN) is Life.OPEN and not getattr(thing, "is_ended", False)


def _family(name: str, metric: Metric, values: dict[tuple[str, ...], float]) -> Family:
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(name, metric.text, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
