"""Site pages for documents outside docs/, and links that work both in the tree and on the site.

Documents link by paths of the source tree. On the site, a link to a document becomes a link to its page, and a link to
any other file becomes plain text. A link to a file that does not exist is left alone, and fails the build.
"""

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = ["OUTSIDE", "on_files", "on_page_markdown"]

ROOT = Path(__file__).parents[1]
ROOMS = ("schemas", "storage", "producer", "materializer", "recovery", "spark", "cli")
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "examples/README.md": "project/examples.md",
    "demo/README.md": "project/demo.md",
    **{f"src/statelog/{room}/README.md": f"rooms/{room}.md" for room in ROOMS},
}
"""The pages from outside of docs/: path in the tree, and path on the site."""

_SOURCES = {page: path for path, page in OUTSIDE.items()}
_PIECES = re.compile(r"^```.*?^```$|`[^`\n]+`(?!\])|\[([^\]]*)\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)


def on_files(files: "Files", *, config: Any) -> "Files":
    """Add the pages from outside."""
    from mkdocs.structure.files import File  # Tests read this module without mkdocs.

    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: "Page", **_: Any) -> str:
    """The page with its links as they are on the site."""
    site_path = page.file.src_uri
    path = _SOURCES.get(site_path, f"docs/{site_path}")
    return _PIECES.sub(lambda found: _link(found, path, site_path), markdown)


def _link(found: re.Match[str], path: str, site_path: str) -> str:
    text, target = found.group(1), found.group(2)
    if target is None or target.startswith(("#", "http:", "https:", "mailto:")):
        return found.group()
    file, mark, anchor = target.partition("#")
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
    page = OUTSIDE.get(meant) or (meant.removeprefix("docs/") if meant.startswith("docs/") else None)
    if page is not None:
        return f"[{text}]({posixpath.relpath(page, posixpath.dirname(site_path) or '.')}{mark}{anchor})"
    return text if (ROOT / meant).exists() else found.group()
