"""Services played before the broker of a run: profiles of networks that no page describes, and one proxy for each."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from tests.support.providers.provider import Provider
from tests.support.providers.proxy import ProviderProxy

__all__ = ["NETWORKS", "ROUGH", "Proxies", "open_proxies"]

FAR = Provider(name="far away", latency_s=0.01)
BUSY = Provider(name="busy", latency_s=0.001, throttle_s=0.003, idle_s=0.5)
"""A broker over its quota, behind a balancer that forgets connections."""
NETWORKS = (FAR, BUSY)
"""Networks where every call has its local effect: no request is under way when a connection is cut."""
ROUGH = Provider(name="rough", latency_s=0.001, throttle_s=0.002, idle_s=1.5, session_s=4.0, rolls_s=2.0)
"""The events of a month, in seconds: sessions end, and brokers restart."""


class Proxies:
    """Proxies before one broker, each made at its first use."""

    def __init__(self, bootstrap: str, stack: ExitStack) -> None:
        self._bootstrap = bootstrap
        self._stack = stack
        self._made: dict[str, ProviderProxy] = {}

    def bootstrap(self, provider: Provider) -> str:
        """Return host:port of the broker on these terms."""
        if provider.name not in self._made:
            self._made[provider.name] = self._stack.enter_context(ProviderProxy(self._bootstrap, provider))
        return self._made[provider.name].bootstrap


@contextmanager
def open_proxies(bootstrap: str) -> Generator[Proxies]:
    """Yield proxies before this broker, and close them at the end."""
    with ExitStack() as stack:
        yield Proxies(bootstrap, stack)
