"""The demo's Kafka: an embedded broker of its own, or the one that STATELOG_DEMO_BROKER=host:port names.

It is never the user's development broker: it has its own data and port, and shares only the released jars. The broker
of an interrupted demo is found by its note and ended.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from statelog.testing import dev, process
from statelog.testing.broker import EmbeddedBroker, free_port
from statelog.testing.dev import RunningBroker

__all__ = ["BROKER_VARIABLE", "demo_broker", "end_left_over"]

BROKER_VARIABLE = "STATELOG_DEMO_BROKER"
_STOP_TIMEOUT_S = 20.0


@contextmanager
def demo_broker(directory: Path, on_step: Callable[[str], None]) -> Generator[str]:
    """Yield host:port of a broker that takes records; stop it at the end if it was started here.

    Raises ConfigError, Unavailable, Corrupt, BrokerUnavailable.
    """
    named = os.environ.get(BROKER_VARIABLE)
    if named:
        on_step(f"using the broker at {named}, which {BROKER_VARIABLE} names")
        yield named
        return
    port = free_port()
    broker = EmbeddedBroker(
        directory / "broker",
        port=port,
        on_step=on_step,
        on_spawn=lambda spawned: dev.note_running(directory, RunningBroker.of(spawned, port)),
    )
    try:
        broker.start()
        yield broker.bootstrap
    finally:
        broker.stop()
        dev.forget(directory)


def end_left_over(directory: Path) -> None:
    """End the broker of an earlier, killed run, if it still lives."""
    left = dev.read_running(directory)
    if left is not None:
        process.end(left.process_id, _STOP_TIMEOUT_S)
