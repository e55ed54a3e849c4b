"""A store that was sound when the log was made, and overwrites since: no manifest is put, and nothing is lost."""

from dataclasses import replace
from pathlib import Path

import pytest

from statelog.errors import UnsafeStore
from statelog.log import Log
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from tests.support.rigs.log import TwinLog, settings_for, state_of


def _twin(tmp_path: Path, snapshots: int) -> TwinLog:
    twin = TwinLog()
    for number in range(1, snapshots + 1):
        twin.write({b"k%d" % number: b"v"})
        outcome = twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
        assert isinstance(outcome, CompletedRound)
    return twin


def test_a_store_that_stopped_refusing_is_found_before_a_manifest_is_put(tmp_path: Path) -> None:
    """A store that no longer refuses lets neither of two materializers, one amid the other's round, win or delete."""
    twin = _twin(tmp_path, 3)
    files = {info.path: info for info in twin.disk.files("log/manifests/")}
    twin.disk.honours_absence = False
    twin.write({b"k4": b"v"})

    def another_round(point: str) -> None:
        if point == "after-list":
            with pytest.raises(UnsafeStore):
                twin.environment.run(run_round, twin.open(), settings_for(tmp_path))

    with pytest.raises(UnsafeStore):
        replace(twin.environment, crash=another_round).run(run_round, twin.open(), settings_for(tmp_path))
    assert {info.path: info for info in twin.disk.files("log/manifests/")} == files
    assert state_of(twin.open()) == twin.model


def test_the_proof_is_given_once_and_only_by_who_puts(tmp_path: Path) -> None:
    """Rounds of one process create one probe between them; other writers and readers create none."""
    twin, created = TwinLog(), list[str]()

    def note(method: str, path: str) -> None:
        if method == "put_if_absent":
            created.append(path)

    log: Log = twin.open(note)
    for number in range(3):
        twin.write({b"k%d" % number: b"v"})
        assert isinstance(twin.environment.run(run_round, log, settings_for(tmp_path)), CompletedRound)
    probes = {path for path in created if "probe" in path}
    assert len(probes) == 1
    assert created.index(next(iter(probes))) < created.index("manifests/00000000000000000001.avro")
    created.clear()
    reader = twin.open(note)
    assert state_of(reader) == twin.model
    assert created == []
