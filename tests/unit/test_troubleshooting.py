"""The page of messages quotes the source, and names every error."""

import ast
import re
from functools import cache

import pytest

from statelog import errors
from tests.support.documents import DOCS
from tests.support.rooms import SOURCE

_PAGE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
_ROWS = re.findall(r"^\| (`.*?) \|", _PAGE.partition("## It does not start")[2], re.MULTILINE)
_QUOTED = [quoted for row in _ROWS for quoted in re.findall(r"`([^`]+)`", row) if " " in quoted]
_GAP = "\0"


@cache
def _texts() -> str:
    """Return every text of the source but docstrings, one a line, with a NUL for each inserted value.

    It is made in the process that asks, and not in each that collects.
    """
    found: list[str] = []
    for path in SOURCE.rglob("*.py"):
        told: set[int] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Expr):  # Visited before its parts.
                told.add(id(node.value))
            elif id(node) in told:
                continue
            elif isinstance(node, ast.JoinedStr):
                parts = [str(one.value) if isinstance(one, ast.Constant) else _GAP for one in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("quoted", _QUOTED)
def test_a_quoted_message_is_in_the_source(quoted: str) -> None:
    """A quoted message is in the source word by word. Three dots stand for inserted values and for the rest."""
    pattern = "[^\n]*?".join(re.escape(part) for part in quoted.split("..."))
    assert re.search(pattern, _texts())


def test_a_message_of_nobody_is_noticed() -> None:
    """A message that is not in the source is noticed, so the test above can fail. The page quotes many."""
    assert not re.search(re.escape("the log is on holiday"), _texts())
    assert len(_QUOTED) > 50


def test_every_error_is_on_the_page() -> None:
    """Each type of the tree is on the page, except for the roots that stand for no single error."""
    kinds = {name for name, one in vars(errors).items() if getattr(one, "__module__", "") == errors.__name__}
    assert {name for name in kinds if f"`{name}`" not in _PAGE} == {"StatelogError", "StatelogWarning"}
