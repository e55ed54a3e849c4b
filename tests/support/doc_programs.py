"""Running the programs of a document as they are printed, on the in-memory twins."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from statelog.storage.kafka.memory import MemoryKafka
from statelog.storage.kafka.memory_cluster import MemoryCluster
from statelog.storage.store.memory import MemoryDisk, MemoryStore
from tests.support.documents import programs, said
from tests.support.rigs.log import UNSAFE

__all__ = ["Where", "check_page"]

_OPENED = re.compile(r'(?:open|create)\(\s*"([\w-]+)"')
_PLACE = "/tmp/statelog"


class Where(Mapping[str, Any]):
    """What a document calls `where`: twins of Kafka and of the store, the former through a new client every time."""

    def __init__(self, log: str) -> None:
        self._cluster = MemoryCluster()
        self._disk = MemoryDisk(lambda: 0.0)
        self._log = log

    def __getitem__(self, key: str) -> Any:
        match key:
            case "kafka":
                return MemoryKafka(cluster=self._cluster)
            case "root":
                return MemoryStore(self._disk, self._log)
            case "replication_factor":
                return 1
            case "allow_unsafe":
                return UNSAFE
            case _:
                raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(("kafka", "root", "replication_factor", "allow_unsafe"))

    def __len__(self) -> int:
        return 4


def check_page(page: Path, directory: Path, printed: Callable[[], str], **given: Any) -> None:
    """Run a page's programs one after the other, as one, and compare what each prints with its comments.

    `given` are names that the page takes for granted, beside `where`.
    """
    found = [program.replace(_PLACE, str(directory / "statelog")) for program in programs(page)]
    log = _OPENED.search("".join(found))
    names: dict[str, Any] = {"where": Where(log[1] if log else "visits"), **given}
    for program in found:
        exec(compile(program, str(page), "exec"), names)
        lines = printed().splitlines()
        comments = said(program)
        promised = [_output(comment, line) for comment, line in zip_longest(comments, lines, fillvalue="")]
        assert lines == promised, f"printed {lines}, and not {promised}"


def _output(comment: str, line: str) -> str:
    """The output that a comment promises: all of it, or what stands before a colon and an explanation."""
    return line if line and comment.startswith(f"{line}: ") else comment
