"""The rows of the page of figures that each document quotes, and their names there."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

from bench.workload import KINDS

__all__ = ["QUOTES", "Quote", "Row", "Rows"]


class Row(NamedTuple):
    """A row of the page: statelog's median, its unit, the baseline's median, and the ratio by which it is better."""

    value: str
    unit: str
    beside: str
    better: str


class Rows:
    """The rows of a page, by name and baseline."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Row]] = {}

    def add(self, name: str, baseline: str, row: Row) -> None:
        """Add a row, unless its name and baseline are there already."""
        self._rows.setdefault(name, {}).setdefault(baseline, row)

    def row(self, name: str, baseline: str) -> Row:
        """Return the row whose baseline begins with this text. Raise KeyError if the page lacks it."""
        found = [row for other, row in self._rows[name].items() if other.startswith(baseline)]
        if not found:
            raise KeyError(name, baseline)
        return found[0]

    def better(self, name: str, baseline: str) -> tuple[str, str]:
        """Return the ratios by which statelog is better: by CPU, and on the clock."""
        return self.row(f"{name}, by CPU", baseline).better, self.row(name, baseline).better


@dataclass(frozen=True, slots=True)
class Quote:
    """A table of a document: its first line, which identifies it, and the function that makes the other lines."""

    head: str
    lines: Callable[[Rows], Iterable[str]]


# ---- how fast it is, and four rows of that in the README

_PLAIN = {"one record per change": "one idempotent record per change"}
_REPLAY = {"one record per change, to a dict": "records into a dict"}
_STATE = {"replay of records to a dict": "records of the same into a dict"}
_TRANSACTION, _FLUSH = "one Kafka transaction", "flush, not atomic"
_COMMIT = {_TRANSACTION: "a Kafka transaction", _FLUSH: "a flush, which is not atomic"}
_ROCKSDB = {
    "write batches, every change": "every change in write batches",
    "folded, then write batches": "folded first, then in write batches",
}
_SPEED = (
    ("append in batches, acknowledged and committed", "bulk append (append_batch), 10 commits", _PLAIN),
    ("append change by change", "per-change append (put), 10 commits", _PLAIN),
    ("commit of 100 changes over 8 partitions, p50", "commit of 100 changes, p50", _COMMIT),
    ("the same, p99", "commit of 100 changes, p99", _COMMIT),
    ("commit of 5 changes over 8 partitions, p50", "commit of 5 changes, p50", _COMMIT),
    ("the broker's CPU for a commit of 100 changes", "commit of 100 changes, the broker's CPU", _COMMIT),
    ("replay of every change, into Arrow", "replay to Arrow, every change", _REPLAY),
    ("replay of all into a dict", "replay and fold to a dict", _REPLAY),
    ("replay of commits of 100 changes, into a dict", "restore to a dict, commits of 100 changes", _REPLAY),
    ("replay of commits of 5 changes, into a dict", "restore to a dict, commits of 5 changes", _REPLAY),
    ("recovery from snapshot and tail, into Arrow", "recovery to Arrow, snapshot and tail", _STATE),
    ("the same, into a dict", "recovery to a dict, snapshot and tail", _STATE),
    ("round of the materializer", "materializer round", _STATE),
    ("recovery into RocksDB", "recovery to RocksDB, SST files", _ROCKSDB),
)
"""The name in the document, the name on the page of figures, and the baselines in the document."""
_README = (
    ("append in batches, acknowledged and committed", "bulk append (append_batch), 10 commits", _PLAIN),
    (
        "commit of 100 changes over 8 partitions, p50",
        "commit of 100 changes, p50",
        {_TRANSACTION: "a Kafka transaction"},
    ),
    ("recovery from snapshot and tail, into a dict", "recovery to a dict, snapshot and tail", _STATE),
    (
        "recovery into RocksDB",
        "recovery to RocksDB, SST files",
        {"write batches, every change": "every change in write batches"},
    ),
)


_Works = Sequence[tuple[str, str, Mapping[str, str]]]


def _works(works: _Works, rows: Rows) -> Iterator[str]:
    for work, name, baselines in works:
        for number, (baseline, words) in enumerate(baselines.items()):
            one = rows.row(name, baseline)
            ours = "| | |" if number else f"| {work} | {one.value} {one.unit} |"
            yield f"{ours} {one.beside}{' ms' if one.unit.endswith('ms') else ''}, {words} | {one.better} |"


# ---- how fast a table is

_PRODUCE = "produce_batch, one flush"
_PUTS = {
    "put of a Writer, one commit": "`put` of a Writer, one commit",
    "the same, 10 commits under way": "the same, ten commits pending while the loop goes on",
    "the same, 10 commits that wait": "the same, waiting for each of ten commits",
    "floor: nothing checked, one commit": "nothing checked: two lists, and `append_batch`",
    "put of a Table in dict, 10 commits under way": "`put` of a Table in a dict, ten commits pending",
    "put of a Table in rocksdb, 10 commits under way": "`put` of a Table in RocksDB, ten commits pending",
    "two dicts, and no log": "two dicts, and no log",
}
_BACKENDS = {"dict": "dict", "rocksdb": "RocksDB"}
_UNDER_THE_LOOP = {"commit under the loop": "commit", "pause of the loop": "pause"}


def _puts(rows: Rows) -> Iterator[str]:
    for name, words in _PUTS.items():
        by_cpu, by_clock = rows.better(name, _PRODUCE)
        yield f"| {words} | {rows.row(name, _PRODUCE).value} M | {by_clock} | {by_cpu} |"


def _under_the_loop(rows: Rows) -> Iterator[str]:
    for (name, words), (kind, backend) in product(_UNDER_THE_LOOP.items(), _BACKENDS.items()):
        p50, p99 = (rows.row(f"{name}, 1,000 changes, {kind}, {share}", _TRANSACTION) for share in ("p50", "p99"))
        yield f"| {words}, {backend} | {p50.value} ms | {p50.better} | {p99.value} ms | {p99.better} |"


# ---- sizing

_SMALL = {"restore to a dict": "`recover(log).to_dict()`", "open of a table": "`statelog.table`, in a dict"}
_OF_KINDS = ("append", "recovery to Arrow", "recovery to a dict", "a round")


def _commits_cpu(rows: Rows) -> Iterator[str]:
    for size, (name, words) in product((100, 5), (("CPU", "the client"), ("the broker's CPU", "the broker"))):
        ours, flush = (rows.row(f"commit of {size} changes, {name}", one) for one in (_TRANSACTION, _FLUSH))
        yield f"| {size} changes, {words} | {ours.value} ms | {ours.beside} ms | {flush.beside} ms | {ours.better} |"


def _small_commits(rows: Rows) -> Iterator[str]:
    for size, (name, words) in product((100, 5), _SMALL.items()):
        work = f"{name}, commits of {size} changes"
        row = rows.row(work, *_REPLAY)
        by_cpu, by_clock = rows.better(work, *_REPLAY)
        yield f"| {size} | {words} | {row.value} M | {row.beside} M | {by_clock} | {by_cpu} |"


def _key_kinds(rows: Rows) -> Iterator[str]:
    for kind in KINDS:
        found = [rows.row(f"{work}, keys: {kind}, by CPU", "") for work in _OF_KINDS]
        yield f"| {kind} | {' | '.join(f'{one.value} M, {one.better}' for one in found)} |"


# ---- Kafka

_SHAPES = ((1, 1), (8, 1), (64, 1), (64, 20))


def _far(rows: Rows) -> Iterator[str]:
    for request_ms in (5, 20, 100):
        name = f"commit of 100 changes, {request_ms} ms a request"
        p50, p99 = (rows.row(f"{name}, {share}", _TRANSACTION) for share in ("p50", "p99"))
        yield f"| {request_ms} ms more | {p50.value} ms | {p99.value} ms | {p50.beside} ms | {p99.beside} ms |"


def _shapes(rows: Rows) -> Iterator[str]:
    for partitions, writers in _SHAPES:
        name = f"commit of 100 changes, {partitions} partitions, {writers} writer{'s' if writers > 1 else ''}"
        ours, floor = (
            [rows.row(f"{name}{what}, {share}", _TRANSACTION) for share in ("p50", "p99", "p99.9")]
            for what in ("", ", floor")
        )
        told = ([one.value for one in ours], [one.value for one in floor], [one.beside for one in ours])
        yield f"| {partitions}, {writers} | {' | '.join(map(', '.join, told))} |"


# ---- Spark

_KEPT, _CHECKED = (
    "Spark: rows written, exactly once, uniqueKeys",
    "Spark: rows written, exactly once, brought together and checked",
)
_SPARK = (
    ("committed changes", "Spark: committed changes", {"Kafka source": "Spark's Kafka source"}),
    (
        "a state, default number of tasks",
        "Spark: state, default slices",
        {
            "spark.read.parquet of the same runs": "Parquet of the same runs",
            "format('statestore'), RocksDB": "state store (RocksDB, from its snapshots)",
            "the floor: a Python source of prepared rows": "floor: a Python source of prepared rows",
            "the floor: one that only decodes the runs": "floor: one that only decodes the same Parquet",
        },
    ),
    (
        "rows written exactly once, `uniqueKeys`",
        _KEPT,
        {
            "Kafka sink, at least once": "Spark's Kafka sink, at least once",
            "the floor: a Python sink that does nothing": "floor: a Python sink that does nothing",
            "the floor: a Python sink that only sends": "floor: one that sends Spark's Arrow batches, compressed",
        },
    ),
    (
        "the same behind `repartition_by_key_group`, checked",
        _CHECKED,
        {
            "Kafka sink, at least once": "Spark's Kafka sink, which shuffles nothing",
            "the floor: a Python sink that does nothing": "floor: a Python sink, behind the same shuffle",
        },
    ),
    (
        "first write of a session, 1,000 rows",
        "Spark: first take, 1,000 rows",
        {"Spark's Kafka sink": "Spark's Kafka sink", "the floor": "floor: a Python sink that does nothing"},
    ),
)
_SPARK_BATCHES = (("micro-batch of 100 rows, one query", 1), ("the same, three queries at once", 3))


def _spark(rows: Rows) -> Iterator[str]:
    for work, name, baselines in _SPARK:
        for number, (baseline, words) in enumerate(baselines.items()):
            one = rows.row(name, baseline)
            by_cpu, by_clock = rows.better(name, baseline)
            ours = "| | |" if number else f"| {work} | {one.value} {one.unit} |"
            yield f"{ours} {words} | {one.beside} | {by_cpu} | {by_clock} |"
    for work, queries in _SPARK_BATCHES:
        one = rows.row(f"Spark: micro-batch of 100 rows, {queries} at once", "")
        yield f"| {work} | {one.value} ms | floor: a Python sink that does nothing | {one.beside} | | {one.better} |"


QUOTES: Mapping[str, Sequence[Quote]] = {
    "README.md": [Quote("| work | statelog | baseline | |", partial(_works, _README))],
    "docs/guide/speed.md": [Quote("| work | statelog | baseline | |", partial(_works, _SPEED))],
    "docs/guide/table-speed.md": [
        Quote("| work | changes/s | on the clock | by CPU |", _puts),
        Quote("| | p50 | beside a transaction | p99 | beside a transaction |", _under_the_loop),
    ],
    "docs/sizing.md": [
        Quote(
            "| a commit of | CPU | of a Kafka transaction | of a flush, not atomic | beside a transaction |",
            _commits_cpu,
        ),
        Quote("| commits of | into | changes/s | plain topic | on the clock | by CPU |", _small_commits),
        Quote(f"| keys | {' | '.join(_OF_KINDS)} |", _key_kinds),
    ],
    "docs/kafka.md": [
        Quote("| each request takes | p50 | p99 | one Kafka transaction, p50 | p99 |", _far),
        Quote("| partitions, writers | a commit | its floor | one Kafka transaction |", _shapes),
    ],
    "docs/guide/spark-speed.md": [Quote("| work | statelog | beside | | by CPU | on the clock |", _spark)],
}
"""The tables of each document, by its path."""
