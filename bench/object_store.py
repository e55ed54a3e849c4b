"""Object stores: the effect of request latency on an open, a restore, a round and a first commit, and the requests.

One log lies on local files, an equal one on S3 behind a proxy, which delays each request by 0, 10, 30 and 100 ms. They
alternate. The restore has two floors. In the first, Arrow's own S3 client reads the same runs from the same place,
without checking or merging. The second skips the rows that the tail replaces, which it knows in advance, while the
client reads the tail. The proxy counts the requests, including those that S3's client makes by itself. The daemon of an
idle log is measured over a few intervals of twenty seconds.
"""

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from docker.errors import DockerException

import statelog
from bench.figures import Figure, Took, medians, timed
from bench.logs import PARTITIONS, bench_where, bulk_append, passed_over, read_planned
from bench.setting import Setting
from bench.slow_store import SlowStore, slow_store
from bench.tables import first_commit
from bench.workload import batches, every_key
from statelog.log import Log, LogOptions, Where
from statelog.materializer import Control, Materializer, MaterializerSettings
from statelog.materializer.cleanup import VerifiedRuns
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round
from statelog.materializer.settings import MaterializerTuning
from statelog.recovery import recover
from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.tables import TableSettings

__all__ = ["object_store"]

_REQUEST_S = (0.0, 0.01, 0.03, 0.1)
_LARGER = 10
_INTERVAL_S = 20.0
_INTERVALS = 4
_WRITE_DOLLARS, _READ_DOLLARS = 5.0, 0.4
"""The price of a million requests of either kind at S3 Standard, in its first region, by its public price list."""


def object_store(setting: Setting) -> list[Figure]:
    """Measure seconds on S3 and on local files, and the requests to S3. Left out without Docker."""
    with ExitStack() as stack:
        settings = MaterializerSettings(scratch=Path(stack.enter_context(tempfile.TemporaryDirectory())))
        try:
            store = stack.enter_context(slow_store())
        except DockerException as error:
            print(f"left out: object-store, for its S3 service does not start: {error}", file=sys.stderr)
            return []
        local = _Works(stack, bench_where(setting.bootstrap, setting.root), setting, settings)
        far = _Works(stack, _on(setting, store), setting, settings)
        figures = [
            figure
            for one, other in zip(local.all(), far.all(), strict=True)
            for figure in _figures(store, one, other, setting.rounds)
        ]
        far.round_up()
        return [*figures, *_idle(far.log, store)]


def _on(setting: Setting, store: SlowStore) -> Where:
    return Where(
        {"bootstrap.servers": setting.bootstrap},
        store.root,
        storage_options=store.storage_options,
        allow_unsafe=("replication", "min-insync"),
        replication_factor=1,
    )


class _Work(NamedTuple):
    """Some timed work, with its preparation before each take."""

    name: str
    make_ready: Callable[[], None]
    do: Callable[[], None]
    floors: Mapping[str, Callable[[], object]] = {}
    """The baselines on S3, by name."""


def _nothing() -> None:
    """Prepare nothing."""


class _Works:
    """A log of ten times the keys, all in a snapshot, and a tail of a tenth of that."""

    def __init__(self, stack: ExitStack, where: Where, setting: Setting, settings: MaterializerSettings) -> None:
        self._where, self._settings = where, settings
        self._runs: list[str] = []
        self._tail = batches(setting.keys, setting.keys * _LARGER)
        self._replay: ReplayPlan | None = None
        self._is_left: pa.Array = pa.array([], pa.bool_())
        self._verified = VerifiedRuns()
        name = f"bench-{time.time_ns():x}"
        self.log = stack.enter_context(Log.create(name, where, LogOptions(partitions=PARTITIONS)))
        stack.callback(Log.delete, name, where)
        all_keys = every_key(setting.keys * _LARGER)
        for first in range(0, len(all_keys), _LARGER):
            bulk_append(self.log, all_keys[first : first + _LARGER], commits=1)
        self._make_tail()

    def all(self) -> list[_Work]:
        """Return all works, in the order in which each takes over the log from the one before."""
        floors = {
            "the floor: read_table of the runs from there": self._read_runs,
            "the floor: the same less what the tail replaces, and the client": self._read_all,
        }
        return [
            _Work("open", _nothing, self._open),
            _Work("restore to Arrow, 10 x the keys and a tail", self._find_replaced, self._restore, floors),
            _Work("round of that tail", self._make_tail, self.round_up),
            _Work("open of a table and its first commit", _nothing, self._first_commit),
        ]

    def _make_tail(self) -> None:
        self.round_up()
        bulk_append(self.log, self._tail, commits=5)
        with recover(self.log) as recovery:
            self._replay = recovery.plan.replay
            self._runs = [f"{self.log.name}/{part.run.path}" for part in recovery.plan.runs]

    def _open(self) -> None:
        Log.open(self.log.name, self._where).close()

    def _restore(self) -> None:
        recover(self.log).to_arrow()

    def _read_runs(self) -> pa.Table:
        place = urlsplit(str(self._where.root))
        key, secret, service = (self._where.storage_options[name] for name in ("key", "secret", "endpoint_url"))
        options = f"scheme=http&region=us-east-1&endpoint_override={urlsplit(str(service)).netloc}"
        urls = [f"s3://{key}:{secret}@{place.netloc}{place.path}/{path}?{options}" for path in self._runs]
        return pa.concat_tables(map(pq.read_table, urls))

    def _find_replaced(self) -> None:
        replaced = pa.concat_arrays([batch.column("key") for batch in self._tail])
        keys = pa.chunked_array([chunk for path in self._runs for chunk in self._keys_of(path).chunks], pa.binary())
        self._is_left = pc.invert(pc.is_in(keys, value_set=replaced))

    def _keys_of(self, path: str) -> pa.ChunkedArray:
        with self.log.store.open(path.removeprefix(f"{self.log.name}/")) as file:
            return pq.read_table(file, columns=["key"]).column("key")

    def _read_all(self) -> pa.Table:
        assert self._replay is not None, "the tail was made"
        passed_over(read_planned(self.log, self._replay))
        return self._read_runs().filter(self._is_left)

    def round_up(self) -> None:
        """Roll up the whole tail, as a daemon does, which remembers the runs that it verified."""
        while isinstance(Round(self.log, self._settings, verified=self._verified).run(), CompletedRound):
            continue  # A large state takes several rounds.

    def _first_commit(self) -> None:
        with statelog.table(self.log.name, self._where, settings=TableSettings(loading="on-demand")) as table:
            first_commit(table)


def _figures(store: SlowStore, local: _Work, far: _Work, rounds: int) -> list[Figure]:
    figures: list[Figure] = []
    billed = (0, 0)
    for request_s in _REQUEST_S:
        ours, beside, floors = list[Took](), list[Took](), {name: list[Took]() for name in far.floors}
        for _ in range(rounds):
            for work, found in ((local, beside), (far, ours)):
                store.slow_down(0.0)
                work.make_ready()
                gc.collect()
                store.slow_down(request_s)
                found.append(timed(work.do))
            billed = store.billed
            for name, floor in far.floors.items():
                gc.collect()
                floors[name].append(timed(floor))
        name = f"{far.name}, {request_s * 1e3:g} ms a request"
        figures.append(medians(name, "s", ours, "local files", beside))
        figures += [medians(name, "s", ours, floor, took) for floor, took in floors.items()]
    return [*figures, *_requests(far.name, billed)]


def _requests(name: str, billed: tuple[float, float]) -> list[Figure]:
    writes, reads = billed
    dollars = writes * _WRITE_DOLLARS + reads * _READ_DOLLARS
    return [
        _count(f"{name}, writes and listings", "requests", writes),
        _count(f"{name}, reads", "requests", reads),
        _count(f"{name}, a million times", "USD", dollars),
    ]


def _count(name: str, unit: str, value: float) -> Figure:
    return Figure(name=name, unit=unit, value=value, lowest=value, highest=value, higher_is_better=False)


def _idle(log: Log, store: SlowStore) -> list[Figure]:
    """Count the requests of the daemon of an idle log, for each interval after its start."""
    control = Control()
    daemon = Materializer(
        log, MaterializerSettings(interval_s=_INTERVAL_S, _tuning=MaterializerTuning(jitter=0.0)), control=control
    )
    begun_s = _INTERVAL_S / 2
    Timer(begun_s, store.slow_down, [0.0]).start()
    Timer(begun_s + _INTERVAL_S * _INTERVALS, control.stop).start()
    daemon.run()
    writes, reads = (count / _INTERVALS for count in store.billed)
    return _requests("idle log, an interval of its daemon", (writes, reads))
