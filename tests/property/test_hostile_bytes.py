"""Every decoder against hostile bytes: a value or `Damaged`, never a death, a raw exception, or another value."""

import random
from pathlib import Path

import pytest

from tests.support.samples.hostile import TARGETS, hostile, make_target

_ONLY_SEALED = ("manifest", "lease", "subscription", "descriptor", "applied", "frame")
UNSEALED = [name for name in (*TARGETS, "run") if name not in _ONLY_SEALED]
SEALED = [name for name in (*TARGETS, "run") if not name.endswith(" file")]
SOAK_S = 60.0


@pytest.mark.parametrize("name", UNSEALED)
def test_no_mutant_is_another_value(name: str, tmp_path: Path) -> None:
    """What was changed on its way is noticed."""
    assert hostile(make_target(name, sealed=False, scratch=tmp_path), seed=1, mutants=400) == ""


@pytest.mark.parametrize("name", SEALED)
def test_no_sealed_mutant_breaks_its_reader(name: str, tmp_path: Path) -> None:
    """What was written so, with a right checksum, is a value or a typed error."""
    assert hostile(make_target(name, sealed=True, scratch=tmp_path), seed=2, mutants=400) == ""


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", UNSEALED)
def test_millions_of_mutants_are_no_other_value(name: str, tmp_path: Path) -> None:
    """The same, for a minute of seeds that differ in every run."""
    seed = random.SystemRandom().randrange(1 << 40)
    assert hostile(make_target(name, sealed=False, scratch=tmp_path), seed=seed, seconds=SOAK_S) == ""


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SEALED)
def test_millions_of_sealed_mutants_break_no_reader(name: str, tmp_path: Path) -> None:
    """The same, for a minute of seeds that differ in every run."""
    seed = random.SystemRandom().randrange(1 << 40)
    assert hostile(make_target(name, sealed=True, scratch=tmp_path), seed=seed, seconds=SOAK_S) == ""
