"""Every name that a program meets has one public home, and a face exports nothing else.

The policy, for every room alike: a room's face (`statelog.<room>`) exports names that the room itself defines, those
that a document names and those in the public signatures of exported names, of this room or another. Errors and
warnings have `statelog.errors`, the environment `statelog.environment`, and `statelog` has again what a first program
needs.
"""

import re
from pathlib import Path

import pytest

import statelog
from tests.support.public_names import Name, exported, homeless, named_by
from tests.support.rooms import ROOMS, SOURCE

ROOT = Path(__file__).parents[2]
FACES = tuple(f"statelog.{room}" for room in ROOMS)
HOMES = ("statelog", "statelog.errors", "statelog.environment", *FACES)
_FACELESS = "statelog.reading."
"""A room for the others: what a program meets of it stands on the face of recovery."""
DOCUMENTS = ("*.md", "docs/**/*.md", "src/**/*.md", "examples/**/*.py", "demo/**/*.py")


def _documented() -> set[str]:
    return {
        word
        for pattern in DOCUMENTS
        for path in ROOT.glob(pattern)
        for word in re.findall(r"\w+", path.read_text("utf-8"))
    }


def test_every_name_in_a_public_signature_has_a_public_home() -> None:
    """Who calls, subclasses or annotates can import what the signature speaks of."""
    assert {str(name): where for name, where in homeless(HOMES).items()} == {}


@pytest.mark.parametrize("face", FACES)
def test_a_face_exports_names_of_its_own_room(face: str) -> None:
    """So that a name has one home, and its room says where it is defined."""
    own = (f"{face}.", _FACELESS) if face == "statelog.recovery" else (f"{face}.",)
    assert [str(name) for name in exported(face).values() if not f"{name.module}.".startswith(own)] == []


@pytest.mark.parametrize("face", FACES)
def test_a_face_exports_what_programs_meet(face: str) -> None:
    """In a document, or in a signature of something exported."""
    met = {named for home in HOMES for name in exported(home).values() for _, named in named_by(name) if named != name}
    words = _documented()
    assert [label for label, name in exported(face).items() if label not in words and name not in met] == []


def test_every_error_is_in_the_one_tree() -> None:
    """No module but `statelog.errors` defines an error of the tree, or a warning."""
    kinds = "|".join((r"\w*Warning", *statelog.errors.__all__))
    found = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "errors.py"
        for name in re.findall(rf"^class ([A-Z]\w*)\((?:{kinds})\)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert found == set()


def test_a_name_without_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a parameter, a result, an attribute, an alias, a base's method; not if private, overridden or made by us."""
    package = tmp_path / "statelog"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from statelog.deep import Door, Made, open_it\n__all__ = ['Door', 'Made', 'open_it']\n"
    )
    (package / "deep.py").write_text(
        "class A: ...\nclass B: ...\nclass C: ...\nclass D: ...\nclass E: ...\nclass F: ...\n"
        "AorB = A | B\nLIMIT = 3\n"
        "class _Base:\n    def enter(self, at: 'C') -> None: ...\n    def leave(self, at: F) -> None: ...\n"
        "class Door(_Base):\n    inside: D\n    def leave(self) -> None: ...\n    _outside: F\n"
        "    def _knock(self, by: F) -> None: ...\n"
        "class Made:\n    '''Made by `open_it`.'''\n    def __init__(self, f: F) -> None:\n        self.e: E = E()\n"
        "def open_it(what: AorB) -> Made: ...\n"
    )
    monkeypatch.setattr("tests.support.public_names.SOURCE", package)
    assert {name.name for name in homeless(["statelog"])} == {"A", "AorB", "B", "C", "D", "E"}
    assert exported("statelog")["Door"] == Name("statelog.deep", "Door")
