"""Site pages for documents outside docs/, and links that work both in the tree and on the site.

Documents link by paths of the source tree. On the site, a link to a document becomes a link to its page, and a link to
any other file becomes plain text. A link to a file that does not exist is left alone, and fails the build.

A comment `file: PATH` becomes that file of the tree. A picture is put into the page itself, so that it follows the
page's light and dark; and every line of code is an element that wraps behind its own indent.
"""

import ast
import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = ["OUTSIDE", "on_files", "on_page_content", "on_page_markdown", "on_post_build"]

ROOT = Path(__file__).parents[1]
ROOMS = (
    "schemas",
    "kafka",
    "store",
    "history",
    "log",
    "reading",
    "producer",
    "materializer",
    "recovery",
    "lake",
    "tables",
    "spark",
    "operate",
    "web",
    "testing",
    "cli",
)
OUTSIDE = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "examples/README.md": "project/examples.md",
    "demo/README.md": "project/demo.md",
    **{f"src/statelog/{room}/README.md": f"rooms/{room}.md" for room in ROOMS},
}
"""The pages from outside of docs/: path in the tree, and path on the site."""

_SOURCES = {page: path for path, page in OUTSIDE.items()}
_PIECES = re.compile(r"^```.*?^```$|`[^`\n]+`(?!\])|\[([^\]]*)\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".service": "ini"}
_IMAGE = re.compile(r'<img alt="[^"]*" src="[^"]*pictures/([\w-]+)\.svg" />')
_CODE = re.compile(r"(<pre[^>]*>(?:<span></span>)?<code[^>]*>)(.*?)(</code></pre>)", re.DOTALL)
_CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)  # Code in a table has its bars behind a backslash.
_SCHEME = re.compile(r"@media \(prefers-color-scheme: dark\) \{ (svg\.sl \{[^}]*\}) \}")


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
    markdown = _FILE.sub(_shown_file, markdown)
    return _PIECES.sub(lambda found: _link(found, path, site_path), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """The page with its pictures in it, and with its code in lines."""
    html = _CELL.sub(lambda found: found[0].replace("\\|", "|"), _IMAGE.sub(_picture, html))
    return _CODE.sub(lambda found: found[1] + _lines(found[2]) + found[3], html)


def on_post_build(*, config: Any) -> None:
    """Warn, which fails the build, of each name that a room exports and that its API page does not describe."""
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        face = ROOT / "src" / "statelog" / page.stem / "__init__.py"
        if face.exists():
            html = Path(config["site_dir"], "api", page.stem, "index.html").read_text(encoding="utf-8")
            for name in _exported(face):
                if not re.search(rf'id="statelog\.[\w.]*\b{name}"', html):
                    logging.getLogger("mkdocs.hooks").warning("api/%s does not describe %s", page.name, name)


def _shown_file(found: re.Match[str]) -> str:
    path = ROOT / found[1]
    return f"```{_LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}```"


def _picture(found: re.Match[str]) -> str:
    svg = (ROOT / "docs" / "pictures" / f"{found[1]}.svg").read_text(encoding="utf-8")
    svg = _SCHEME.sub(r"[data-md-color-scheme=slate] \1", svg)
    return f'<span class="picture" data-search-exclude>{svg}</span>'


def _lines(code: str) -> str:
    lines: list[str] = []
    for line in code.removesuffix("\n").split("\n"):
        text = re.sub(r"<[^>]+>", "", line)
        indent = len(text) - len(text.lstrip(" "))
        lines.append(f'<span class="line" style="--indent:{min(indent, 12) + 4}ch">{line}\n</span>')
    return "".join(lines)


def _exported(face: Path) -> list[str]:
    for node in ast.parse(face.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


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
