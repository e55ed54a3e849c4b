"""The file map of ARCHITECTURE.md, made from the modules; `python -m tests.support.file_map` writes it."""

import ast
import tomllib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["HEADING", "ROOMS", "SOURCE", "document", "file_map"]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "statelog"
HEADING = "## File map\n"


def _rooms() -> tuple[str, ...]:
    """The rooms, lowest first. The import contract's layers are the one list of them."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    layers = "|".join(reversed(tool["importlinter"]["contracts"][0]["layers"]))
    names = [name.strip() for name in layers.split("|")]
    return tuple(name.removeprefix("statelog.") for name in names if (SOURCE / name.removeprefix("statelog.")).is_dir())


ROOMS = _rooms()


def file_map() -> str:
    """One line for each module: its name, and what its docstring says first."""
    return "\n".join([_lines("statelog", SOURCE, SOURCE.glob("*.py")), *(_room(room) for room in ROOMS)])


def document() -> str:
    """ARCHITECTURE.md with the present map."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    return f"{text[: text.index(HEADING)]}{HEADING}\n{file_map()}"


def _room(room: str) -> str:
    base = SOURCE / room
    return _lines(room, base, (path for path in base.rglob("*.py") if path != base / "__init__.py"))


def _lines(title: str, base: Path, modules: Iterable[Path]) -> str:
    lines = [f"- `{path.relative_to(base)}`: {_first_paragraph(path)}" for path in sorted(modules)]
    return "\n".join([f"### {title}\n", *lines, ""])


def _first_paragraph(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


if __name__ == "__main__":
    (ROOT / "ARCHITECTURE.md").write_text(document(), "utf-8")
