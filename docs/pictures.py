"""The pictures of the documents: SVG, drawn from here, so that all of them look alike.

`python docs/pictures.py` writes `docs/pictures/*.svg`. A file follows the reader's scheme by a media query; on the site
`mkdocs_hook.py` puts the same text into the page, where the switch of the page decides. The figures of the plot are
those of the table in `docs/guide/speed.md`, and nothing else.

Invariant: a picture names nothing that its page does not explain; its `<desc>` says in words what it shows.
"""

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

__all__ = ["FOLDER", "PICTURES", "figures", "main"]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
WIDTH = 560
_LIGHT = (
    "--ink:#1f2937;--soft:#5b6472;--line:#6b7280;"
    "--paper:#ffffff;--box:#eef2ff;--edge:#4051b5;--gone:#d7dbe2;--warm:#b45309"
)
_DARK = (
    "--ink:#e6e9ef;--soft:#a9b1bf;--line:#98a2b3;"
    "--paper:#1e2129;--box:#2a3150;--edge:#93a4ff;--gone:#444b59;--warm:#fbbf24"
)
_STYLE = f"""
svg.sl {{ {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ svg.sl {{ {_DARK} }} }}
svg.sl .paper {{ fill: var(--paper); }}
svg.sl text {{ fill: var(--ink); font: 15px system-ui, sans-serif; }}
svg.sl text {{ paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }}
svg.sl .box + text, svg.sl .box + text + .small, svg.sl .small + .small, svg.sl .gone + text {{ stroke: none; }}
svg.sl .small {{ fill: var(--soft); font-size: 13px; }}
svg.sl .head {{ font-weight: 600; }}
svg.sl .warm {{ fill: var(--warm); }}
svg.sl .box {{ fill: var(--box); stroke: var(--edge); stroke-width: 1.5; }}
svg.sl .frame {{ fill: none; stroke: var(--line); stroke-dasharray: 5 4; }}
svg.sl .gone {{ fill: var(--gone); stroke: none; }}
svg.sl .bar {{ fill: var(--edge); }}
svg.sl .lane {{ stroke: var(--gone); stroke-width: 2; }}
svg.sl .arrow {{ fill: none; stroke: var(--line); stroke-width: 1.5; marker-end: url(#sl-tip); }}
svg.sl .dashed {{ stroke-dasharray: 5 4; }}
svg.sl .tip {{ fill: var(--line); }}
"""
_TIP = (
    '<defs><marker id="sl-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse">'
    '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
)


class Drawing:
    """What is drawn so far, in the order in which it lies upon each other. Units are those of a width of 560."""

    def __init__(self, height: int) -> None:
        self.height = height
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Words on the base line `y`."""
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        look = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}"{place}{look}>{escape(words, quote=False)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        """A rectangle without words."""
        corner = ' rx="6"' if kind in {"box", "frame"} else ""
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{corner}/>')

    def box(self, x: float, y: float, width: float, height: float, head: str, *lines: str) -> None:
        """A box with a heading and small lines below it, in its middle."""
        self.rect(x, y, width, height)
        top = y + height / 2 + 5 - 9 * len(lines)
        self.text(x + width / 2, top, head, "head", "middle")
        for number, line in enumerate(lines, 1):
            self.text(x + width / 2, top + 18 * number, line, "small", "middle")

    def arrow(self, points: Sequence[tuple[float, float]], *, dashed: bool = False) -> None:
        """An arrow through the points to the last one."""
        way = " ".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="arrow{" dashed" if dashed else ""}" d="M{way}"/>')

    def lane(self, x: float, top: float, end: float, name: str) -> None:
        """A party of a story that goes from top to bottom."""
        self.text(x, top - 12, name, "head", "middle")
        self._parts.append(f'<path class="lane" d="M{x:g} {top:g} {x:g} {end:g}"/>')

    def svg(self, title: str, says: str) -> str:
        """The file."""
        head = f'<svg class="sl" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" '
        paper = f'<rect class="paper" width="{WIDTH}" height="{self.height}"/>'
        name = f'aria-label="{escape(title)}">'
        told = f"<title>{escape(title)}</title>\n<desc>{escape(says)}</desc>"
        return "\n".join((head + name, told, f"<style>{_STYLE}</style>", _TIP, paper, *self._parts, "</svg>", ""))


def _flow() -> Drawing:
    d = Drawing(452)
    d.box(12, 12, 236, 62, "Writer, Table", "put, delete, append, commit")
    d.box(312, 12, 236, 62, "recover()", "dict, Arrow, RocksDB, Spark, ...")
    d.rect(12, 138, 536, 104, "frame")
    d.text(24, 160, "Kafka", "small")
    d.box(28, 170, 232, 58, "data topic", "chunks, by key group")
    d.box(284, 170, 206, 58, "ledger", "commits, in one order")
    d.arrow([(80, 74), (80, 168)])
    d.text(88, 108, "chunks", "small")
    d.arrow([(200, 74), (200, 120), (320, 120), (320, 168)])
    d.text(208, 112, "Open, Commit", "small")
    d.arrow([(430, 138), (430, 76)])
    d.text(422, 100, "committed tail", "small", "end")
    d.box(12, 338, 206, 84, "materializer", "rolls commits up,", "round after round")
    d.rect(290, 316, 258, 124, "frame")
    d.text(302, 337, "S3, GCS, Azure, HDFS, a directory", "small")
    d.box(306, 348, 226, 76, "snapshots", "manifests, and runs:", "sorted Parquet files")
    d.arrow([(80, 242), (80, 336)])
    d.text(88, 274, "commits", "small")
    d.arrow([(180, 338), (180, 244)], dashed=True)
    d.text(188, 302, "truncates both topics below what is kept", "small")
    d.arrow([(218, 386), (304, 386)])
    d.arrow([(524, 316), (524, 76)])
    d.text(516, 272, "newest snapshot", "small", "end")
    return d


def _life() -> Drawing:
    d = Drawing(512)
    writer, data, ledger, store = 66, 214, 350, 492
    for x, name in ((writer, "writer"), (data, "data topic"), (ledger, "ledger"), (store, "snapshots")):
        d.lane(x, 36, 434, name)
    d.text(writer + 10, 66, "1  put: checked and buffered, no I/O", "small")
    d.text(writer + 10, 102, "2  persist: sorted, cut into chunks", "small")
    d.arrow([(writer, 112), (data, 112)])
    d.text(writer + 10, 148, "3  acknowledged: a handle; nobody sees it yet", "small")
    d.arrow([(data, 158), (writer, 158)], dashed=True)
    d.text(writer + 10, 194, "4  confirm: one record, and it is history", "small")
    d.arrow([(writer, 204), (ledger, 204)])
    d.text(writer + 10, 240, "5  readers fold the ledger, and fetch what commits list", "small")
    d.arrow([(ledger, 250), (data, 250)])
    d.text(writer + 10, 290, "6  a round: the last change of each key, sorted", "small")
    d.arrow([(data, 300), (store, 300)])
    d.text(writer + 10, 340, "7  both topics are truncated below what is kept", "small")
    d.arrow([(store, 350), (data, 350)], dashed=True)
    d.text(writer + 10, 390, "8  recovery: the newest snapshot, and then the tail", "small")
    d.box(150, 434, 350, 62, "the state at a position", "exactly what was committed below it")
    d.arrow([(store, 402), (store, 432)])
    d.arrow([(data, 402), (data, 432)])
    return d


def _recovery() -> Drawing:
    d = Drawing(344)
    start, end, manifest, target = 12, 548, 240, 432
    for x, name, note in ((manifest, "position", "of the snapshot"), (target, "target", "taken once")):
        d.text(x, 20, name, "head", "middle")
        d.text(x, 37, note, "small", "middle")
        d.arrow([(x, 44), (x, 58)])
    d.rect(start, 54, 130, 14, "gone")
    d.text(start, 46, "truncated", "small")
    d.arrow([(start, 61), (end, 61)])
    d.text(end, 46, "ledger", "small", "end")
    d.box(start, 78, manifest - start - 3, 62, "newest snapshot", "the state at its position")
    d.box(manifest + 3, 78, target - manifest - 6, 62, "committed tail", "what commits list")
    d.rect(target + 3, 78, end - target - 3, 62, "frame")
    d.text((target + end) / 2, 114, "later commits", "small", "middle")
    d.text(344, 160, "leased: truncation waits", "small warm")
    d.box(124, 190, 312, 60, "fold", "last change per key, slice by slice")
    d.arrow([(200, 140), (200, 188)])
    d.arrow([(336, 140), (336, 188)])
    d.arrow([(280, 250), (280, 284)])
    for number, name in enumerate(("dict", "Arrow", "Parquet", "RocksDB", "stream")):
        d.box(12 + 109 * number, 288, 100, 40, name)
    return d


def _run(d: Drawing, x: float, y: float, width: float, height: float, words: str = "") -> None:
    d.rect(x, y, width, height)
    d.text(x + width / 2, y + height / 2 + 5, words, "small", "middle")


def _levels() -> Drawing:
    d = Drawing(444)
    left, right, base = 84, 540, 330
    for top, name in ((34, "before a round"), (246, "after it")):
        d.text(left, top - 10, name, "head")
        d.text(left - 10, top + 40, "key", "small", "end")
        d.text(left - 10, top + 58, "groups", "small", "end")
        d.arrow([(left, top + 134), (right, top + 134)])
        d.text(right, top + 152, "ledger position", "small", "end")
    for top in (34, 246):
        _run(d, left, top, base - left - 3, 60, "all changes up to here,")
        _run(d, left, top + 64, base - left - 3, 60, "in two files of key groups")
    for number in range(3):
        _run(d, base + 40 * number, 34, 37, 124, "")
    d.rect(base + 120, 34, 60, 124, "frame")
    d.text(base + 150, 92, "new", "small", "middle")
    d.text(base + 150, 108, "commits", "small", "middle")
    _run(d, base, 246, 180, 124, "one run of the next level")
    d.text(base, 24, "runs of one level", "small")
    d.arrow([(base + 90, 180), (base + 90, 240)])
    d.text(base + 80, 204, "the fourth fills the level, and they are merged", "small", "end")
    d.text(left, 428, "A delete vanishes only in a merge that starts at position 0.", "small")
    return d


def _takeover() -> Drawing:
    d = Drawing(424)
    owner, ledger, standby = 82, 280, 478
    d.lane(owner, 36, 300, "owner")
    d.lane(ledger, 36, 384, "ledger")
    d.lane(standby, 36, 384, "standby")
    for y, offset in ((66, 41), (116, 42)):
        d.text(owner + 10, y - 8, "Commit, epoch 40", "small")
        d.arrow([(owner, y), (ledger - 14, y)])
        d.box(ledger - 14, y - 14, 28, 28, str(offset))
        d.arrow([(ledger + 14, y + 10), (standby, y + 10)], dashed=True)
    d.text(standby - 10, 68, "follows", "small", "end")
    d.text(owner + 10, 160, "hangs, or dies", "small warm")
    d.text(standby - 10, 200, "promote(): Open", "small", "end")
    d.arrow([(standby, 208), (ledger + 14, 208)])
    d.box(ledger - 14, 194, 28, 28, "43")
    d.text(ledger - 22, 206, "fences epoch 40:", "small", "end")
    d.text(ledger - 22, 224, "43 is the new epoch", "small", "end")
    d.arrow([(ledger + 14, 254), (standby, 254)], dashed=True)
    d.text(standby - 10, 246, "what it still lacks", "small", "end")
    d.text(owner + 10, 282, "Commit, epoch 40", "small")
    d.arrow([(owner, 290), (ledger - 14, 290)])
    d.rect(ledger - 14, 276, 28, 28, "gone")
    d.text(ledger, 296, "44", "small", "middle")
    d.text(ledger + 22, 296, "void, for every reader", "small warm")
    d.text(owner, 320, "Fenced", "head", "middle")
    d.text(standby - 10, 352, "Commit, epoch 43", "small", "end")
    d.arrow([(standby, 360), (ledger + 14, 360)])
    d.box(ledger - 14, 346, 28, 28, "45")
    d.text(ledger - 22, 366, "the state goes on", "small", "end")
    d.text(WIDTH / 2, 410, "No clock decides: the order of the ledger does.", "small", "middle")
    return d


def _demo() -> Drawing:
    d = Drawing(300)
    job, ledger, reader = 82, 280, 478
    d.lane(job, 36, 262, "Spark job")
    d.lane(ledger, 36, 262, "ledger")
    d.lane(reader, 36, 262, "second query")
    d.text(job + 10, 58, "batches 0 to 19", "small")
    d.arrow([(job, 66), (ledger - 14, 66)])
    d.box(ledger - 14, 52, 28, 28, "20")
    d.arrow([(ledger + 14, 72), (reader, 72)], dashed=True)
    d.text(reader - 10, 64, "every change, once", "small", "end")
    d.text(job + 10, 108, "batch 20, then SIGKILL", "small warm")
    d.text(job + 10, 148, "next run: Open, fences", "small")
    d.arrow([(job, 158), (ledger - 14, 158)])
    d.text(job + 10, 188, "batches 20 to 39", "small")
    d.arrow([(job, 196), (ledger - 14, 196)])
    d.box(ledger - 14, 182, 28, 28, "40")
    d.arrow([(ledger + 14, 202), (reader, 202)], dashed=True)
    d.text(job + 10, 236, "a late write of before", "small")
    d.arrow([(job, 244), (ledger - 14, 244)])
    d.rect(ledger - 14, 230, 28, 28, "gone")
    d.text(ledger + 22, 250, "void", "small warm")
    d.text(WIDTH / 2, 286, "Both results equal a plain loop over 334,264 flights.", "small", "middle")
    return d


class Figure(NamedTuple):
    """A line of the table of figures: the work, statelog's figure, and each baseline with its name."""

    work: str
    ours: float
    baselines: tuple[tuple[float, str], ...]
    unit: str


def figures() -> list[Figure]:
    """The table of figures, with the lines of further baselines joined to the work above them."""
    text = (ROOT / "docs" / "guide" / "speed.md").read_text(encoding="utf-8")
    found: list[Figure] = []
    for work, ours, beside in re.findall(r"^\| (.*?) ?\| (.*?) ?\| ([\d.]+.*?) \|", text, re.MULTILINE):
        value, _, name = beside.partition(",")
        baseline = (float(value.split()[0]), name.strip())
        if work:
            number, _, unit = ours.partition(" ")
            found.append(Figure(work, float(number), (baseline,), unit))
        else:
            found[-1] = found[-1]._replace(baselines=(*found[-1].baselines, baseline))
    return found


def _plot() -> Drawing:
    found = figures()
    rates = [one for one in found if one.unit == "M changes/s"]
    times = [[one for one in found if one.unit == unit] for _, unit in _TIMES]
    bars = [[len(one.baselines) + 1 for one in several] for several in times]
    d = Drawing(64 + 34 * len(rates) + sum(44 + 19 * sum(some) + 10 * len(some) for some in bars))
    d.text(0, 18, "Millions of changes a second", "head")
    d.rect(0, 29, 12, 10, "bar")
    d.text(18, 38, "statelog", "small")
    d.rect(96, 29, 12, 10, "gone")
    d.text(114, 38, "the baseline: one record for each change", "small")
    y = 54.0
    for one in rates:
        d.text(0, y + 16, _SHORT[one.work], "small")
        for number, value in enumerate((one.ours, one.baselines[0][0])):
            _bar(d, y + 13 * number, value / max(rate.ours for rate in rates), f"{value:g}", number == 0)
        y += 34
    for (heading, _), several in zip(_TIMES, times, strict=True):
        d.text(0, y + 30, heading, "head")
        y += 44
        longest = max(value for one in several for value, _ in ((one.ours, ""), *one.baselines))
        for one in several:
            y = _bars(d, y, one, longest) + 10
    return d


def _bars(d: Drawing, y: float, one: Figure, longest: float) -> float:
    """Draw a bar for statelog and for each baseline, from `y` on; return where they end."""
    for number, (value, name) in enumerate(((one.ours, "statelog"), *one.baselines)):
        d.text(0, y + 10, f"{_SHORT[one.work]}, {name.replace('which is not', 'not')}", "small")
        _bar(d, y, value / longest, f"{value:g} ms", number == 0)
        y += 19
    return y


_TIMES = (
    ("Milliseconds to commit 100 changes, or 5", "ms"),
    ("Milliseconds of the broker's CPU for a commit", "CPU ms"),
)
"""What is drawn below the rates: its heading, and its unit in the table."""
_SHORT = {
    "append in batches, acknowledged and committed": "append in batches",
    "append change by change": "append one by one",
    "commit of 100 changes over 8 partitions, p50": "100, p50",
    "the same, p99": "100, p99",
    "commit of 5 changes over 8 partitions, p50": "5, p50",
    "the broker's CPU for a commit of 100 changes": "100",
    "replay of every change, into Arrow": "replay into Arrow",
    "replay of all into a dict": "replay into a dict",
    "replay of commits of 100 changes, into a dict": "commits of 100 into a dict",
    "replay of commits of 5 changes, into a dict": "commits of 5 into a dict",
    "recovery from snapshot and tail, into Arrow": "snapshot and tail into Arrow",
    "the same, into a dict": "snapshot and tail into a dict",
    "round of the materializer": "round of the materializer",
    "recovery into RocksDB": "recovery into RocksDB",
}
"""Each work of the table in the room that is left of its bars."""


def _bar(d: Drawing, y: float, share: float, words: str, is_ours: bool) -> None:
    width = max(2.0, round(share * 270, 1))
    d.rect(218, y, width, 11, "bar" if is_ours else "gone")
    d.text(218 + width + 6, y + 10, words, "small")


PICTURES: dict[str, tuple[Callable[[], Drawing], str, str]] = {
    "flow": (
        _flow,
        "How it flows",
        "A writer sends chunks to the data topic, and Open and Commit to the ledger. The materializer reads what is "
        "committed, puts snapshots on the file system, and truncates both topics below. A recovery reads the newest "
        "snapshot and the committed tail.",
    ),
    "life": (
        _life,
        "The life of a change",
        "Put, persisted, acknowledged, confirmed by one record of the ledger, read, rolled into a snapshot, truncated "
        "in the topics, recovered.",
    ),
    "recovery": (
        _recovery,
        "What a recovery reads",
        "The newest snapshot has the state at its position; the committed tail leads from there to the target. Both "
        "are folded to the last change of each key, and fill a dict, Arrow, Parquet, RocksDB or a stream.",
    ),
    "levels": (
        _levels,
        "The levels of a snapshot",
        "Runs lie over ledger positions and key groups. A round adds a run of the new commits; when there are four of "
        "one level, they are merged into one of the next.",
    ),
    "takeover": (
        _takeover,
        "A takeover",
        "A standby follows the ledger. Its promotion writes an Open, which fences the owner's epoch; a commit of the "
        "old owner behind it is void for every reader.",
    ),
    "demo": (
        _demo,
        "The demo",
        "A Spark job is killed between two commits. Its next life fences it and goes on at batch 20; a late write of "
        "the first life is void. A second query has every change once.",
    ),
    "figures": (
        _plot,
        "Figures, beside their baselines",
        "The figures of the table as bars.",
    ),
}
"""By the name of its file: how it is drawn, its title, and what it shows in words."""


def main() -> None:
    """Write all files."""
    for name, (draw, title, says) in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(title, says), encoding="utf-8")


if __name__ == "__main__":
    main()
