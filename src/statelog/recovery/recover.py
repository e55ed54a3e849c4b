"""`recover`: the state of a log, from a snapshot and the committed tail behind it. Step by step: protocol-recover.md.

    plan    nothing is written                                reading/planner.py
    hold    the plan gets its lease, and is checked with it   reading/hold.py
    read    tail and runs, every byte verified                plan_reader.py
    load    the target takes the newest change of each key    targets.py

A stream takes the same steps in its own thread (stream.py). `recover_snapshot` does not use Kafka: later commits, and
whether the ledger still exists, are unknown then.

Invariants:
- A planned newest state includes every commit that this process knows of.
- Nothing is returned before everything listed was read and verified. There is no partial state.
- If the log is truncated under the plan, or its snapshot is damaged, the recovery starts again with another plan. It
  does so a bounded number of times.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from os import PathLike
from threading import TIMEOUT_MAX
from typing import Any, TypeVar

import pyarrow as pa

from statelog.closing import Closing, undone_by_errors
from statelog.errors import ConfigError, Misuse, NotFound
from statelog.log import Log, Where
from statelog.log.log import check_log, open_snapshots
from statelog.reading import At, AtPosition, HeldPlan, Plan, check_at, partitions_of
from statelog.recovery.cursor import Cursor
from statelog.recovery.plan_reader import OnStep, PlanReader
from statelog.recovery.progress import Monitor, OnProgress, RecoveryStatistics
from statelog.recovery.rocksdb_state import require_rocksdict
from statelog.recovery.runs import RunOpener
from statelog.recovery.settings import RecoverySettings, terms_of, tuning_of
from statelog.recovery.stream import ReadAhead, Stream
from statelog.recovery.targets import (
    Target,
    ValuesOf,
    fill_dict,
    fill_dicts,
    fill_digest,
    fill_parquet,
    fill_table,
    json_of,
    values_of,
)
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.changes.due import check_shown
from statelog.schemas.descriptor import Descriptor, HashRule, ValueFormat
from statelog.schemas.ledger.place import Place
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.names import check_kind, check_whole, settings_or
from statelog.schemas.values.schema import ValueSchema
from statelog.store.disk.disk import local_path, require_file

T = TypeVar("T")

_GONE_HINT = "Recover the newest state into an empty target: the reader was away for too long"


def recover(
    log: Log,
    *,
    key_groups: Iterable[int] | None = None,
    at: At | None = None,
    at_least: int | Place = 0,
    barrier: bool = False,
    resume: Cursor | None = None,
    on_progress: OnProgress | None = None,
    settings: RecoverySettings | None = None,
) -> "Recovery":
    """Plan a recovery. Its data is held by a lease, and read, when a target is requested.

        state = recover(log).to_dict()
        some = recover(log, key_groups=range(16), at=AtPosition(log.position)).to_arrow()

    `key_groups`: None means all.
    `at`: None means the newest.
    `at_least`: the least position of the newest state, or a place, such as that of a writer in another process. The
    record below a place must exist, too.
    `barrier`: include every commit that was acknowledged to anybody before the call. It appends a void record, so it
    needs the right to write the ledger.
    `resume`: continue an interrupted stream, in the same state with the same key groups. It excludes `key_groups` and
    `at`.
    `on_progress`: called in this thread.

    The newest state includes everything that was opened at, acknowledged or recovered through this `log` object. A
    lease exists only while a target is filled.

    Raises NotFound if the log does not hold the requested state, ConfigError, KeyGroupMismatch, Damaged, Unavailable.
    """
    check_log(log)
    check_at("at", at)
    check_kind("at_least", at_least, Integral, Place, example="the `place` of a writer, or a ledger position")
    chosen = settings_or(settings, RecoverySettings())
    if barrier and at_least:
        raise Misuse("a barrier includes every position", hint="Do not pass at_least")
    partitions, seen = None, list[Place]()
    if resume is not None:
        if key_groups is not None or at is not None:
            hint = "Do not pass key_groups or at"
            raise Misuse("`resume` already determines the state and the key groups", hint=hint)
        check_kind("resume", resume, Cursor, example="what Cursor.from_json gives")
        resume.check(log.descriptor.identity)
        at, key_groups = AtPosition(resume.position), resume.remaining(log.descriptor.key_groups)
        partitions, seen = partitions_of(resume.key_groups, log.descriptor), [resume.place]
    least = log.barrier() if barrier else at_least
    seen.append(least if isinstance(least, Place) else Place(least))
    held = HeldPlan(
        log, terms_of(chosen), at, key_groups, seen=seen, partitions=partitions, attempts=tuning_of(chosen).attempts
    )
    try:
        held.prepare()
    except NotFound as error:
        if resume is None:
            raise
        raise error.restated(hint=_GONE_HINT) from error
    return Recovery(held, chosen, on_progress, resume)


def read(
    name: str,
    where: Where,
    *,
    key_groups: Iterable[int] | None = None,
    at: At | None = None,
    settings: RecoverySettings | None = None,
) -> "Recovery":
    """Recover a log by its name: the last committed state, or `at` an earlier commit. Nobody is fenced.

        visits = statelog.read("visits", where)
        print(visits.to_dict()[b"alice"], visits.to_arrow().num_rows)

    It opens the log for `recover`. `close`, the end of a `with` block, or dropping the result closes the log. Raises
    the errors of `statelog.open` and of `recover`.
    """
    log = Log.open(name, where)
    with undone_by_errors(log.close):
        recovery = recover(log, key_groups=key_groups, at=at, settings=settings)
        recovery.release = weakref.finalize(recovery, log.close)
    return recovery


def recover_snapshot(
    name: str,
    where: Where,
    *,
    at: At | None = None,
    key_groups: Iterable[int] | None = None,
    on_progress: OnProgress | None = None,
    settings: RecoverySettings | None = None,
) -> "Recovery":
    """Plan to read the newest intact snapshot, or the one at a position, without Kafka: `where` may be
    `Where(None, root)`.

    Targets and streams work as in any recovery; `position`, `commits` and `meta` are the snapshot's.

    Raises NotFound if there is no log, or no such snapshot, KeyGroupMismatch, Damaged, StoreUnavailable, ConfigError.
    """
    if not isinstance(at, AtPosition | None):
        raise ConfigError("a snapshot is chosen by its position", hint="Give AtPosition, or nothing for the newest")
    chosen = settings_or(settings, RecoverySettings())
    log = open_snapshots(name, where)
    held = HeldPlan(log, terms_of(chosen), at, key_groups, is_alone=True, attempts=tuning_of(chosen).attempts)
    held.prepare()
    return Recovery(held, chosen, on_progress)


class Recovery(Closing):
    """A planned recovery. Each target reads everything again. Belongs to one thread; made by `recover` and `read`.

        recovery = recover(log)
        state, resume = recovery.to_dict(), recovery.last_commit("web")

    `position`, `commits`, `meta`, `last_commit`, `value_schema`, `plan` are facts of one state; reading them writes
    nothing to the store. After the first one, every target is of exactly that state, or NotFound if the log was
    truncated past it. Before, a target of the newest state may be newer than the plan.
    """

    def __init__(
        self,
        held: HeldPlan,
        settings: RecoverySettings,
        on_progress: OnProgress | None = None,
        resume: Cursor | None = None,
    ) -> None:
        self._held = held
        self._settings = settings
        self._opener = RunOpener(held.log, settings.cache)
        self._monitor = Monitor(held, on_progress, tuning_of(settings).progress_interval_s)
        self._resume = resume
        self._read_ahead: ReadAhead | None = None
        self.release: Callable[[], object] = lambda: None
        """Closes the log, if that is this recovery's."""

    # ---- targets

    def to_dict(self) -> dict[Any, Any]:
        """Return a dict from key to value: bytes, a dict of the fields of a typed log, or a JSON value.

            recover(log).to_dict()[b"alice"]

        In a log whose callers name the key groups, the dict's keys are (key group, key). Raises Damaged, Unavailable,
        and NoSuchYear for a time that Python does not have: read such a state with `to_arrow`.
        """
        return self.dict_of(json_of if self.descriptor.value_type is ValueFormat.JSON else values_of)

    def dict_of(self, values_of: ValuesOf) -> dict[Any, Any]:
        """Return `to_dict` with the values that `values_of` makes of a value column and its keys."""
        return self._fill(partial(fill_dict, with_group=self._has_named_groups, values_of=values_of))

    def dict_and_dues(self, values_of: ValuesOf) -> tuple[dict[Any, Any], dict[Any, int]]:
        """Return `dict_of`, and a dict from key to due, in milliseconds since 1970, of the keys that have one."""
        return self._fill(partial(fill_dicts, with_group=self._has_named_groups, values_of=values_of))

    def to_arrow(self, *, ordered: bool = False, due: bool = False) -> pa.Table:
        """Return a table of key_group (uint16), key, value (binary, struct or JSON text), one row per key, in chunks.

            recover(log).to_arrow(ordered=True).num_rows

        Rows come in any order; `ordered` sorts by (key group, key). `due` adds a column of that name: the time (UTC)
        from which a row is expired, or null. In addition to the table it takes the memory of `to_parquet`;
        unordered, at least that of the tail's newest changes. Raises Damaged, Unavailable, StorageFull.
        """
        check_shown(due)
        return self._fill(partial(fill_table, ordered=ordered, due=due))

    def to_parquet(self, path: str | PathLike[str], *, due: bool = False) -> int:
        """Write the table of `to_arrow`, sorted by (key group, key), to a local file. Return the number of rows.

            rows = recover(log).to_parquet("/tmp/statelog/visits.parquet")

        Sorting a tail takes about three times `fold_bytes` of memory, and spills the rest to `spill_directories`.
        Merging takes a decoded row group of every run, and a dozen row groups of four megabytes that are read ahead: up
        to 64 MB in their files. The Kafka and store clients need memory of their own.

        The file appears whole or not at all, and replaces an older one. Raises AlreadyExists for a path that is no
        file, ConfigError, StorageFull, Damaged, Unavailable.
        """
        check_shown(due)
        target = local_path(path)
        require_file(target)
        return self._fill(partial(fill_parquet, path=target, due=due))

    def to_rocksdb(self, path: str | PathLike[str], *, sst_bytes: int = 64 << 20) -> int:
        """Make a RocksDB database on the local disk. Return the number of rows. Needs the extra `statelog[rocksdb]`.

            rows = recover(log).to_rocksdb("/tmp/statelog/visits")

        A key is the key group (two bytes, big-endian) and the key's bytes, `RocksdbState.key`; a value is its bytes, or
        Avro's plain binary form. `read_rocksdb_state` describes the recovered state. SST files have about `sst_bytes`.

        The database appears whole or not at all, and never replaces anything. Memory is that of `to_parquet`, and the
        negative keys of one key group. Raises AlreadyExists, ConfigError, StorageFull, Damaged, Unavailable.
        """
        require_rocksdict()
        from statelog.recovery.rocksdb_target import fill_rocksdb, require_absent

        check_whole("sst_bytes", sst_bytes, 1)
        target = local_path(path)
        require_absent(target)
        return self._fill(partial(fill_rocksdb, path=target, sst_bytes=sst_bytes))

    def digest(self) -> StateDigest:
        """Read and verify the whole state. Return its number of rows, and a digest that does not depend on their order.

            recover(log).digest() == recover(other_log).digest()

        Equal states have equal digests, in one version of statelog. Memory and errors are those of `to_parquet`.
        """
        return self._fill(fill_digest)

    # ---- streams

    def stream(self, *, due: bool = False) -> Stream:
        """Return the state in portions, read ahead within `memory_bytes` and spilled above: for your own reader.

            for changes, cursor in recover(log).stream():
                print(changes.num_rows, cursor.is_complete)

        With `due`, the changes have that column, too: the time (UTC) from which a row is expired, or null.
        The lease exists when this returns, and is removed once the whole state was read, however slow the consumer is.
        Raises Misuse, NotFound, Damaged, Unavailable; the stream itself Damaged, Unavailable, StorageFull.
        """
        return self._open_stream(due=due)

    def follow(self, *, poll_s: float = 0.5, due: bool = False) -> Stream:
        """Return the state as `stream`, and then every later commit, until the stream is stopped or closed.

            with recover(log).follow() as stream:
                changes, cursor = next(stream)

        A commit arrives within `poll_s`, mostly at once: a thread waits for it at the broker. A lease holds the log for
        a follower that is behind, up to the cap on leases. Raises Misuse, NotFound, Damaged, Unavailable.
        """
        if not isinstance(poll_s, Real) or not 0 <= poll_s <= TIMEOUT_MAX:
            raise ConfigError(f"poll_s is {poll_s!r} and must be a number of seconds, 0 or more")
        if self._held.plan.is_alone:
            raise Misuse("a snapshot alone has no commits behind it", hint="Use stream; recover follows a log")
        return self._open_stream(poll_s, due=due)

    # ---- facts

    @property
    def plan(self) -> Plan:
        """The plan. From now on every target is of its position."""
        plan = self._held.plan
        self._held.pin()
        return plan

    @property
    def descriptor(self) -> Descriptor:
        """The log's descriptor."""
        return self._held.log.descriptor

    @property
    def value_schema(self) -> ValueSchema:
        """The value schema of the state: the newest one, unless the settings name another.

        From now on every target has this schema, even if there is a newer one by then.
        """
        self._held.pin()
        # Read after planning: a schema is stored before the first chunk that needs it.
        schemas, wanted = self._held.log.value_schemas, self._settings.value_schema_id
        found = schemas.newest() if wanted is None else schemas.get(wanted)
        self._settings = replace(self._settings, value_schema_id=found.id)
        return found

    @property
    def position(self) -> int:
        """The ledger position of the state."""
        return self.plan.position

    @property
    def commits(self) -> Mapping[str, LastCommit]:
        """Every writer's last commit (checkpoint, ledger offset, metadata) in this state."""
        return self.plan.state.commits

    def last_commit(self, writer: str) -> LastCommit | None:
        """Return a writer's last commit in this state, from which its source resumes. None before its first."""
        return self.plan.state.last_commit(writer)

    @property
    def meta(self) -> Mapping[tuple[str, str], bytes]:
        """The committed meta records by (writer, key)."""
        return {(record.writer, record.key): record.value for record in self.plan.state.meta}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Damaged snapshots that were skipped."""
        return tuple(self._held.snapshots.warnings)

    def statistics(self) -> RecoveryStatistics:
        """Return the numbers of the last filled target. Raises Misuse before the first."""
        return self._monitor.statistics

    # ---- lease and close

    def reserve(self) -> Callable[[], None]:
        """Leave a lease on the store, so that others can recover the state at this position.

            release = recovery.reserve()

        It lasts for `lease_ttl_s`, or until the returned function is called. For a program that plans, and gives
        `position` to workers that read. Raises NotFound, Damaged, Unavailable, and Misuse while a stream is open, which
        has this lease.
        """
        self._check_idle()
        self._held.pin()
        return self._held.reserve()

    def close(self) -> None:
        """Close an open stream, remove the lease and leave the cache. Idempotent.

        A later target starts again, but not in a recovery of `read`, whose log is closed.
        """
        if self._read_ahead is not None:
            self._read_ahead.close()
            if self._read_ahead.is_running:
                return  # The plan belongs to the thread, which waits for a broker or store and releases it later.
        self._release_plan()
        self.release()

    def __repr__(self) -> str:
        try:
            where = f"position={self._held.plan.position}, manifest={self._held.plan.manifest_number}"
        except Misuse:
            where = "no plan"
        return f"Recovery({self._held.log.name!r}, {where})"

    # ---- at work

    def _fill(self, target: Target[T]) -> T:
        self._check_idle()
        if self._resume is not None:
            raise Misuse("a resumed recovery is only the rest of a state", hint="Use stream or follow")
        monitor = self._monitor
        monitor.start()

        def read(plan: Plan) -> tuple[PlanReader, tuple[T, int]]:
            monitor.begin()
            reader = self._reader(plan, lambda phase: monitor.report(reader, phase, reader.loaded))
            return reader, target(reader)

        try:
            with self._held.environment.step("recovery", self._held.log.name):
                reader, (result, rows) = self._held.carry_out(read)
                monitor.done(reader, rows)
            return result
        finally:
            self._release_plan()

    @property
    def _has_named_groups(self) -> bool:
        return self.descriptor.hash_rule is HashRule.CALLER

    def _reader(self, plan: Plan, on_step: OnStep) -> PlanReader:
        self._opener.hold()
        return PlanReader(self._held.log, plan, self._settings, on_step, hold=self._held, opener=self._opener)

    def _open_stream(self, poll_s: float | None = None, *, due: bool) -> Stream:
        check_shown(due)
        self._check_idle()
        self._monitor.start()
        with undone_by_errors(self.close):
            self._held.take()
            self._opener.hold()
            self._monitor.begin()
            self._read_ahead = ReadAhead(
                self._held, self._settings, self._reader, self._release_plan, self._resume, poll_s=poll_s
            )
            return Stream(self._read_ahead, self._monitor, due=due)

    def _release_plan(self) -> None:
        """Release lease and cache. Idempotent; void in a fork, whose parent owns them."""
        if self._held.is_foreign:
            return
        try:
            self._held.close()
        finally:
            self._opener.close()

    def _check_idle(self) -> None:
        if self._read_ahead is not None and self._read_ahead.is_running:
            raise Misuse("a stream of this recovery is open", hint="Close it first, or recover once more")
