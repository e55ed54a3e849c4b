"""One change after the other: `put` of a Writer and of a Table, and a plain producer's `produce_batch` of the same.

The plain producer waits once, for its flush at the end. So does the first row. The others commit ten times: with the
previous commit pending while the loop goes on, or waiting for each. A table also stores the state; the last row is the
cost of that alone, in two dicts with no log. All are connected and open before they are timed. They alternate, and the
first turn is not counted.

The floor of a Writer's put is the cost of Python and the log without it, "nothing checked": two lists that become a
batch for `append_batch` when they are long enough. The floor of each table is the cost of its state and its log alone,
without layers, checks or guarantees. The state is two dicts, or a write batch of RocksDB for each tenth of the changes.
The client sends the same chunks as the table. The second floor of dicts also makes those chunks: each tenth is a batch
for a Writer, with pending commits as in a table.
"""

import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
import rocksdict

from bench.cost import Cost, costed, figures_of, in_turns
from bench.figures import Figure
from bench.logs import bench_log, put_singly, read_records
from bench.plain import plain_topic
from bench.setting import Setting
from bench.tables import BACKENDS, open_table
from bench.workload import Pairs, batches, pairs
from statelog.pending import Pending
from statelog.producer import Writer
from statelog.recovery.rocksdb_target import rocksdb_options
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.state import LastCommit
from statelog.tables import Table

__all__ = ["put"]

_PLAIN = "produce_batch, one flush"
_COMMITS = 10
_TURNS_EACH = 4
"""The turns of each round: the cost of a take varies by a third."""
_MOST_CHANGES = 1_000_000
"""Enough for a second or more per take: shorter takes depend on what else runs."""
_LISTED = 17_000
"""The number of changes that a writer holds in lists."""
_FLOORS = {"dict": "two dicts, and its chunks sent", "rocksdb": "write batches, and its chunks sent"}


def put(setting: Setting) -> list[Figure]:
    """Measure changes per second, and per CPU second."""
    few = pairs(batches(min(setting.changes, _MOST_CHANGES), setting.keys))
    ways: dict[str, Callable[[Writer, Pairs], None]] = {
        "put of a Writer, one commit": _once,
        f"the same, {_COMMITS} commits under way": _under_way,
        f"the same, {_COMMITS} commits that wait": partial(put_singly, commits=_COMMITS),
        "floor: nothing checked, one commit": partial(_unchecked, commits=1),
        f"floor: nothing checked, {_COMMITS} commits that wait": partial(_unchecked, commits=_COMMITS),
    }
    works = {name: partial(_written, setting, way, few) for name, way in ways.items()}
    for kind in BACKENDS:
        works[f"put of a Table in {kind}, {_COMMITS} commits under way"] = partial(_kept, setting, kind, few)
        works[f"floor: {_FLOORS[kind]}"] = partial(_least, setting, kind, few, _chunks(setting, kind, few))
    works[f"floor: two dicts, and a Writer's batches, {_COMMITS} commits under way"] = partial(
        _written, setting, _dicts_and_batches, few
    )
    works["two dicts, and no log"] = partial(costed, partial(_into_dicts, few))
    costs = in_turns({_PLAIN: partial(_plain, setting, few), **works}, warm=1, turns=_TURNS_EACH * setting.rounds)
    return [
        figure
        for name in works
        for figure in figures_of(name, len(few), costs[name], _PLAIN, costs[_PLAIN], noun="changes")
    ]


# ---- one take of each


def _plain(setting: Setting, few: Pairs) -> Cost:
    with plain_topic(setting.bootstrap) as topic:
        return costed(partial(topic.produce, few, topic.connected()))


def _written(setting: Setting, way: Callable[[Writer, Pairs], None], few: Pairs) -> Cost:
    with bench_log(setting.bootstrap, setting.root) as log, Writer(log, "bench") as writer:
        return costed(partial(way, writer, few))


def _kept(setting: Setting, kind: str, few: Pairs) -> Cost:
    with (
        tempfile.TemporaryDirectory() as home,
        bench_log(setting.bootstrap, setting.root) as log,
        open_table(setting, log.name, kind, Path(home)) as state,
    ):
        return costed(partial(_into, state, few))


def _chunks(setting: Setting, kind: str, few: Pairs) -> list[tuple[int, bytes]]:
    """Return the chunks that a table of this kind sends for these changes, by partition."""
    with tempfile.TemporaryDirectory() as home, bench_log(setting.bootstrap, setting.root) as log:
        with open_table(setting, log.name, kind, Path(home)) as state:
            _into(state, few)
        return [(one.partition, one.value) for one in read_records(log)]


def _least(setting: Setting, kind: str, few: Pairs, chunks: list[tuple[int, bytes]]) -> Cost:
    with tempfile.TemporaryDirectory() as home, plain_topic(setting.bootstrap) as topic:
        send = partial(topic.send, chunks, topic.connected_as_writers())
        return costed(partial(_at_least, kind, few, Path(home) / "db", send))


# ---- the loops


def _once(writer: Writer, few: Pairs) -> None:
    write = writer.put
    for key, value in few:
        write(key, value)
    writer.commit(checkpoint_id=1)


class _Lists:
    """Collects changes without checking the thread, the types or the sizes."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._keys: list[bytes] = []
        self._values: list[bytes] = []

    def put(self, key: bytes, value: bytes) -> None:
        """Append a change to the lists."""
        self._keys.append(key)
        self._values.append(value)
        if len(self._keys) >= _LISTED:
            self.roll()

    def roll(self) -> None:
        """Pass the lists on as a batch."""
        self._writer.append_batch(_table(self._keys, self._values))
        self._keys, self._values = [], []


def _unchecked(writer: Writer, few: Pairs, commits: int) -> None:
    lists, every = _Lists(writer), len(few) // commits
    write = lists.put
    for number, (key, value) in enumerate(few, 1):
        write(key, value)
        if number % every == 0:
            lists.roll()
            writer.commit(checkpoint_id=number)
    lists.roll()
    writer.commit(checkpoint_id=len(few) + 1)


def _table(keys: Iterable[bytes], values: Iterable[bytes]) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


class _UnderWay:
    """The commits of a writer, the last of which is pending while changes come in."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._handle: Pending[Handle] | None = None
        self._commit: Pending[LastCommit] | None = None

    def commit(self) -> None:
        """Wait for the last but one, send the last, persist this one."""
        if self._commit is not None:
            self._commit.result()
        if self._handle is not None:
            self._commit = self._writer.confirm_async(self._handle.result())
        self._handle = self._writer.persist()

    def finish(self) -> None:
        """Commit the rest, and wait for it."""
        if self._commit is not None:
            self._commit.result()
        self._writer.commit()


def _under_way(writer: Writer, few: Pairs) -> None:
    write, every, commits = writer.put, len(few) // _COMMITS, _UnderWay(writer)
    for number, (key, value) in enumerate(few, 1):
        write(key, value)
        if number % every == 0:
            commits.commit()
    commits.finish()


def _dicts_and_batches(writer: Writer, few: Pairs) -> None:
    """Put pending changes into one dict, append every tenth as a batch, and then move it to the other dict."""
    state: dict[bytes, bytes] = {}
    changed: dict[bytes, bytes] = {}
    every, commits = len(few) // _COMMITS, _UnderWay(writer)
    for number, (key, value) in enumerate(few, 1):
        changed[key] = value
        if number % every == 0:
            writer.append_batch(_table(changed, changed.values()))
            commits.commit()
            state.update(changed)
            changed = {}
    commits.finish()


def _into(state: Table[bytes, bytes], few: Pairs) -> None:
    write, every = state.put, len(few) // _COMMITS
    for number, (key, value) in enumerate(few, 1):
        write(key, value)
        if number % every == 0:
            state.commit_async({"offset": number})
    state.commit({"offset": len(few)})


def _at_least(kind: str, few: Pairs, path: Path, send: Callable[[], None]) -> None:
    if kind == "dict":
        _into_dicts(few)
    else:
        _into_batches(few, path)
    send()


def _into_batches(few: Pairs, path: Path) -> None:
    """Write each tenth of the changes as one write batch, with a write-ahead log, in order."""
    every = len(few) // _COMMITS
    with rocksdict.Rdict(str(path), rocksdb_options()) as database:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for number, (key, value) in enumerate(few, 1):
            batch.put(key, value)
            if number % every == 0:
                database.write(batch)
                batch = rocksdict.WriteBatch(raw_mode=True)
        database.write(batch)


def _into_dicts(few: Pairs) -> None:
    """Put pending changes into one dict, and move every tenth to the other."""
    state: dict[bytes, bytes] = {}
    changed: dict[bytes, bytes] = {}
    every = len(few) // _COMMITS
    for number, (key, value) in enumerate(few, 1):
        changed[key] = value
        if number % every == 0:
            state.update(changed)
            changed = {}
