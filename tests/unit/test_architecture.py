"""The documents that describe the tree say what the tree is."""

import pytest

from tests.support.file_map import ROOMS, ROOT, SOURCE, document


def test_file_map_is_current() -> None:
    """ARCHITECTURE.md lists every module with what its docstring says; `python -m tests.support.file_map` renews it."""
    assert (ROOT / "ARCHITECTURE.md").read_text("utf-8") == document()


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_a_readme(room: str) -> None:
    """Every room explains itself to a person."""
    assert (SOURCE / room / "README.md").read_text("utf-8").startswith("# ")
