"""`recover`: the state of a log, out of a snapshot and the committed tail behind it.

    state = recover(log).to_dict()
    table = recover(log, key_groups=range(16), at=AtCheckpoint("job-1", 42)).to_arrow()
    recover(log).stream().apply(lambda portion: target.write(portion.changes))

Order (docs/protocol-recover.md): list the manifests, take the target once, fold the ledger to it; write a lease, then
check snapshot, log start and anchors again; read runs and tail at the same time; fold; load.

Invariants:
- Nothing is handed out before everything that was listed was read and verified. There is no partial state; but a
  stream hands out verified parts of it, and says of each how far it goes.
- Truncation under our hands costs a new plan, a bounded number of times. A damaged snapshot costs a warning and a
  longer replay, if the log reaches back; else it is the error. Nothing damaged is ever skipped.
"""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from statelog.closing import Closing
from statelog.errors import BeyondEnd, ConfigError, Misuse, NotFound, OffsetGone
from statelog.recovery.host import Host
from statelog.recovery.planning.at import At, AtPosition
from statelog.recovery.planning.held_plan import HeldPlan
from statelog.recovery.planning.plan import RecoveryPlan
from statelog.recovery.planning.planner import Planner
from statelog.recovery.reading.progress import Phase, Progress, ProgressTracker
from statelog.recovery.reading.reading import Reading
from statelog.recovery.settings import RecoverySettings, memory_queue
from statelog.recovery.spill.frame import Place
from statelog.recovery.statistics import RecoveryStatistics
from statelog.recovery.streaming.applied import Applied
from statelog.recovery.streaming.fetch import Fetch
from statelog.recovery.streaming.live import Live
from statelog.recovery.streaming.stream import Stream
from statelog.recovery.targets.arrow import fill_table
from statelog.recovery.targets.dict import fill_dict
from statelog.recovery.targets.parquet import fill_parquet, require_file
from statelog.recovery.targets.rocksdb_read import require_rocksdict
from statelog.recovery.trouble import SnapshotFailed
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.ledger.state import LastCommit
from statelog.storage.log.anchors import newest_witness
from statelog.storage.log.log import Log

__all__ = ["OnProgress", "Recovery", "recover"]

T = TypeVar("T")
OnProgress = Callable[[Progress], None]
"""Is called with each report, in the thread of the recovery."""
_GONE_HINT = "The reader was away for too long: recover the newest state into an empty target"


def recover(
    log: Log,
    *,
    key_groups: Iterable[int] | None = None,
    at: At | None = None,
    at_least: int = 0,
    barrier: bool = False,
    resume: Applied | None = None,
    progress: OnProgress | None = None,
    settings: RecoverySettings | None = None,
    host: Host | None = None,
) -> "Recovery":
    """Plan a recovery; what it needs is held, and read, when a target is asked for.

    `key_groups` None means all; `at` None means the newest. `resume` goes on with an interrupted stream where its
    reader had got to: in the same state, with the same key groups, so it excludes the other two. `progress` is called
    in this thread; `host` is for simulations. A lease lies on the store while a target is filled, and at no other time.

    The newest state is never older than what was opened at, acknowledged or recovered through this `log` object, nor
    than the position `at_least`: the `position` of a writer in another process, say. `barrier` includes everything that
    anybody was told before the call; it appends a void record, so it needs the right to write the ledger.

    Raises NotFound if the log does not hold the state asked for, KeyGroupMismatch, Damaged, Unavailable.
    """
    if barrier and at_least:
        raise Misuse("a barrier includes every position", hint="Leave at_least out")
    wanted = None if key_groups is None else frozenset(key_groups)
    if resume is not None:
        if wanted is not None or at is not None:
            raise Misuse("to resume says which state and key groups", hint="Leave key_groups and at out")
        resume.check(log.descriptor.identity)
        at, wanted = AtPosition(resume.position), resume.remaining(log.descriptor.key_groups)
    planner = Planner(log, at, wanted, at_least=_barrier(log) if barrier else at_least)
    recovery = Recovery(log, planner, settings or RecoverySettings(), progress, host or Host(), resume)
    try:
        recovery.prepare()
    except NotFound as error:
        if resume is None:
            raise
        raise NotFound(error.message, hint=_GONE_HINT, **error.facts) from error
    return recovery


def _barrier(log: Log) -> int:
    """A barrier's position. Its record stands where the ledger ended: what was seen there before proves a lost tail."""
    witness, position = newest_witness(log), log.barrier()
    if witness >= position:
        raise BeyondEnd(
            "the ledger ended below what the writer of a chunk had seen of it",
            topic=log.ledger_topic,
            log_end=position - 1,
            position=witness,
            hint="It lost commits that were acknowledged: restore the topic, or accept the loss by name",
        )
    return position


class Recovery(Closing):
    """A planned recovery. Each target reads everything anew. Belongs to one thread; made by `recover`.

    `position`, `commits`, `meta`, `last_commit` and `plan` are facts of one state; asking for them leaves nothing on
    the store. Once one was seen, every target is of that state and no other: if the log was truncated past it
    meanwhile, that is NotFound. Until then, a target of the newest state may be of a newer one than was planned.
    """

    def __init__(
        self,
        log: Log,
        planner: Planner,
        settings: RecoverySettings,
        progress: OnProgress | None,
        host: Host,
        resume: Applied | None = None,
    ) -> None:
        self._log = log
        self._resume = resume
        self._fetch: Fetch | None = None
        key_groups = planner.key_groups if resume is None else resume.key_groups
        self._held = HeldPlan(log, planner, settings, host, key_groups)
        self._settings = settings
        self._progress = progress
        self._host = host
        self._clock = host.clock
        self._statistics: RecoveryStatistics | None = None

    # ---- targets

    def to_dict(self) -> dict[Any, Any]:
        """Key to value: bytes, or a dict of the fields of a typed log.

        In a log whose callers name the key groups, the dict's keys are (key group, key). Raises Damaged, Unavailable.
        """
        with_group = self._log.descriptor.hash_rule is HashRule.CALLER
        return self._fill(lambda reading: fill_dict(reading.slices(), with_group=with_group), len)

    def to_arrow(self, *, ordered: bool = False) -> pa.Table:
        """A table of key_group (uint16), key, value (binary, or a struct), one row per key, in many chunks.

        Rows come by partition and in no order within it; `ordered` sorts by (key group, key), which takes a little
        longer, and beside the table only the memory of `to_parquet`. Raises Damaged, Unavailable, StorageFull.
        """
        return self._fill(
            lambda reading: fill_table(reading.sorted_tables() if ordered else reading.slices(), reading.schema),
            lambda table: table.num_rows,
        )

    def to_parquet(self, path: str | PathLike[str]) -> int:
        """Write the same table, sorted by (key group, key), to a local file; returns the rows.

        Memory, beside that of the clients: about three times `fold_bytes` while a tail is sorted, which goes to
        `spill_directories` above that, however large it is; then, decoded, a row group of every run and what is read
        ahead (six of a megabyte or more, up to 64 MB in their files). The file appears whole or not at all, replacing
        an older one. Raises AlreadyExists for a directory, StorageFull, Damaged, Unavailable.
        """
        self._check(lambda: require_file(Path(path)))
        return self._fill(
            lambda reading: fill_parquet(reading.sorted_tables(), reading.schema, Path(path), self._host), int
        )

    def to_rocksdb(self, path: str | PathLike[str], *, sst_bytes: int = 64 << 20) -> int:
        """Make a RocksDB database on the local disk; returns the rows. Needs the extra `statelog[rocksdb]`.

        A key is the key group (two bytes, big-endian) and the key's bytes, `RocksdbState.key`; a value is its bytes, or
        Avro's plain binary form. `read_rocksdb_state` tells what was recovered. SST files have about `sst_bytes`. The
        database appears whole or not at all, and never replaces anything. Memory as `to_parquet`, and the negative keys
        of one key group. Raises AlreadyExists, ConfigError, StorageFull, Damaged, Unavailable.
        """
        require_rocksdict()
        from statelog.recovery.targets.rocksdb import fill_rocksdb, require_absent

        self._check(lambda: require_absent(Path(path)))
        return self._fill(lambda reading: fill_rocksdb(reading, Path(path), sst_bytes), int)

    # ---- streams

    def stream(self) -> Stream:
        """The state in portions, read ahead within `memory_bytes` and spilled above: for a reader of one's own.

        The lease lies on the store when this returns, and is removed once all of it was read, however slow the reader
        is. Raises ConfigError, Misuse, and as `recover`; the stream itself raises what reading does.
        """
        return self._open_stream(None, 0.0)

    def follow(self, *, poll_s: float = 0.5) -> Stream:
        """The state as `stream`, and then every commit behind it, until the stream is stopped or closed.

        The ledger is asked for more every `poll_s`. A lease holds the log for a follower that is behind, up to the cap
        on leases. Raises as `stream`.
        """
        if self._held.plan.is_alone:
            self.close()
            raise Misuse("a snapshot alone has no commits behind it", hint="Use stream; recover follows a log")
        key_groups = self._start().key_groups
        return self._open_stream(lambda plan: Live(self._log, plan, key_groups, self._settings, self._host), poll_s)

    # ---- what it is

    @property
    def plan(self) -> RecoveryPlan:
        """The plan that is, or was, carried out; from now on every target is of its position."""
        plan = self._held.plan
        self._held.pin()
        return plan

    @property
    def descriptor(self) -> Descriptor:
        """What the log is."""
        return self._log.descriptor

    @property
    def position(self) -> int:
        """The ledger position of the state."""
        return self.plan.position

    @property
    def commits(self) -> Mapping[str, LastCommit]:
        """Every writer's last commit (checkpoint, ledger offset, metadata) in this state."""
        return self.plan.state.commits

    def last_commit(self, writer: str) -> LastCommit | None:
        """A writer's last commit in this state, with its metadata: where its source resumes. None before its first."""
        return self.plan.state.last_commit(writer)

    @property
    def meta(self) -> Mapping[tuple[str, str], bytes]:
        """The committed meta records by (writer, key)."""
        return {(record.writer, record.key): record.value for record in self.plan.state.meta}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was damaged and gone around."""
        return self._held.warnings

    def statistics(self) -> RecoveryStatistics:
        """Numbers of the target that was filled last. Raises Misuse before the first."""
        if self._statistics is None:
            raise Misuse("no target was filled yet", hint="Fill a target first, for example with to_dict")
        return self._statistics

    # ---- life

    def reserve(self) -> None:
        """Leave a lease behind, which nobody removes: for `lease_ttl_s` others may recover the state at this position.

        For a program that plans, and hands `position` to workers that read. Raises as a target does.
        """
        self._held.pin()
        self._held.reserve()

    def prepare(self) -> None:
        """Have a plan whose checks have passed. Nothing holds it until a target is asked for."""
        self._held.prepare()

    def close(self) -> None:
        """Close a stream that is open, remove the lease and leave the cache. Idempotent; a later target starts anew."""
        if self._fetch is not None:
            self._fetch.close()
            if self._fetch.is_running:
                return  # The plan is the thread's, which waits for a broker or a store, and lets go of it at its end.
        self._held.release()

    def __repr__(self) -> str:
        plan = self._held.plan if self._held.is_planned else None
        where = f"position={plan.position}, manifest={plan.manifest_number}" if plan else "no plan"
        return f"Recovery({self._log.name!r}, {where})"

    # ---- reading

    def _open_stream(self, follow: Callable[[RecoveryPlan], Live] | None, poll_s: float) -> Stream:
        self._check_idle()
        started_s, plan = self._clock(), self._held.claim()
        start, tracker = self._start(), self._tracker(plan)
        place = None if self._resume is None else start.place
        try:
            queue = memory_queue(self._settings, self._host.open_spill_file)
        except ConfigError:
            self.close()
            raise
        fetch = Fetch(
            self._log,
            self._held,
            self._settings,
            queue,
            place=place,
            follow=follow,
            poll_s=poll_s,
            host=self._host,
        )

        def on_portion(phase: Phase, key_group: int) -> None:
            if fetch.reading is not None:
                self._report(tracker, fetch.reading, phase, fetch.reading.share_through(key_group))

        def on_complete(rows: int) -> None:
            if fetch.reading is not None:
                self._report(tracker, fetch.reading, Phase.DONE, 1.0)
                self._statistics = self._numbers(fetch.reading, rows, started_s)

        self._fetch = fetch
        return Stream(fetch, start, on_portion=on_portion, on_complete=on_complete)

    def _start(self) -> Applied:
        """What is applied before the first portion."""
        plan = self._held.plan
        return self._resume or Applied(
            identity=self._log.descriptor.identity, place=Place(plan.position), key_groups=plan.key_groups
        )

    def _check(self, check: Callable[[], None]) -> None:
        """Refuse a target before anything is read for it."""
        try:
            check()
        except BaseException:
            self.close()
            raise

    def _check_idle(self) -> None:
        if self._fetch is not None and self._fetch.is_running:
            raise Misuse("a stream of this recovery is open", hint="Close it first, or recover once more")

    def _fill(self, target: Callable[[Reading], T], rows_of: Callable[[T], int]) -> T:
        self._check_idle()
        if self._resume is not None:
            raise Misuse("what is resumed is the rest of a state", hint="Use stream or follow")
        started_s = self._clock()
        try:
            while True:
                reading = self._reading(self._held.claim())
                try:
                    result = target(reading)
                except (OffsetGone, SnapshotFailed) as error:
                    self._held.replan(error)
                else:
                    self._statistics = self._count(reading, rows_of(result), started_s)
                    return result
        finally:
            self.close()

    def _reading(self, plan: RecoveryPlan) -> Reading:
        tracker = self._tracker(plan)

        def beat(phase: Phase) -> None:
            self._held.renew()
            self._report(tracker, reading, phase, reading.loaded)

        reading = Reading(self._log, plan, self._settings, beat, opener=self._held.opener, host=self._host)
        return reading

    def _tracker(self, plan: RecoveryPlan) -> ProgressTracker:
        return ProgressTracker(
            bytes_total=plan.size_bytes,
            changes_total=plan.changes,
            started_s=self._clock(),
            interval_s=self._settings.progress_interval_s,
        )

    def _report(self, tracker: ProgressTracker, reading: Reading, phase: Phase, loaded: float) -> None:
        now_s = self._clock()
        if self._progress is not None and tracker.due(phase, now_s):
            self._progress(
                tracker.report(
                    phase,
                    bytes_done=reading.runs_read.size_bytes + reading.tail_read.size_bytes,
                    changes_done=reading.runs_read.changes + reading.tail_read.changes,
                    loaded=loaded,
                    now_s=now_s,
                )
            )

    def _count(self, reading: Reading, rows: int, started_s: float) -> RecoveryStatistics:
        reading.beat(Phase.DONE)
        return self._numbers(reading, rows, started_s)

    def _numbers(self, reading: Reading, rows: int, started_s: float) -> RecoveryStatistics:
        return RecoveryStatistics(
            position=reading.plan.position,
            manifest=reading.plan.manifest_number,
            rows=rows,
            run_rows=reading.runs_read.changes,
            run_bytes=reading.runs_read.size_bytes,
            tail_changes=reading.tail_read.changes,
            tail_bytes=reading.tail_read.size_bytes,
            tail_is_local=reading.tail_read.is_local,
            plan_s=self._held.take_plan_s(),
            total_s=self._clock() - started_s,
            plans=self._held.plans,
            has_lease=self._held.had_lease,
        )
