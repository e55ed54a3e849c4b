"""The Python programs of guides and rooms run as printed, on the twins, and print what their comments say."""

from pathlib import Path

import pytest

from tests.support.doc_programs import check_page
from tests.support.documents import DOCS, programs
from tests.support.rooms import SOURCE

_REAL = {"development.md", "spark.md"}
"""Pages whose programs need a broker: tests/integration/test_readme.py."""
_GUIDES = sorted(page for page in (DOCS / "guide").glob("*.md") if programs(page) and page.name not in _REAL)
_ROOMS = [SOURCE / room / "README.md" for room in ("producer", "recovery", "materializer", "tables")]
_PAGES = (*_GUIDES, DOCS / "kafka.md", DOCS / "coming-from.md", DOCS / "values.md", DOCS / "rocksdb.md", *_ROOMS)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_a_page_prints_what_its_comments_say(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The comment behind every print has its output, up to a colon."""
    check_page(page, tmp_path, lambda: capsys.readouterr().out)
