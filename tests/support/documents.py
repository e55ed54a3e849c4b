"""The documents of the tree: their links, the files they mention, and the programs in them."""

import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["DOCS", "OUTSIDE", "ROOT", "anchors", "documents", "links", "mentions", "nav", "programs", "prose", "said"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE: dict[str, str] = runpy.run_path(str(DOCS / "mkdocs_hook.py"))["OUTSIDE"]
"""Documents outside docs/ that are pages of the site: path in the tree, and path on the site."""

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[\w.*/-]+\.(?:py|pyi|md|toml|yml|json|avsc)|[\w-]+/(?:[\w-]+/)*")
_PRINT = re.compile(r"^(?:.*\bprint\(.*\)| *\}?\)+) {2,}# (.*)$", re.MULTILINE)


@cache
def documents() -> tuple[Path, ...]:
    """Return every Markdown file that people read."""
    return (*sorted(DOCS.rglob("*.md")), ROOT / "README.md", *(ROOT / path for path in OUTSIDE))


def nav() -> list[str]:
    """Return the pages that the site's navigation names."""
    _, _, text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    return re.findall(r"^ +- .*?([\w/-]+\.md)$", text.partition("\n\n")[0], re.MULTILINE)


def links(document: Path) -> list[str]:
    """Return the targets within the tree that a document links to: a path, an anchor, or both."""
    found: list[str] = _LINK.findall(_FENCED.sub("", document.read_text(encoding="utf-8")))
    return [target for target in found if not re.match(r"https?:|mailto:", target)]


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def prose(document: Path) -> str:
    """Return a document without its programs."""
    return _FENCED.sub("", document.read_text(encoding="utf-8"))


def mentions(document: Path) -> Iterator[str]:
    """Yield the files and folders that a document names in its prose."""
    for code in _CODE.findall(prose(document)):
        file = str(code).partition("::")[0]
        if _FILE.fullmatch(file):
            yield file


def programs(document: Path, language: str = "python") -> list[str]:
    """Return the programs of a document, in their order: `python` for programs without Spark, `py` for the others."""
    return [code for found, code in _FENCED.findall(document.read_text(encoding="utf-8")) if found == language]


def said(program: str) -> list[str]:
    """Return the output that a program's comments promise: one comment behind every print."""
    found = _PRINT.findall(program)
    assert len(found) == program.count("print("), "a print without a comment that gives its output"
    return found
