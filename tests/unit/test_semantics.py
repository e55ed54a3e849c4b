"""docs/semantics.md covers every behaviour of the originals, and the tests that it names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEHAVIOURS = {"W": 16, "B": 13, "L": 5, "O": 6, "M": 15, "T": 7, "R": 17, "S": 10}
"""The number of the originals' behaviours of each kind."""


def rows() -> list[tuple[str, str]]:
    """Return every row of the page's tables: its name, empty for what we add, and the tests that show it."""
    page = (ROOT / "docs" / "semantics.md").read_text("utf-8")
    return re.findall(r"^\| ([A-Z]\d+|) ?\|.*\|([^|]*)\|$", page, re.MULTILINE)


def test_every_behaviour_has_its_row() -> None:
    """Every behaviour has one row, in order."""
    wanted = [f"{kind}{number}" for kind, count in BEHAVIOURS.items() for number in range(1, count + 1)]

    assert [name for name, _ in rows() if name] == wanted


@pytest.mark.parametrize("shown_by", sorted({shown_by for _, shown_by in rows()}))
def test_a_row_names_tests_that_exist(shown_by: str) -> None:
    """A row names existing tests, by file, or by file and function."""
    named = re.findall(r"`(tests/(?:\w+/)+test_\w+\.py)(?:::(\w+))?`", shown_by)

    assert named
    assert shown_by.count("`") == 2 * len(named)
    for path, function in named:
        assert re.search(rf"^ *(?:def |class )?{function}\b", (ROOT / path).read_text("utf-8"), re.MULTILINE)
