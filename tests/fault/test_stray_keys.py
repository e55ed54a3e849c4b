"""A key in a foreign key group, as a program with another hash may leave it: no lookup finds it, so it is damage.

Every complete read detects it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statelog.errors import Corrupt, CorruptRun
from statelog.log import Log, accept_data_loss
from statelog.materializer.round import run_round
from statelog.operate.examination import examine
from statelog.operate.finding import Finding
from statelog.operate.log_checks import Check
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.ledger.records import LossRange
from tests.support.rigs.log import LogRig, settings_for, state_of, twin_rig

WHAT = "a key lies in a key group that is not its own"


@pytest.fixture
def rig() -> LogRig:
    """Return a log on twins."""
    return twin_rig("log")


@contextmanager
def _by_another_rule() -> Generator[None]:
    """Write within the block into the next key group, and compare nothing at reads."""
    own = Descriptor.key_groups_of

    def other(self: Descriptor, keys: pa.Array) -> Any:
        return ((own(self, keys) + 1) % self.key_groups).astype(np.uint16)

    def unchecked(_: Descriptor, changes: pa.Table, *__: object, **___: object) -> pa.Table:
        """Return the changes without a comparison."""
        return changes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Descriptor, "key_groups_of", other)
        patch.setattr(Descriptor, "check_key_groups", unchecked)
        yield


def _write(log: Log, key: bytes) -> None:
    with Writer(log, "w") as writer:
        writer.append_batch(pa.table({"key": [key], "value": [b"1"]}))
        writer.commit()


def _found(rig: LogRig, *, deep: bool = True) -> dict[str, Finding]:
    return {one.name: one for one in examine(rig.name, rig.where(), settings_for(Path()), deep=deep)}


@pytest.mark.usefixtures("busy_ledger")
def test_a_stray_key_of_the_tail_is_damage(rig: LogRig, tmp_path: Path) -> None:
    """A stray key of the tail stops a round and a verification, which name it; a deep check names the chunk.

    Once its chunk is accepted as lost the log goes on.
    """
    with rig.create(partitions=1) as log:
        _write(log, b"good")
        with _by_another_rule():
            _write(log, b"stray")
        for read in (lambda: recover(log).digest(), lambda: run_round(log, settings_for(tmp_path))):
            with pytest.raises(Corrupt, match=WHAT) as told:
                read()
            assert told.value.facts["key"] == "b'stray'"
            assert "statelog doctor log --deep" in told.value.hint
        assert log.manifests.newest() is None
        assert not list(log.store.list("runs/"))

        assert WHAT not in _found(rig, deep=False)[Check.TAIL].found
        tail = _found(rig)[Check.TAIL]
        assert WHAT in tail.found
        place = [tail.facts[name] for name in ("topic", "partition", "offset")]
        assert place == [log.data_topic, 0, 1]

        accept_data_loss(log, [LossRange(0, 1, 2)], reason="another program's", operator="me")
        run_round(log, settings_for(tmp_path))
        assert state_of(log) == {b"good": b"1"}
        assert not [one for one in _found(rig).values() if WHAT in one.found]


def test_a_stray_key_of_a_snapshot_is_damage(rig: LogRig, tmp_path: Path) -> None:
    """A stray key of a snapshot, from an older release, is found by a deep check, a verification, and the next round.

    The round then removes nothing.
    """
    with rig.create() as log:
        with _by_another_rule():
            _write(log, b"stray")
            run_round(log, settings_for(tmp_path))
        (run,) = log.store.list("runs/")
        assert f"{run.path}: {WHAT}" in _found(rig)[Check.RUNS].found
        with pytest.raises(Corrupt, match=WHAT):
            recover(log).digest()
        _write(log, b"good")
        with pytest.raises(CorruptRun, match=WHAT):
            run_round(log, settings_for(tmp_path))
        assert all(one.start == 0 for one in log.data_offsets().values())
        newest = log.manifests.newest()
        _write(log, b"good")
        with pytest.raises(Corrupt, match=WHAT):
            run_round(log, settings_for(tmp_path, fanout=2))
        assert log.manifests.newest() == newest, "a stray key was merged"


def test_key_groups_that_callers_name_are_theirs(rig: LogRig, tmp_path: Path) -> None:
    """In a log whose callers name key groups no key has one of its own: nothing is compared."""
    with rig.create(hash_rule=HashRule.CALLER) as log, Writer(log, "w") as writer:
        writer.append(3, b"k", b"v")
        writer.append(4, b"k", b"v")
        writer.commit()
        assert recover(log).digest().rows == 2
        run_round(log, settings_for(tmp_path))
        assert not [one for one in _found(rig).values() if WHAT in one.found]


@pytest.mark.parametrize(
    "keys", [{"key_type": "long"}, {"key_type": "string"}, {"hash_rule": "crc32-prefix", "prefix_bytes": 2}]
)
def test_what_a_writer_writes_is_no_stray(rig: LogRig, tmp_path: Path, keys: dict[str, Any]) -> None:
    """A log's own writers keep its hash rule, through rounds and merges."""
    with rig.create(**keys) as log:
        for turn in range(3):
            rows: list[Any] = [turn * 100 + number for number in range(100)]
            if "key_type" not in keys:
                rows = [b"%d" % row for row in rows]
            elif keys["key_type"] == "string":
                rows = [f"é{row}" for row in rows]
            with Writer(log, "w") as writer:
                writer.append_batch(pa.table({"key": rows, "value": [b"v"] * 100}))
                writer.commit()
            run_round(log, settings_for(tmp_path, fanout=2))
        assert recover(log).digest().rows == 300
        assert not [one for one in _found(rig).values() if WHAT in one.found]
