"""The documents that describe the tree agree with it."""

import re

import pytest

from tests.support.rooms import HEADING, ROOMS, ROOT, SOURCE, document, layers, wings

_MODULE = re.compile(
    r"`((?:schemas|kafka|store|history|log|reading|producer|recovery|materializer|testing|cli)(?:\.[a-z_]+)+)[.`]"
)


def test_wings_are_current() -> None:
    """ARCHITECTURE.md lists every wing with its docstring; `python -m tests.support.rooms` renews it."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert text == document()
    listed = re.findall(r"^\| `([\w/]+)` \| \S", text.partition(HEADING)[2], re.MULTILINE)
    assert listed == [str(wing.relative_to(SOURCE)) for wing in wings()]


def test_every_folder_of_modules_is_a_wing() -> None:
    """Every folder of modules has an `__init__.py`, so that it is in the list."""
    folders = {path.parent for room in ROOMS for path in (SOURCE / room).rglob("*.py")}
    assert folders - {SOURCE / room for room in ROOMS} == set(wings())


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_documents_order_the_rooms_as_the_contract_does(name: str) -> None:
    """The order of the rooms in the documents is that of the import contract."""
    line = " <- ".join(" | ".join(layer) for layer in layers())
    assert f"\n    {line}\n" in (ROOT / name).read_text("utf-8")


def test_every_room_says_where_to_begin() -> None:
    """ARCHITECTURE.md lists every room, each with one file of its own to read first."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition(HEADING)[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| `([\w/]+\.py)` \|$", text, re.MULTILINE)
    assert sorted(room for room, _ in rows) == sorted(ROOMS)
    assert [file for room, file in rows if not (file.startswith(f"{room}/") and (SOURCE / file).is_file())] == []


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_a_readme(room: str) -> None:
    """Every room has a README."""
    assert (SOURCE / room / "README.md").read_text("utf-8").startswith("# ")


@pytest.mark.parametrize("room", ROOMS)
def test_modules_that_docstrings_name_are_there(room: str) -> None:
    """A module in backticks in a docstring, such as `store.disk`, exists."""
    named = [
        (path.name, name)
        for path in sorted((SOURCE / room).rglob("*.py"))
        for name in _MODULE.findall(path.read_text("utf-8"))
    ]
    assert [(file, name) for file, name in named if not _is_module(name)] == []


def _is_module(name: str) -> bool:
    """Return whether it is a module or a wing, or a name in a module, such as `reading.replay.replay`."""
    place = SOURCE.joinpath(*name.split("."))
    return place.is_dir() or any(one.with_suffix(".py").is_file() for one in (place, place.parent))
