"""The format documents show bytes that this version really writes."""

import re

import pytest

from tests.support.documents import DOCS
from tests.support.samples.format_examples import EXAMPLES, Example

_ROW_BYTES = 16
_SCHEMA_ROW = "(the schema's text)"


def hex_dump(example: Example) -> str:
    """Return rows of an offset, up to 16 bytes in hexadecimal, and the printable ones as text.

    A schema's text is one row.
    """
    if not example.schema_text:
        return "\n".join(_rows(example.data, 0))
    start = example.data.index(example.schema_text)
    end = start + len(example.schema_text)
    gap = f"{start:04x}  {_SCHEMA_ROW} {len(example.schema_text)} bytes"
    return "\n".join([*_rows(example.data[:start], 0), gap, *_rows(example.data[end:], end)])


def _rows(data: bytes, offset: int) -> list[str]:
    rows: list[str] = []
    for start in range(0, len(data), _ROW_BYTES):
        row = data[start : start + _ROW_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{offset + start:04x}  {row.hex(' '):<47}  {text}")
    return rows


def undump(dump: str, schema_text: bytes) -> bytes:
    """Return the bytes of a dump."""
    rows = (row[6:53] for row in dump.splitlines())
    return b"".join(schema_text if row.startswith(_SCHEMA_ROW) else bytes.fromhex(row) for row in rows)


def dump_in(document: str, name: str) -> str:
    """Return the dump that a document shows under this example's marker, or an empty text."""
    found = re.search(rf"<!-- example: {name} -->\n```text\n(.*?)\n```", document, re.DOTALL)
    return found.group(1) if found else ""


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_the_documents_examples_decode(name: str) -> None:
    """The dump in the document decodes to the value that the document describes."""
    example = EXAMPLES[name]
    dump = dump_in((DOCS / f"{example.document}.md").read_text("utf-8"), name)
    assert example.decode(undump(dump, example.schema_text)) == example.value


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_the_documents_show_what_is_written(name: str) -> None:
    """The dump has today's bytes, so a change of the format has to change the document."""
    example = EXAMPLES[name]
    assert dump_in((DOCS / f"{example.document}.md").read_text("utf-8"), name) == hex_dump(example)


def test_no_example_is_left_untested() -> None:
    """Every marker in the documents belongs to an example."""
    documents = {example.document for example in EXAMPLES.values()}
    marked = {name for document in documents for name in _markers(document)}
    assert marked == set(EXAMPLES)


def _markers(document: str) -> list[str]:
    return re.findall(r"<!-- example: ([a-z-]+) -->", (DOCS / f"{document}.md").read_text("utf-8"))
