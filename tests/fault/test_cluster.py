"""A whole system on a real cluster of three nodes, under faults of nodes and of programs, judged commit by commit.

Writers, a coordinator with tasks, two materializers that retain as little as they may, recoveries and a follower run as
the docs say. So an error that calls for a person ends the play, and nothing was lost. `docs/faults.md` describes the
faults. The seed of a run is in its summary, or in its log if it fails; `STATELOG_PLAY_SEED` plays it again.
"""

import logging
import os
import random
from pathlib import Path

import pytest

from tests.sim.cluster.nodes import Cluster
from tests.sim.cluster.play import perform
from tests.support.services.broker import choices

pytestmark = pytest.mark.broker
_MINUTES = pytest.mark.parametrize(
    "minutes",
    [
        pytest.param(0.5, marks=pytest.mark.timeout(1500)),
        pytest.param(30, marks=[pytest.mark.soak, pytest.mark.timeout(5400)]),
    ],
)

_LEAST_A_MINUTE = {"faults": 6, "acknowledged": 100, "recoveries": 10, "followed": 50, "rounds": 10}


@_MINUTES
def test_no_acknowledged_commit_is_lost_and_no_alarm_is_false(
    cluster: Cluster, log_name: str, tmp_path: Path, minutes: float
) -> None:
    """Every acknowledged commit is in history once, every state read is exact and new enough, and all actors go on."""
    seed = int(os.environ.get("STATELOG_PLAY_SEED") or random.SystemRandom().randrange(1 << 32))
    logging.getLogger(__name__).warning("seed %d", seed)
    least = {name: int(count * minutes) for name, count in _LEAST_A_MINUTE.items()}
    figures = perform(cluster, log_name, tmp_path, seed=seed, duration_s=minutes * 60.0, least=least)
    choices.append(f"cluster of three nodes: {figures}")
    assert sum(figures.faults.values()) >= least["faults"]
    assert figures.acknowledged >= least["acknowledged"]
    assert figures.recoveries >= least["recoveries"]
    assert figures.followed >= least["followed"]
    assert figures.rounds >= least["rounds"]
