"""The release workflow runs pinned actions, and its script finds and judges the README's first program."""

import re
import runpy
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import programs
from tests.support.rooms import ROOT

_WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
_SCRIPT = runpy.run_path(str(ROOT / ".github" / "scripts" / "first_program.py"))


@pytest.fixture
def jobs() -> dict[str, Any]:
    """Return the jobs of the release workflow."""
    yaml: Any = pytest.importorskip("yaml", reason="PyYAML, which kubernetes-validate brings, cannot be had here")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    found: dict[str, Any] = workflow["jobs"]
    return found


@pytest.mark.parametrize("workflow", _WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(workflow: Path) -> None:
    """Each action is named by a commit, with its version behind it. One action has one commit."""
    used = re.findall(r"uses: (.*)", workflow.read_text("utf-8"))
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    assert len({one.split("@")[0] for one in used}) == len(set(used))


def test_only_the_last_job_may_publish(jobs: dict[str, Any]) -> None:
    """The last job alone has rights beyond reading, starts from the tested files, and runs for a tag only."""
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    publish = jobs["publish"]
    assert (publish["needs"], publish["if"]) == ("build", "github.event_name == 'push'")
    assert [step["uses"].split("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact", "actions/attest-build-provenance", "pypa/gh-action-pypi-publish",
    ]  # fmt: skip


def test_what_is_uploaded_was_tried(jobs: dict[str, Any]) -> None:
    """The files are built, checked and run before they are uploaded."""
    steps = [step.get("run", step.get("uses", "")) for step in jobs["build"]["steps"]]
    places = [
        next(at for at, step in enumerate(steps) if part in step)
        for part in ("project.urls", "-m build", "twine check --strict", "first_program.py", "upload-artifact")
    ]
    assert places == sorted(places)


def test_the_added_addresses_are_metadata(jobs: dict[str, Any]) -> None:
    """The workflow's addition to pyproject.toml is valid TOML, and each address is below the repository's."""
    (added,) = [step["run"] for step in jobs["build"]["steps"] if "[project.urls]" in step.get("run", "")]
    lines = textwrap.dedent(added.partition("<<EOF\n")[2].partition("\nEOF")[0])
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8") + lines)["project"]["urls"]
    assert {"Source", "Changelog", "Documentation", "Issues"} == urls.keys()
    assert all(url.startswith("$GITHUB_SERVER_URL/$GITHUB_REPOSITORY") for url in urls.values())


def test_the_script_runs_what_the_readme_begins_with() -> None:
    """The script finds the same program as the README's tests, and its comments have the output."""
    readme = ROOT / "README.md"
    program = _SCRIPT["first_program"](readme.read_text("utf-8"))
    assert program == programs(readme)[0]
    assert _SCRIPT["_PROMISE"].findall(program)


@pytest.mark.parametrize("output", ["", "{b'a': 2}\n", "{b'a': 1}\nmore\n"])
def test_the_script_refuses_another_output(output: str) -> None:
    """A missing line, an extra line, or a different one is refused."""
    program = "print({b'a': 1})  # {b'a': 1}; and why\n"
    _SCRIPT["check_output"](program, "{b'a': 1}\n")
    with pytest.raises(SystemExit, match="promise"):
        _SCRIPT["check_output"](program, output)
