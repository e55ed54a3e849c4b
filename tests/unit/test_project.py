"""What tells others how to install and check the project agrees with itself."""

import re
import tomllib

from tests.support.constraints import pinned, requirements
from tests.support.rooms import ROOT

_WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_constraints_pin_each_direct_requirement() -> None:
    """Each at one version that pyproject.toml allows, and nothing else."""
    pins, wanted = pinned(), requirements()
    assert pins.keys() == wanted.keys()
    assert [str(one) for name, every in wanted.items() for one in every if not one.specifier.contains(pins[name])] == []


def test_each_named_python_is_tested() -> None:
    """The classifiers name those of CI's matrix, and the oldest is the one that pip asks for."""
    tested = re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", _WORKFLOW)[1])  # type: ignore[index]  # it is there
    prefix = "Programming Language :: Python :: "
    assert [one.removeprefix(prefix) for one in _PROJECT["classifiers"] if one.startswith(f"{prefix}3.")] == tested
    assert _PROJECT["requires-python"] == f">={tested[0]}"


def test_ci_runs_what_the_makefile_has() -> None:
    """Each target that CI calls is one of the Makefile, and CI installs the pinned versions."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    called = re.findall(r"\bmake (\w+)", re.sub(r"#.*", "", _WORKFLOW))
    assert called
    assert set(called) <= set(targets)
    assert "PIP_CONSTRAINT: ${{ github.workspace }}/constraints.txt" in _WORKFLOW
