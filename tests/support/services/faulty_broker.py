"""A broker behind a TCP proxy, for tests of the real client on a bad network.

`FaultyBroker` is the embedded broker with a second listener, which advertises the proxy's address. Every connection of
a client that bootstraps there goes through the proxy. `direct` is the way past it, for the test itself.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from statelog.testing.broker import EmbeddedBroker, free_port
from tests.support.services.tcp_proxy import TcpProxy

__all__ = ["FaultyBroker", "open_faulty_broker", "with_listeners"]

_LISTS = ("listeners", "advertised.listeners", "listener.security.protocol.map")


@dataclass(frozen=True, slots=True)
class FaultyBroker:
    """A broker that may be paused, and its proxy."""

    broker: EmbeddedBroker
    proxy: TcpProxy

    @property
    def bootstrap(self) -> str:
        """host:port, through the proxy."""
        return self.proxy.bootstrap

    @property
    def direct(self) -> str:
        """host:port, past the proxy."""
        return self.broker.bootstrap

    def recover(self) -> None:
        """Resume the broker, and remove all faults."""
        self.broker.resume()
        self.proxy.reset()


def with_listeners(own: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return a node's own settings with `more`; listeners of `more` are added to the node's, not put in their place."""
    joined = {name: f"{own[name]},{more[name]}" for name in _LISTS if name in more}
    return {**own, **more, **joined}


@contextmanager
def open_faulty_broker(directory: Path) -> Generator[FaultyBroker]:
    """Start both; end both."""
    port = free_port()
    proxy = TcpProxy(("127.0.0.1", port))
    more = {
        "listeners": f"PROXIED://127.0.0.1:{port}",
        "advertised.listeners": f"PROXIED://{proxy.bootstrap}",
        "listener.security.protocol.map": "PROXIED:PLAINTEXT",
    }
    broker = EmbeddedBroker(directory, adapt=lambda own: with_listeners(own, more))
    try:
        broker.start()
        yield FaultyBroker(broker, proxy)
    finally:
        proxy.close()
        broker.stop()
