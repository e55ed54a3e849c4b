"""Rooms and wings, read from the tree: the import contract's layers, and what the wings of each room own.

`python -m tests.support.rooms` writes the wings into ARCHITECTURE.md.
"""

import ast
import tomllib
from pathlib import Path

__all__ = ["HEADING", "ROOMS", "ROOT", "SOURCE", "document", "layers", "wings"]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "statelog"
HEADING = "## Wings\n"


def layers() -> list[list[str]]:
    """Return the order of the import contract, lowest first, without the package's own name. No other list exists."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    found = reversed(tool["importlinter"]["contracts"][0]["layers"])
    return [[name.strip().removeprefix("statelog.") for name in layer.split("|")] for layer in found]


ROOMS = tuple(name for layer in layers() for name in layer if (SOURCE / name).is_dir())
"""The rooms, lowest first."""


def wings() -> list[Path]:
    """Return the folders of modules in the rooms, room by room."""
    return [path.parent for room in ROOMS for path in sorted((SOURCE / room).glob("*/**/__init__.py"))]


def document() -> str:
    """Return ARCHITECTURE.md with the present wings."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    rows = [f"| `{wing.relative_to(SOURCE)}` | {_first_paragraph(wing / '__init__.py')} |" for wing in wings()]
    return "\n".join([text[: text.index(HEADING)] + HEADING, "| wing | what it owns |", "|---|---|", *rows, ""])


def _first_paragraph(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


if __name__ == "__main__":
    (ROOT / "ARCHITECTURE.md").write_text(document(), "utf-8")
