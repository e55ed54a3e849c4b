"""`export_metrics` and `export_traces`: metrics for Prometheus, traces for OpenTelemetry, and health probes.

The extras `metrics` and `otel` are loaded on first use. A trace has a span for each open, commit, round and recovery,
below the span that is current when it begins.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from statelog.environment import current_environment, watch
from statelog.errors import ConfigError
from statelog.observing import Request, TimedStep

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider
    from prometheus_client import CollectorRegistry


def export_metrics(
    registry: "CollectorRegistry | None" = None,
    *,
    directories: Sequence[str | PathLike[str]] = (),
    listen: str | None = None,
    probes: str | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    token_file: Path | None = None,
    guarded_network: bool = False,
    hang_s: float = 300.0,
) -> Callable[[], None]:
    """Export the metrics of this process to Prometheus. Returns a function that ends the export.

    Call it before anything is opened: connections that are already open are not measured. `registry` defaults to the
    client's own. `directories`: paths on the disks to watch for free space. If PROMETHEUS_MULTIPROC_DIR is set,
    requests and steps cover all processes that count there. docs/metrics.md has the names:

        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> registry = CollectorRegistry()
        >>> end = export_metrics(registry, directories=["/"], listen="127.0.0.1:0")
        >>> b"statelog_disk_free_bytes" in generate_latest(registry)
        True
        >>> end()

    `listen`: an address that answers `/metrics`, `/livez` and `/readyz`. The process is live unless the loop of a
    worker has not polled for `hang_s` seconds. It is ready while something is open and each partition of a worker has
    its table. An address that other machines reach needs a certificate and a token, unless the network is guarded.
    `probes`: an address for kubelet, which answers `/livez` and `/readyz` in the clear, without reasons.

    Raises ConfigError without the extra, if PROMETHEUS_MULTIPROC_DIR names no directory, and for an address that cannot
    be bound or is not allowed.
    """
    from statelog.operate.listening import listening_at  # Late: a short command does without these packages.
    from statelog.schemas.names import check_kind

    check_kind("hang_s", hang_s, int, float, example="a number of seconds")
    if not hang_s > 0:
        hint = "Give seconds, for example 300.0"
        raise ConfigError(f"hang_s is {hang_s} and must be positive", hint=hint, setting="hang_s")
    options = {"certificate": certificate, "key": key, "token_file": token_file}
    listening = None if listen is None else listening_at(listen, **options, is_guarded=guarded_network)
    probing = None if probes is None else listening_at(probes, is_guarded=True)
    shared = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if shared is not None and not Path(shared).is_dir():
        hint = "Create an empty directory before the program starts, or unset the variable"
        raise ConfigError("PROMETHEUS_MULTIPROC_DIR names no directory", hint=hint, directory=shared)
    try:
        from prometheus_client import REGISTRY  # An extra, loaded on first use.

        from statelog.operate.collector import Metrics
        from statelog.operate.health import HealthServer, health_of_process
    except ImportError as error:
        raise ConfigError("metrics need prometheus_client", hint="pip install 'statelog[metrics]'") from error
    metrics, shown_in = Metrics(directories), REGISTRY if registry is None else registry
    with ExitStack() as ending:
        if listening or probing:
            health = lambda: health_of_process(metrics.open_things(), hang_s)  # noqa: E731 - one expression
            ending.enter_context(HealthServer(listening, health, shown_in, probing))
        shown_in.register(metrics)
        ending.callback(shown_in.unregister, metrics)
        ending.callback(watch(metrics))
        return ending.pop_all().close


def export_from_worker() -> None:
    """Count, once a process, for the program that started it, if PROMETHEUS_MULTIPROC_DIR and the extra are there."""
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR") and not current_environment().observers:
        with suppress(ConfigError, ImportError):
            from prometheus_client import CollectorRegistry  # An extra. Another process answers scrapes.

            export_metrics(CollectorRegistry())


def export_traces(provider: "TracerProvider | None" = None) -> Callable[[], None]:
    """Export an OpenTelemetry span for each open, commit, round and recovery. Returns a function that ends the export.

    `provider` defaults to the global one.

        >>> end = export_traces()
        >>> end()

    Raises ConfigError without the extra.
    """
    try:
        from opentelemetry.trace import get_tracer  # An extra, loaded on first use.
    except ImportError as error:
        raise ConfigError("traces need opentelemetry-api", hint="pip install 'statelog[otel]'") from error
    return watch(_Traces(get_tracer("statelog", version("statelog"), provider)))


class _Traces:
    """An observer of steps."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer

    def began(self, step: TimedStep) -> Callable[[TimedStep], None]:
        from opentelemetry.context import attach, detach  # Already loaded.
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        began_ns = int(step.began_s * 1e9)
        attributes: dict[str, str | int] = {"statelog.log": step.log}
        if step.changes:
            attributes |= {"statelog.changes": step.changes, "statelog.size_bytes": step.size_bytes}
        span = self._tracer.start_span(f"statelog.{step.name}", attributes=attributes, start_time=began_ns)
        token = attach(set_span_in_context(span))

        def end(ended: TimedStep) -> None:
            detach(token)
            if ended.error:
                span.set_attribute("error.type", ended.error)
                span.set_status(Status(StatusCode.ERROR, ended.error))
            span.end(began_ns + int(ended.seconds * 1e9))

        return end

    def request(self, request: Request) -> None:
        pass

    def progress(self, of: object, log: str, fraction: float, left_s: float | None) -> None:
        pass

    def made(self, thing: object, log: str, name: str) -> None:
        pass
