"""The documents' tables of speed: some rows of the page of figures, in other words.

    python -m bench.quote     # after a run of all: rewrites these tables from docs/figures.md

Owns the tables below the head lines in `bench.quotes`, and the sentence on the place and time of measurement.
"""

import re
from pathlib import Path

from bench.quotes import QUOTES, Quote, Row, Rows

__all__ = ["quoted", "rewritten"]

_TABLE = re.compile(r"^(?:[|].*\n)+")
_ROOT = Path(__file__).parent.parent


def quoted(quote: Quote, page: str) -> str:
    """Return a document's table, from the text of the page. Raise KeyError for a row that the page lacks."""
    rule = "|".join("---" for _ in range(quote.head.count("|") - 1))
    return "\n".join([quote.head, f"|{rule}|", *quote.lines(_rows(page))])


def rewritten(document: str, text: str, page: str) -> str:
    """Return the text of a document with the figures of the page, and their place and time of measurement."""
    told = re.search(r"^Written by `make bench`: (.*)\.$", page, re.MULTILINE)
    assert told is not None, "every page says what wrote it"
    text = re.sub(r"(?<=^Here, with Kafka on the same machine: ).*(?=\.$)", told[1], text, flags=re.MULTILINE)
    for quote in QUOTES[document]:
        head, _, below = text.partition(f"{quote.head}\n")
        assert below, f"{document} has the table {quote.head}"
        text = f"{head}{quoted(quote, page)}\n{_TABLE.sub('', below)}"
    return text


def _rows(page: str) -> Rows:
    rows = Rows()
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8:
            name, value, _, _, baseline, beside, _, better = cells
            figure, unit = value.split(" ", 1)[0], value.partition(") ")[2]
            rows.add(name, baseline, Row(value=figure, unit=unit, beside=beside, better=better))
    return rows


if __name__ == "__main__":
    _page = (_ROOT / "docs" / "figures.md").read_text("utf-8")
    for _name in QUOTES:
        _path = _ROOT / _name
        _path.write_text(rewritten(_name, _path.read_text("utf-8"), _page), "utf-8")
