"""The versions that CI installs: every requirement of pyproject.toml, as it is installed here.

`python -m tests.support.constraints` writes constraints.txt.
"""

import re
import tomllib
from importlib.metadata import version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.rooms import ROOT

__all__ = ["FILE", "pinned", "requirements"]

FILE = ROOT / "constraints.txt"
_HEAD = "# What CI installs, made by `make constraints`: the versions that the tests passed with.\n"


def requirements() -> dict[str, list[Requirement]]:
    """What pyproject.toml asks for, with any extra, by the package's name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found: dict[str, list[Requirement]] = {}
    for lines in (project["dependencies"], *project["optional-dependencies"].values()):
        for requirement in map(Requirement, lines):
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def pinned() -> dict[str, str]:
    """The versions in constraints.txt by the package's name."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", FILE.read_text("utf-8"), re.MULTILINE))


if __name__ == "__main__":
    FILE.write_text(_HEAD + "".join(f"{name}=={version(name)}\n" for name in sorted(requirements())), "utf-8")
