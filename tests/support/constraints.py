"""The versions that CI installs: every requirement of pyproject.toml, as installed here or at its minimum.

`python -m tests.support.constraints` writes constraints.txt. With the argument `lowest` it prints constraints: the
minimum of pyproject.toml for packages that statelog or its tests import, and the pinned version for other tools.
"""

import re
import sys
import tomllib
from collections.abc import Collection
from importlib.metadata import version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.rooms import ROOT

__all__ = ["FILE", "lowest", "pinned", "requirements"]

FILE = ROOT / "constraints.txt"
_TOOLS = frozenset({"check", "docs", "bench", "demo"})
_HEAD = "# What CI installs, made by `make constraints`: the versions that the tests passed with.\n"


def requirements(*, leave_out: Collection[str] = ()) -> dict[str, list[Requirement]]:
    """Return the requirements of pyproject.toml by the package's name, with all extras but the ones in `leave_out`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [lines for extra, lines in project["optional-dependencies"].items() if extra not in leave_out]
    found: dict[str, list[Requirement]] = {}
    for lines in (project["dependencies"], *extras):
        for requirement in map(Requirement, lines):
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def pinned() -> dict[str, str]:
    """Return the versions in constraints.txt by the package's name."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", FILE.read_text("utf-8"), re.MULTILINE))


def lowest() -> dict[str, str]:
    """Return the minimum of each package that statelog or its tests import, and the pinned version of other tools."""
    found = pinned()
    for name, every in requirements(leave_out=_TOOLS).items():
        minimums = [Version(part.version) for one in every for part in one.specifier if part.operator == ">="]
        if minimums:
            found[name] = str(max(minimums))
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["lowest"]:
        sys.stdout.write("".join(f"{name}=={number}\n" for name, number in sorted(lowest().items())))
    else:
        FILE.write_text(_HEAD + "".join(f"{name}=={version(name)}\n" for name in sorted(requirements())), "utf-8")
