"""`export_metrics` and `export_traces`: tell Prometheus and OpenTelemetry what this process does with statelog.

Owns what needs the extras `metrics` and `otel`; both are loaded only when they are asked for. A trace has a span for
each open, commit, round and recovery, made when it is over, below the span that is current then.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from os import PathLike
from typing import TYPE_CHECKING

from statelog.environment import watch
from statelog.errors import ConfigError
from statelog.observing import Request, Step

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider
    from prometheus_client import CollectorRegistry


def export_metrics(
    registry: "CollectorRegistry | None" = None, *, directories: Sequence[str | PathLike[str]] = ()
) -> Callable[[], None]:
    """Show Prometheus what this process does with statelog from now on. Returns a function that ends it.

    Call it before anything is opened: ports that are open by then are not measured. `registry` is the client's own one
    without. `directories` are those whose disk may fill. docs/metrics.md has the names:

        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> registry = CollectorRegistry()
        >>> end = export_metrics(registry, directories=["/"])
        >>> b"statelog_disk_free_bytes" in generate_latest(registry)
        True
        >>> end()

    Raises ConfigError without the extra.
    """
    try:
        from prometheus_client import REGISTRY  # An extra, and nothing that others should wait for.

        from statelog.operate.collector import Metrics
    except ImportError as error:
        raise ConfigError("metrics need prometheus_client", hint="pip install 'statelog[metrics]'") from error
    metrics, shown_in = Metrics(directories), REGISTRY if registry is None else registry
    shown_in.register(metrics)
    unwatch = watch(metrics)

    def end() -> None:
        unwatch()
        shown_in.unregister(metrics)

    return end


def export_traces(provider: "TracerProvider | None" = None) -> Callable[[], None]:
    """Make a span of OpenTelemetry for each open, commit, round and recovery from now on. Returns a function that ends
    it. `provider` is the global one without.

        >>> end = export_traces()
        >>> end()

    Raises ConfigError without the extra.
    """
    try:
        from opentelemetry.trace import get_tracer  # As above.
    except ImportError as error:
        raise ConfigError("traces need opentelemetry-api", hint="pip install 'statelog[otel]'") from error
    return watch(_Traces(get_tracer("statelog", version("statelog"), provider)))


class _Traces:
    """An observer of steps."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer

    def step(self, step: Step) -> None:
        from opentelemetry.trace import Status, StatusCode  # Loaded already.

        began_ns = int(step.began_s * 1e9)
        span = self._tracer.start_span(
            f"statelog.{step.name}", attributes={"statelog.log": step.log}, start_time=began_ns
        )
        if step.error:
            span.set_attribute("error.type", step.error)
            span.set_status(Status(StatusCode.ERROR, step.error))
        span.end(began_ns + int(step.seconds * 1e9))

    def request(self, request: Request) -> None:
        pass

    def progress(self, log: str, fraction: float, left_s: float | None) -> None:
        pass

    def made(self, thing: object, log: str, name: str) -> None:
        pass
