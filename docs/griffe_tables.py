"""Docstrings on their way to the site: aligned lists of names and meanings become Markdown's.

In the source a settings class explains its fields in two columns:

    threads  how many partitions are folded at the same time
    holder   the reader's name in its lease, for people
"""

import re
from typing import Any

import griffe

__all__ = ["AlignedLists"]

_ROW = re.compile(r"([\w.]+) {2,}(\S.*)")


def _listed(paragraph: str) -> str:
    lines = paragraph.split("\n")
    if not _ROW.fullmatch(lines[0]) or not all(_ROW.fullmatch(line) or line.startswith("  ") for line in lines):
        return paragraph
    found = [(_ROW.fullmatch(line), line) for line in lines]
    return "\n".join(f"- `{row[1]}`: {row[2]}" if row else f"  {line.strip()}" for row, line in found)


class AlignedLists(griffe.Extension):
    """Turns the paragraphs of a docstring that are aligned lists into Markdown lists."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Every object once, after it was read."""
        if obj.docstring:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(_listed(paragraph) for paragraph in paragraphs)
