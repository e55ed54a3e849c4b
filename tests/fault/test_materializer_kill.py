"""SIGKILL of a materializer between every two steps of a round, on a real broker and each kind of store.

After every kill a reader recovers the model, and the next round, by another process, goes on.
"""

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from statelog.materializer.round import CRASH_POINTS
from statelog.producer import Writer
from statelog.recovery import recover
from tests.support.processes.doomed import MERGED, NEVER, merging_life, round_life
from tests.support.processes.parts import Lives
from tests.support.rigs.log import LogRig, real_rig
from tests.support.samples.folds import apply_all, put_all
from tests.support.services.broker import Broker
from tests.support.services.emulators import EmulatedStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store for a log."""

    root: str
    options: Mapping[str, object] = field(default_factory=dict[str, object])


@pytest.fixture(params=["local", *(pytest.param(name, marks=pytest.mark.soak) for name in ("azure", "gcs"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return each kind of store that this machine can have without Docker."""
    if request.param == "local":
        return Place(root=str(tmp_path / "root"))
    store: EmulatedStore = request.getfixturevalue(request.param)
    return Place(root=store.root(), options=store.options)


def round_in_a_process(lives: Lives, rig: LogRig, place: Place, directory: Path, point: str) -> int:
    """Run one round that dies at `point`; return its exit code."""
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    options = json.dumps(dict(place.options))
    return lives.live(round_life, rig.name, rig.bootstrap, place.root, options, scratch, point)


def write(rig: LogRig, model: dict[bytes, bytes], checkpoint_id: int) -> None:
    """Commit changes that overwrite, delete and add."""
    with rig.open() as log, Writer(log, "w") as writer:
        values = [None if i % 7 == 3 else b"%d/%d" % (checkpoint_id, i) for i in range(30)]
        changes = [(b"k%d" % ((checkpoint_id * 13 + i) % 50), value) for i, value in enumerate(values)]
        put_all(writer, changes)
        apply_all(model, changes)
        writer.commit(checkpoint_id=checkpoint_id)


@pytest.mark.broker
def test_killed_at_every_named_point(broker: Broker, lives: Lives, place: Place, log_name: str, tmp_path: Path) -> None:
    """Rounds that are killed at each point in turn lose nothing, and the rounds between catch up."""
    rig = real_rig(log_name, broker.bootstrap, place.root, storage_options=place.options)
    rig.create().close()
    model: dict[bytes, bytes] = {}
    reached: set[str] = set()
    for i, point in enumerate(CRASH_POINTS, 1):
        for checkpoint_id in (i * 2 - 1, i * 2):
            write(rig, model, checkpoint_id)
            at = point if checkpoint_id % 2 else NEVER
            died = round_in_a_process(lives, rig, place, tmp_path, at)
            assert died == (-signal.SIGKILL if checkpoint_id % 2 and died else 0)
            if died:
                reached.add(point)
            with rig.open() as log:
                assert recover(log).to_dict() == model
    assert reached == set(CRASH_POINTS)
    assert list((tmp_path / "scratch").iterdir()) == []

    with rig.open() as log:
        described = log.describe()
        assert described.manifest is not None
        assert described.ledger_offsets.start > 0
        assert {info.path for info in log.store.list("runs/")} >= {run.path for run in described.manifest.runs}


@pytest.mark.broker
def test_killed_in_a_merge_beside_rounds(broker: Broker, lives: Lives, log_name: str, tmp_path: Path) -> None:
    """Rounds that are killed when a concurrent merge is over lose nothing, and leave nothing."""
    root, scratch = str(tmp_path / "root"), tmp_path / "scratch"
    scratch.mkdir()
    rig = real_rig(log_name, broker.bootstrap, root)
    rig.create().close()
    done, died = 0, 0
    for times in (1, 1, 2, 100):
        code = lives.live(merging_life, rig.name, rig.bootstrap, root, scratch, "merged-beside", times, done + 1)
        assert code == (-signal.SIGKILL if times < 100 else 0)
        died += code != 0
        with rig.open() as log:
            state = recover(log).to_dict()
            done = max(map(int, state.values()))
            assert state == {b"k%d" % (number % 3): b"%d" % number for number in range(1, done + 1)}
    assert (died, done) == (3, MERGED - 1)
    assert list(scratch.iterdir()) == []
    with rig.open() as log:
        manifest = log.describe().manifest
        assert manifest is not None
        assert len(manifest.runs) < MERGED // 2
