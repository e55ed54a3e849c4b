"""One run in several processes, by pytest-xdist: one shared broker, and groups of tests that stay together.

The tests of a file go to one process, because they share fixtures of their module. So do all tests that need the Spark
session, or a broker of a kind that exists once. A test that is long and alone says so by an `xdist_group` of its own.
The longest groups come first, and groups that mostly wait for brokers are dealt among the groups that keep a processor
busy. Services that only one group uses end with it, for an idle broker costs a fiftieth of a core. Without xdist none
of this does anything.

Invariant: the processes give the first one the group of every test through a file. Nothing rests on names of tests,
which only some versions of pytest let xdist change.
"""

import json
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.support.services import broker as brokers
from tests.support.spark.session import archiving

__all__ = ["group_of"]

_BROKERS = "statelog_brokers"
_GROUPS = "statelog_groups"
_TOGETHER = {
    "spark": "spark",
    "_own_broker": "own broker",
    "_faulty_broker": "faulty broker",
    "cluster": "cluster",
    "secure_node": "secure broker",
}
_MATES_OWN = {*_TOGETHER, "hdfs", "azure", "gcs"}
"""Fixtures of the session that end with the group of tests that began them."""
_LONGEST = (
    "secure broker",
    "spark",
    "own broker",
    "cluster",
    "killed driver",
    "lost history",
    "tests/fault/test_lost_history.py",
    "killed stream",
    "cluster kinds",
    "power loss",
    "faulty broker",
    "tests/property/test_story_sweep.py",
    "tests/contract/test_store_contract.py",
    "tests/contract/test_failover.py",
    "tests/contract/test_who_answers.py",
    "tests/fault/test_restored_brokers.py",
    "tests/integration/test_compose.py",
    "tests/unit/test_sdist.py",
    "tests/integration/test_site.py",
    "tests/integration/test_spark_metrics.py",
    "tests/property/test_table_story.py",
    "tests/property/test_round_simulation.py",
    "tests/property/test_manifest_model.py",
    "tests/property/test_writer_simulation.py",
    "tests/property/test_table_machine.py",
    "tests/unit/tables/test_standby.py",
    "tests/unit/tables/test_local_state.py",
    "tests/unit/tables/test_worker_loop.py",
)
"""Groups that a run begins with, the longest first, so that none of them is alone at its end. Tests that start Spark
often run once its archive exists.
"""
_WAITING = ("tests/contract/", "tests/fault/", "tests/integration/")
"""Groups that wait for brokers and processes more than they compute."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the first process's half if this run has several."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_First())
    elif hasattr(config, "workerinput"):
        config.pluginmanager.register(_Other())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the first process the group of every test, and put the longest groups first."""
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if _GROUPS not in given:
        return
    groups = {item.nodeid: group_of(item) for item in items}
    ranks = {group: rank for rank, group in enumerate(_in_order(groups.values()))}
    items.sort(key=lambda item: ranks[groups[item.nodeid]])
    Path(given[_GROUPS]).write_text(json.dumps(groups), "utf-8")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report to the first process which brokers this one has used."""
    told: dict[str, object] = getattr(session.config, "workeroutput", {})
    told[_BROKERS] = list(brokers.choices)


def _in_order(groups: Iterable[str]) -> list[str]:
    """Return the longest first; then the others of either kind, each kind spread evenly over the run."""
    others = [one for one in dict.fromkeys(groups) if one not in _LONGEST]
    waiting = [one for one in others if one.startswith(_WAITING)]
    busy = [one for one in others if not one.startswith(_WAITING)]
    dealt = sorted((number / len(kind), one) for kind in (waiting, busy) for number, one in enumerate(kind))
    return [*_LONGEST, *(one for _, one in dealt)]


def group_of(item: pytest.Item) -> str:
    """Return the group of tests that stay together which this one is of."""
    for mark in item.iter_markers("xdist_group"):
        return str(mark.args[0])
    for fixture, group in _TOGETHER.items():
        if fixture in getattr(item, "fixturenames", ()):
            return group
    return item.nodeid.partition("::")[0]


class _Other:
    """A process that runs tests, group after group."""

    def __init__(self) -> None:
        self._begun: list[tuple[pytest.FixtureDef[Any], Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, object, object]:
        made = yield
        if fixturedef.argname in _MATES_OWN:
            self._begun.append((fixturedef, request))
        return made

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
        yield
        if nextitem is None or group_of(nextitem) != group_of(item):
            while self._begun:
                fixture, request = self._begun.pop()
                fixture.finish(request)


class _InGroups(LoadScopeScheduling):
    """A scheduler that gives a process a whole group at a time."""

    def __init__(self, config: pytest.Config, log: Any, directory: Path) -> None:
        super().__init__(config, log)
        self._directory = directory
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._groups:  # All processes have collected by now, and all collected the same.
            self._groups = json.loads(next(self._directory.glob("*.json")).read_text("utf-8"))
        return self._groups[nodeid]


class _First:
    """The process that starts the others: it owns the shared broker, and collects the reports of theirs."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def pytest_sessionstart(self) -> None:
        directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="statelog-broker-")))
        self._groups = directory / "groups"
        self._groups.mkdir()
        self._broker = brokers.open_shared_broker(self._stack, directory)
        self._stack.enter_context(archiving())

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[brokers.SHARED_BROKER] = (self._broker.bootstrap, self._broker.kind)
        node.workerinput[_GROUPS] = str(self._groups / f"{node.gateway.id}.json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> _InGroups:
        return _InGroups(config, log, self._groups)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        brokers.choices.extend(getattr(node, "workeroutput", {}).get(_BROKERS, ()))

    def pytest_unconfigure(self) -> None:
        self._stack.close()
