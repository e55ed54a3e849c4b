"""The source distribution has what its own tests need."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BUILD = ("pyproject.toml", ".gitignore")
"""Files that hatchling adds by itself."""


@pytest.mark.timeout(900)
def test_the_house_stands_in_a_source_distribution(tmp_path: Path) -> None:
    """Every test can be collected from the listed files alone, and the tests of the whole codebase pass."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed: list[str] = config["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    for name in (*listed, *(name for name in _BUILD if (ROOT / name).exists())):
        if (ROOT / name).is_dir():
            # Compiled files are copied, since Python knows them by their source's time and size, except those being
            # written.
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    environment = {**os.environ, "PYTHONPATH": ""}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_besides_the_house(tmp_path), "tests"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert re.search(r"\d+ passed", ran.stdout), ran.stdout


def _besides_the_house(root: Path) -> list[str]:
    """Return the options by which one run collects every test and runs only those of the whole codebase."""
    rooms = [path for place in ("tests", "tests/unit") for path in (root / place).iterdir() if path.is_dir()]
    besides = [f"{path.relative_to(root).as_posix()}/" for path in rooms if path.name != "unit"]
    return [f"--deselect={name}" for name in [*besides, f"tests/unit/{Path(__file__).name}"]]
