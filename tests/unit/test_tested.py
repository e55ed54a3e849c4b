"""The page on how statelog is tested names existing files, and its numbers are those of the tests."""

import re
from typing import Any

import pytest

from tests.fault import test_cluster, test_outputs_kill
from tests.property import (
    test_fold_model,
    test_history,
    test_linked_ledger,
    test_manifest_model,
    test_round_simulation,
    test_worker_story,
)
from tests.sim.nemesis import Kind
from tests.sim.plays.losses import CASES, DOORS
from tests.support.rooms import ROOT

_PAGE = (ROOT / "docs" / "how-tested.md").read_text("utf-8")
_RELEASED = ROOT / "tests" / "support" / "samples" / "released"


def _variants(test: Any) -> int:
    """Return how many values a test's own parameters have."""
    (mark,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return len(mark.args[1])


_FOLD, _ROUND = test_fold_model, test_manifest_model
_SEEDS = {
    "fold_model": (_FOLD.SEEDS, _FOLD.SOAK_SEEDS),
    "manifest_model": (_ROUND.SEEDS, _ROUND.SOAK_SEEDS),
    "history": (test_history.SEEDS,),
    "linked_ledger": (test_linked_ledger.SEEDS,),
    "worker_story": (test_worker_story.STORIES, test_worker_story.STORIES),
    "round_simulation": (len(test_round_simulation.SEEDS),),
}


@pytest.mark.parametrize("name", _SEEDS)
def test_each_world_has_as_many_histories(name: str) -> None:
    """The row of a world has the numbers of its module, in their order."""
    (row,) = re.findall(rf"^\| `tests/property/test_{name}\.py` \|[^|]*\|(.*)$", _PAGE, re.MULTILINE)
    assert [int(one.replace(",", "")) for one in re.findall(r"\d[\d,]*", row)] == list(_SEEDS[name])


def test_each_kind_of_fault_has_its_row() -> None:
    """The table of the nemesis names all kinds, and the text gives their number."""
    table = _PAGE.split("## The nemesis")[1].split("\n## ")[0]
    assert set(re.findall(r"`([a-z]+(?:-[a-z]+)?)`", table)) == {kind.value for kind in Kind}
    assert f"each of {len(Kind)} kinds of fault" in table


def test_as_many_workers_are_killed() -> None:
    """The page has the numbers of kills of workers that send."""
    assert f"{test_outputs_kill.KILLS} kills, and in the soak {test_outputs_kill.SOAK_KILLS} with" in _PAGE


def test_the_matrix_is_as_large() -> None:
    """The page has the numbers of the matrix's scenarios and clients."""
    assert f"all {len(CASES)} scenarios" in _PAGE
    assert f"{len(DOORS)} clients" in _PAGE


@pytest.mark.parametrize(
    ("what", "test", "seeds"),
    [
        ("a rule of the ledger's fold", _FOLD.test_every_guard_prevents_a_violation, _FOLD.MUTANT_SEEDS),
        ("a guard of a round", _ROUND.test_every_guard_prevents_a_violation, _ROUND.MUTANT_SEEDS),
        ("a decision about what is kept", _ROUND.test_every_wrong_decision_is_seen, _ROUND.MUTANT_SEEDS),
    ],
)
def test_as_many_guards_are_removed(what: str, test: Any, seeds: int) -> None:
    """The page has the number of variants without a guard, and of the histories to find each."""
    assert re.search(rf"^\| {what}.* \| {_variants(test)} \| {seeds:,} histories \|$", _PAGE, re.MULTILINE)


def test_each_released_sample_is_counted() -> None:
    """The page has the number of released samples."""
    assert f"reads {len(list(_RELEASED.glob('*.bin')))} samples" in _PAGE


def test_the_longest_soak_is_the_clusters() -> None:
    """The page has the minutes of the longest soak, the cluster's."""
    test: Any = test_cluster.test_no_acknowledged_commit_is_lost_and_no_alarm_is_false
    (mark,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    assert f"The longest soak of the cluster takes {max(one.values[0] for one in mark.args[1])} minutes" in _PAGE
