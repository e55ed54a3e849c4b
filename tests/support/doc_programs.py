"""Running the programs of a document as they are printed, on the in-memory twins."""

import re
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from statelog.storage.log.where import Where
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.documents import programs, said
from tests.support.rigs.log import UNSAFE

__all__ = ["check_page", "doc_where"]

_OPENED = re.compile(r'(?:open|create)\(\s*"([\w-]+)"')
_PLACE = "/tmp/statelog"


class _Kept(MemoryKafka):
    """A twin that serves all the programs of a document: who closes it closes nothing."""

    def close(self) -> None:
        """Go on."""


def doc_where(log: str) -> Where:
    """What a document calls `where`: twins of Kafka and of the store."""
    store = MemoryStore(MemoryDisk(lambda: 0.0), log)
    return Where(_Kept(cluster=MemoryCluster()), store, allow_unsafe=UNSAFE, replication_factor=1)


def check_page(page: Path, directory: Path, printed: Callable[[], str], **given: Any) -> None:
    """Run a page's programs one after the other, as one, and compare what each prints with its comments.

    `given` are names that the page takes for granted, beside `where`.
    """
    found = [program.replace(_PLACE, str(directory / "statelog")) for program in programs(page)]
    log = _OPENED.search("".join(found))
    names: dict[str, Any] = {"where": doc_where(log[1] if log else "visits"), **given}
    for program in found:
        exec(compile(program, str(page), "exec"), names)
        lines = printed().splitlines()
        comments = said(program)
        promised = [_output(comment, line) for comment, line in zip_longest(comments, lines, fillvalue="")]
        assert lines == promised, f"printed {lines}, and not {promised}"


def _output(comment: str, line: str) -> str:
    """The output that a comment promises: all of it, or what stands before a colon and an explanation."""
    return line if line and comment.startswith(f"{line}: ") else comment
