"""The format documents show bytes that this version really writes."""

import re
from pathlib import Path

import pytest

from tests.support.samples.format_examples import EXAMPLES, dump_in, hex_dump, undump

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_the_documents_examples_decode(name: str) -> None:
    """The dump in the document, read as bytes, decodes to the value that the document describes."""
    example = EXAMPLES[name]
    dump = dump_in((DOCS / f"{example.document}.md").read_text("utf-8"), name)
    assert example.decode(undump(dump, example.schema_text)) == example.value


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_the_documents_show_what_is_written(name: str) -> None:
    """The dump is the one of today's bytes, so a change of the format has to change the document."""
    example = EXAMPLES[name]
    assert dump_in((DOCS / f"{example.document}.md").read_text("utf-8"), name) == hex_dump(example)


def test_no_example_is_left_untested() -> None:
    """Every marker in the documents belongs to an example."""
    documents = {example.document for example in EXAMPLES.values()}
    marked = {name for document in documents for name in _markers(document)}
    assert marked == set(EXAMPLES)


def _markers(document: str) -> list[str]:
    return re.findall(r"<!-- example: ([a-z-]+) -->", (DOCS / f"{document}.md").read_text("utf-8"))
