"""The file map of ARCHITECTURE.md, made from the modules; `python -m tests.support.file_map` writes it."""

import ast
from pathlib import Path

__all__ = ["HEADING", "ROOMS", "document", "file_map"]

ROOT = Path(__file__).parents[2]
ROOMS = ("schemas", "storage", "producer", "materializer", "recovery", "spark", "cli")
HEADING = "## File map\n"


def file_map() -> str:
    """One line for each module: its name, and what its docstring says first."""
    return "\n".join(_room(room) for room in ROOMS)


def document() -> str:
    """ARCHITECTURE.md with the present map."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    return f"{text[: text.index(HEADING)]}{HEADING}\n{file_map()}"


def _room(room: str) -> str:
    base = ROOT / room / "statelog" / room
    modules = sorted(path for path in base.rglob("*.py") if path != base / "__init__.py")
    lines = [f"- `{path.relative_to(base)}`: {_first_paragraph(path)}" for path in modules]
    return "\n".join([f"### {room}\n", *lines, ""])


def _first_paragraph(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


if __name__ == "__main__":
    (ROOT / "ARCHITECTURE.md").write_text(document(), "utf-8")
