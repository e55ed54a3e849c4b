"""The faces are what a program needs, and no more.

The policy, for every room alike: a room's face (`statelog.<room>`) exports names that the room itself defines, and that
a program names: because a document shows them, or because it passes them to something exported. What a call gives back
needs no home: a program uses it without importing it. The protocol's own types (records of the ledger, manifests, runs)
are private. Errors and warnings have `statelog.errors`, and `statelog` has again what a first program needs.
"""

import re
from pathlib import Path

import pytest

import statelog
from tests.support.public_names import Name, exported, homeless, taken_by
from tests.support.rooms import ROOMS, SOURCE

ROOT = Path(__file__).parents[2]
FACES = tuple(f"statelog.{room}" for room in ROOMS)
HOMES = ("statelog", "statelog.errors", *FACES)
_FACELESS = {"statelog.recovery": "statelog.reading.", "statelog.testing": "statelog.environment."}
"""For the others: what a program, or its test, meets of it stands on this face."""
MOST = 120
"""So many names a person can know. The errors come on top."""
EXCUSED = {
    "EngineMaker": "opaque: spark_engine makes one",
    "LedgerBase": "plan_changes(base=), which a stream passes to itself",
    "Rights": "Log.verify(rights), which the rooms call",
    "RunFile": "RunOpener.open, which readers call",
    **dict.fromkeys(("Checkpoint", "Step"), "Grant.handle, which writers call"),
    **dict.fromkeys(("Delivery", "OffsetRange", "TopicSpec"), "the twins' methods, which the rooms call"),
}
"""What needs no home although it is passed, and why."""
DOCUMENTS = ("*.md", "docs/**/*.md", "src/**/*.md", "examples/**/*.py", "demo/**/*.py")


def _documented() -> set[str]:
    return {
        word
        for pattern in DOCUMENTS
        for path in ROOT.glob(pattern)
        for word in re.findall(r"\w+", path.read_text("utf-8"))
    }


def test_whatever_a_program_passes_has_a_public_home() -> None:
    """Who calls can import what the parameters speak of."""
    assert {str(name): where for name, where in homeless(HOMES, EXCUSED).items()} == {}


def test_a_person_can_know_the_public_names() -> None:
    """All faces together have few of them."""
    names = {name for face in ("statelog", *FACES) for name in exported(face).values()}
    assert len(names) <= MOST


@pytest.mark.parametrize("face", FACES)
def test_a_face_exports_names_of_its_own_room(face: str) -> None:
    """So that a name has one home, and its room says where it is defined."""
    own = (f"{face}.", _FACELESS.get(face, f"{face}."))
    assert [str(name) for name in exported(face).values() if not f"{name.module}.".startswith(own)] == []


@pytest.mark.parametrize("face", FACES)
def test_a_face_exports_what_programs_name(face: str) -> None:
    """In a document, or as a parameter of something exported."""
    passed = {taken for home in HOMES for name in exported(home).values() for _, taken in taken_by(name)}
    words = _documented()
    assert [label for label, name in exported(face).items() if label not in words and name not in passed] == []


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
    """In a parameter, a setting, an alias, a base's method; not if it is given back, private, overridden or ours."""
    package = tmp_path / "statelog"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from statelog.deep import Door, Made, Settings, open_it\n__all__ = ['Door', 'Made', 'Settings', 'open_it']\n"
    )
    (package / "deep.py").write_text(
        "class A: ...\nclass B: ...\nclass C: ...\nclass D: ...\nclass E: ...\nclass F: ...\n"
        "AorB = A | B\nLIMIT = 3\n"
        "class _Base:\n    def enter(self, at: 'C') -> None: ...\n    def leave(self, at: F) -> None: ...\n"
        "class Door(_Base):\n    inside: F\n    def leave(self) -> F: ...\n"
        "    def _knock(self, by: F) -> None: ...\n"
        "class Settings:\n    one: D\n    _other: F\n"
        "class Made:\n    '''Made by `open_it`.'''\n    def __init__(self, f: F) -> None:\n        self.e: F = F()\n"
        "def open_it(what: AorB, how: E) -> Made: ...\n"
    )
    monkeypatch.setattr("tests.support.public_names.SOURCE", package)
    assert {name.name for name in homeless(["statelog"])} == {"A", "B", "C", "D", "E"}
    assert {name.name for name in homeless(["statelog"], {"E"})} == {"A", "B", "C", "D"}
    assert exported("statelog")["Door"] == Name("statelog.deep", "Door")
