"""Fixtures of the Spark tests."""

import time
from typing import Any

import pytest

from statelog.log import Log
from statelog.spark import clients, source
from statelog.spark.clients import ProcessCache
from statelog.spark.option_texts import LogAddress
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import Faults
from tests.support.rigs.log import TwinRig, twin_rig
from tests.support.spark.workers import CACHES, Place


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a function that makes the log `visits` at a root. This process is a worker without caches."""
    rigs: dict[object, TwinRig] = {}

    def make(root: str, faults: Faults | None = None) -> TwinRig:
        cluster = MemoryCluster(cluster_id=root, faults=faults, clock=time.time)
        rigs[root] = rig = twin_rig("visits", cluster=cluster)
        rig.create().close()
        return rig

    def open_log(where: LogAddress) -> Log:
        return rigs[where.where.root].open()

    for module in (clients, source):
        monkeypatch.setattr(module, "open_log", open_log)
    for module, name in CACHES:
        monkeypatch.setattr(module, name, ProcessCache[Any, Any]())
    return make
