"""A runner for the programs of a document as they are printed, on the in-memory twins."""

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from statelog.testing import Twin
from tests.support.documents import programs, said

__all__ = ["check_page"]

_PLACE = "/tmp/statelog"


def check_page(page: Path, directory: Path, printed: Callable[[], str], **given: Any) -> None:
    """Run a page's programs one after the other, as one, and compare what each prints with its comments.

    `given` are names that the page takes for granted, in addition to `where`.
    """
    found = [program.replace(_PLACE, str(directory / "statelog")) for program in programs(page)]
    names: dict[str, Any] = {"where": Twin().where(), **given}
    for program in found:
        exec(compile(program, str(page), "exec"), names)
        lines = printed().splitlines()
        comments = said(program)
        promised = [_output(comment, line) for comment, line in zip_longest(comments, lines, fillvalue="")]
        assert lines == promised, f"printed {lines}, and not {promised}"


def _output(comment: str, line: str) -> str:
    """Return the output that a comment promises: all of it, or the part before a colon and an explanation."""
    return line if line and comment.startswith(f"{line}: ") else comment
