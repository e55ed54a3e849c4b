"""What several contract suites share: a log's two places, the twins and the real ones in turn."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from statelog.storage.log.log import Log
from tests.support.rigs.log import LogRig, real_rig, twin_rig
from tests.support.services.broker import Broker


@pytest.fixture(params=["twin", pytest.param("real", marks=pytest.mark.broker)])
def rig(request: pytest.FixtureRequest, log_name: str, tmp_path: Path) -> LogRig:
    """A log's two places, in memory or real."""
    if request.param == "twin":
        return twin_rig(log_name)
    broker = cast("Broker", request.getfixturevalue("broker"))
    return real_rig(log_name, broker.bootstrap, tmp_path / "root")


@pytest.fixture
def log(rig: LogRig) -> Iterator[Log]:
    """A new log of opaque values under bytes keys."""
    with rig.create() as created:
        yield created
