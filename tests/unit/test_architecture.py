"""The documents that describe the tree say what the tree is."""

import re

import pytest

from tests.support.file_map import ROOMS, ROOT, SOURCE, document

_MODULE = re.compile(r"`((?:schemas|storage|producer|recovery|materializer|cli)(?:\.[a-z_]+)+)[.`]")


def test_file_map_is_current() -> None:
    """ARCHITECTURE.md lists every module with what its docstring says; `python -m tests.support.file_map` renews it."""
    assert (ROOT / "ARCHITECTURE.md").read_text("utf-8") == document()


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_a_readme(room: str) -> None:
    """Every room explains itself to a person."""
    assert (SOURCE / room / "README.md").read_text("utf-8").startswith("# ")


@pytest.mark.parametrize("room", ROOMS)
def test_modules_that_docstrings_name_are_there(room: str) -> None:
    """A module in backticks, such as `storage.runs`, is where it says."""
    named = [
        (path.name, name)
        for path in sorted((SOURCE / room).rglob("*.py"))
        for name in _MODULE.findall(path.read_text("utf-8"))
    ]
    assert [(file, name) for file, name in named if not _is_module(name)] == []


def _is_module(name: str) -> bool:
    """Whether it is a module or a wing, or a name in a module, such as `storage.replay.replay`."""
    place = SOURCE.joinpath(*name.split("."))
    return place.is_dir() or any(one.with_suffix(".py").is_file() for one in (place, place.parent))
