"""The source distribution has what its own tests need."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BUILD = ("pyproject.toml", ".gitignore")
"""What hatchling adds by itself."""


@pytest.mark.timeout(900)
def test_the_house_stands_in_a_source_distribution(tmp_path: Path) -> None:
    """From the files that it lists and no others, every test can be collected, and those of the whole house pass."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed: list[str] = config["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    for name in (*listed, *(name for name in _BUILD if (ROOT / name).exists())):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    names = sorted(path.name for path in Path(__file__).parent.glob("test_*.py"))
    house = [f"tests/unit/{name}" for name in names if name != Path(__file__).name]
    environment = {**os.environ, "PYTHONPATH": ""}
    for arguments in (["--collect-only", "tests"], house):
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
