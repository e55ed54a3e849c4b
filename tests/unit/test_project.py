"""The files on installing and checking the project agree with each other."""

import re
import tomllib

from packaging.version import Version

from tests.support.constraints import pinned, requirements
from tests.support.rooms import ROOT

_CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
_GROUPS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
_WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_constraints_pin_each_direct_requirement() -> None:
    """constraints.txt pins each direct requirement at one allowed version, and nothing else."""
    pins, wanted = pinned(), requirements()
    assert pins.keys() == wanted.keys()
    assert [str(one) for name, every in wanted.items() for one in every if not one.specifier.contains(pins[name])] == []


def test_each_named_python_is_tested() -> None:
    """The classifiers name the Pythons of CI's matrix, and the oldest is the required minimum."""
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


def test_the_changelog_begins_with_this_version() -> None:
    """Below Unreleased, the changelog has the version of pyproject.toml with its day, then older ones, each once."""
    headings = re.findall(r"^## (.*)$", _CHANGELOG, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", one) for one in headings[1:]]
    versions = [one[1] for one in found if one]
    assert len(versions) == len(headings) - 1
    assert versions[0] == _PROJECT["version"]
    assert versions == sorted(set(versions), key=Version, reverse=True)


def test_each_version_has_its_groups_in_order() -> None:
    """A section of the changelog has the groups of Keep a Changelog, each at most once."""
    for section in re.split(r"^## ", _CHANGELOG, flags=re.MULTILINE)[1:]:
        groups = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert groups == [one for one in _GROUPS if one in groups]


def test_each_change_is_short() -> None:
    """A change has at most 40 words, and a version 1,500."""
    changes = re.findall(r"^- (.*(?:\n  .*)*)", _CHANGELOG, re.MULTILINE)
    assert changes
    assert [one for one in changes if len(one.split()) > 40] == []
    assert [part for part in re.split(r"^## ", _CHANGELOG, flags=re.MULTILINE)[1:] if len(part.split()) > 1500] == []
