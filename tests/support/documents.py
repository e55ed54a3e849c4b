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
    return (*sorted(DOCS.rglob("*.md")), *(ROOT / path for path in OUTSIDE))
    return (*sorted(DOCS.rglob("*.md")), ROOT / "README.md", *(ROOT / path for path in OUTSIDE))
