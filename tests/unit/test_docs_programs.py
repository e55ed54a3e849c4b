"""The Python programs of docs/values.md and docs/rocksdb.md run as they are printed, on the twins."""

import re
from pathlib import Path
from typing import Any

import pytest

from statelog.storage.kafka.memory import MemoryKafka
from statelog.storage.store.memory import MemoryDisk, MemoryStore
from tests.support.rigs.log import UNSAFE

_DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "log"), [("values.md", "orders"), ("rocksdb.md", "visits")])
def test_a_program_prints_what_its_comments_say(
    page: str, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind every print stands what it prints, up to a colon."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    store = MemoryStore(MemoryDisk(lambda: 0.0), log)
    where: dict[str, Any] = {"kafka": MemoryKafka(), "root": store, "allow_unsafe": UNSAFE}
    exec(program, {"where": where, "directory": tmp_path})
    said = re.findall(r"(?:print\(.*\)|^ *}\))  # (.*?)(?:: [a-z0-9].*)?$", program, re.MULTILINE)
    assert len(said) == program.count("print(")
    assert capsys.readouterr().out.splitlines() == said
