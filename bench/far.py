"""A commit with slow requests: to a remote cluster, or to one that stores its records in an object store.

The broker of the run answers through a proxy, which delays each answer. A commit is a produce to the changed
partitions, and then one to the ledger. The baseline is a Kafka transaction of the same changes through the same proxy.
Both include the proxy's own time.
"""

from bench.commit_ways import commits_of, latencies, without_garbage
from bench.figures import Figure, latency
from bench.logs import bench_log
from bench.plain import plain_topic
from bench.setting import Setting
from bench.workload import batches, pairs
from tests.support.providers.provider import Provider
from tests.support.providers.proxy import ProviderProxy

__all__ = ["latency_far"]

_REQUEST_S = (0.005, 0.02, 0.1)
_SLOWEST_S = 10.0
"""The total time of consecutive answers that is enough for the percentiles."""


def latency_far(setting: Setting) -> list[Figure]:
    """Measure a commit of 100 changes over eight partitions, and a Kafka transaction of the same changes."""
    return [figure for request_s in _REQUEST_S for figure in _at(setting, request_s)]


def _at(setting: Setting, request_s: float) -> list[Figure]:
    count = min(setting.commits, int(_SLOWEST_S / request_s))
    few = pairs(batches(100_000, setting.keys))
    sets = [few[i % 900 * 100 :][:100] for i in range(count)]
    warm = min(20, count // 2)
    with ProviderProxy(setting.bootstrap, Provider(name="far", latency_s=request_s)) as proxy:
        with plain_topic(proxy.bootstrap) as topic:
            transaction = latencies(topic.transaction(), sets)[warm:]
        with bench_log(proxy.bootstrap, setting.root) as log, commits_of(log) as commit:
            without_garbage()
            ours = latencies(commit, sets)[warm:]
    name = f"commit of 100 changes, {request_s * 1e3:g} ms a request"
    return [
        latency(f"{name}, {label}", share, ours, "one Kafka transaction", transaction)
        for share, label in ((0.5, "p50"), (0.99, "p99"))
    ]
