"""One run in several processes, by pytest-xdist: one shared broker, and what belongs together stays together.

The tests of a file go to one process, because they share fixtures of their module; so do all that need the Spark
session, the broker that is killed or the cluster, of which there is to be one. A test that is long and alone says so by
an `xdist_group` of its own. Without xdist none of this does anything.
"""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.services import broker as brokers

__all__: list[str] = []

_BROKERS = "statelog_brokers"
_TOGETHER = {"spark": "spark", "_own_broker": "own broker", "cluster": "cluster"}


def pytest_configure(config: pytest.Config) -> None:
    """Register the first process's half if this run has several."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_First())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the process mates of every test."""
    for item in items:
        if not any(item.iter_markers("xdist_group")):
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the first process which brokers this one has used."""
    told: dict[str, object] = getattr(session.config, "workeroutput", {})
    told[_BROKERS] = list(brokers.choices)


def _group(item: pytest.Item) -> str:
    for fixture, group in _TOGETHER.items():
        if fixture in getattr(item, "fixturenames", ()):
            return group
    return str(item.path)


class _First:
    """The process that starts the others: it owns the shared broker, and collects what the others say of theirs."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def pytest_sessionstart(self) -> None:
        directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="statelog-broker-")))
        self._broker = brokers.open_shared_broker(self._stack, directory)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[brokers.SHARED_BROKER] = (self._broker.bootstrap, self._broker.kind)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        brokers.choices.extend(getattr(node, "workeroutput", {}).get(_BROKERS, ()))

    def pytest_unconfigure(self) -> None:
        self._stack.close()
