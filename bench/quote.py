"""What the README says of speed: some rows of the page of figures, in words of its own.

    python -m bench.quote     # after a run of all: rewrites the README's figures from docs/figures.md

Owns the part of the README from its heading of figures to the sentence behind the table.
"""

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["quoted", "rewritten"]

_ROOT = Path(__file__).parent.parent
_PLAIN = {"one record per change": "one idempotent record per change"}
_REPLAY = {"one record per change, to a dict": "records into a dict"}
_STATE = {"replay of records to a dict": "records of the same into a dict"}
_COMMIT = {"one Kafka transaction": "a Kafka transaction", "flush, not atomic": "a flush, which is not atomic"}
_ROCKSDB = {
    "write batches, every change": "every change in write batches",
    "folded, then write batches": "folded first, then in write batches",
}
_ROWS = (
    ("append in batches, acknowledged and committed", "bulk append (append_batch), 10 commits", _PLAIN),
    ("append change by change", "per-change append (put), 10 commits", _PLAIN),
    ("commit of 100 changes over 8 partitions, p50", "commit of 100 changes, p50", _COMMIT),
    ("the same, p99", "commit of 100 changes, p99", _COMMIT),
    ("replay of every change, into Arrow", "replay to Arrow, every change", _REPLAY),
    ("replay of all into a dict", "replay and fold to a dict", _REPLAY),
    ("recovery from snapshot and tail, into Arrow", "recovery to Arrow, snapshot and tail", _STATE),
    ("the same, into a dict", "recovery to a dict, snapshot and tail", _STATE),
    ("round of the materializer", "materializer round", _STATE),
    ("recovery into RocksDB", "recovery to RocksDB, SST files", _ROCKSDB),
)
"""What the README calls it, what the page does, and the baselines that it names."""


def quoted(page: str) -> str:
    """The README's table, from the text of the page. Raises KeyError for a row that the page lacks."""
    return "\n".join(["| work | statelog | baseline | |", "|---|---|---|---|", *_lines(page)])


def rewritten(readme: str, page: str) -> str:
    """The text of the README with the figures of the page, and where and when they were measured."""
    told = re.search(r"^Written by `make bench`: (.*)\.$", page, re.MULTILINE)
    assert told is not None, "every page says what wrote it"
    readme = re.sub(r"(?<=^Here, with Kafka on the same machine: ).*(?=\.$)", told[1], readme, flags=re.MULTILINE)
    return re.sub(r"^\| work \| statelog \|(?:.*\n)+?(?=\n)", lambda _: f"{quoted(page)}\n", readme, flags=re.MULTILINE)


def _lines(page: str) -> Iterator[str]:
    rows: dict[tuple[str, str], list[str]] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8:
            rows.setdefault((cells[0], cells[4]), cells)
    for work, name, baselines in _ROWS:
        for number, (baseline, words) in enumerate(baselines.items()):
            _, value, _, _, _, beside, _, better = rows[name, baseline]
            figure, unit = value.split(" ", 1)[0], value.partition(") ")[2]
            ours = "| | |" if number else f"| {work} | {figure} {unit} |"
            yield f"{ours} {beside}{' ms' if unit == 'ms' else ''}, {words} | {better} |"


if __name__ == "__main__":
    _readme, _page = _ROOT / "README.md", _ROOT / "docs" / "figures.md"
    _readme.write_text(rewritten(_readme.read_text("utf-8"), _page.read_text("utf-8")), "utf-8")
