"""`recover`: the state of a log, from a snapshot and the committed tail behind it. Step by step: protocol-recover.md.

    plan    nothing is written                                reading/planner.py
    hold    the plan gets its lease, and is checked with it   reading/hold.py
    read    tail and runs, every byte verified                plan_reader.py
    load    the target takes the newest change of each key    targets.py

A stream takes the same steps in a thread of its own (stream.py). `recover_snapshot` asks nothing of Kafka: so what was
committed behind the snapshot, and whether its ledger still exists, is unknown then.

Invariants:
- The newest state that is planned is never older than what this process knows to be committed.
- Nothing is handed out before everything that was listed was read and verified. There is no partial state.
- If the log is truncated under the plan, or its snapshot turns out to be damaged, all is done again with another plan,
  a bounded number of times.
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
from statelog.recovery.plan_reader import Beat, PlanReader
from statelog.recovery.progress import Monitor, OnProgress, RecoveryStatistics
from statelog.recovery.rocksdb_state import require_rocksdict
from statelog.recovery.runs import RunOpener
from statelog.recovery.settings import RecoverySettings, terms_of
from statelog.recovery.stream import ReadAhead, Stream
from statelog.recovery.targets import Target, ValuesOf, fill_dict, fill_digest, fill_parquet, fill_table, values_of
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.ledger.place import Place
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.names import check_kind, check_whole, settings_or
from statelog.schemas.values.schema import ValueSchema
from statelog.store.disk.disk import local_path, require_file

T = TypeVar("T")

_GONE_HINT = "The reader was away for too long: recover the newest state into an empty target"


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
    """Plan a recovery; what it needs is held, and read, when a target is asked for.

        state = recover(log).to_dict()
        some = recover(log, key_groups=range(16), at=AtPosition(log.position)).to_arrow()

    `key_groups` None means all; `at` None means the newest. `resume` goes on with an interrupted stream where its
    reader had got to: in the same state, with the same key groups, so it excludes the other two. `on_progress` is
    called in this thread. A lease lies on the store while a target is filled, and at no other time.

    The newest state is never older than what was opened at, acknowledged or recovered through this `log` object, nor
    than `at_least`: the `place` of a writer in another process, say, whose record has to be there, too; or a position
    alone. `barrier` includes everything that anybody was told before the call; it appends a void record, so it needs
    the right to write the ledger.

    Raises NotFound if the log does not hold the state asked for, ConfigError, KeyGroupMismatch, Damaged, Unavailable.
    """
    check_log(log)
    check_at("at", at)
    check_kind("at_least", at_least, Integral, Place, example="the `place` of a writer, or a ledger position")
    chosen = settings_or(settings, RecoverySettings())
    if barrier and at_least:
        raise Misuse("a barrier includes every position", hint="Leave at_least out")
    partitions, seen = None, list[Place]()
    if resume is not None:
        if key_groups is not None or at is not None:
            raise Misuse("to resume says which state and key groups", hint="Leave key_groups and at out")
        check_kind("resume", resume, Cursor, example="what Cursor.from_json gives")
        resume.check(log.descriptor.identity)
        at, key_groups = AtPosition(resume.position), resume.remaining(log.descriptor.key_groups)
        partitions, seen = partitions_of(resume.key_groups, log.descriptor), [resume.place]
    least = log.barrier() if barrier else at_least
    seen.append(least if isinstance(least, Place) else Place(least))
    held = HeldPlan(log, terms_of(chosen), at, key_groups, seen=seen, partitions=partitions, attempts=chosen.attempts)
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
    """Recover a log by its name: the state as it was committed last, or `at` an earlier commit. Nobody is fenced.

        visits = statelog.read("visits", where)
        print(visits.to_dict()[b"alice"], visits.to_arrow().num_rows)

    It is `recover`, of a log that is opened here. `close`, the end of a `with` block, or dropping the result closes
    that log. Raises the errors of `statelog.open` and of `recover`.
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
    """Plan to read the newest sound snapshot, or the one at a position, without Kafka: `where` may be
    `Where(None, root)`.

    What it gives is filled and streamed as any recovery; `position`, `commits` and `meta` are the snapshot's.

    Raises NotFound if there is no log, or no such snapshot, KeyGroupMismatch, Damaged, StoreUnavailable, ConfigError.
    """
    if not isinstance(at, AtPosition | None):
        raise ConfigError("a snapshot is chosen by its position", hint="Give that, or nothing for the newest")
    chosen = settings_or(settings, RecoverySettings())
    log = open_snapshots(name, where)
    held = HeldPlan(log, terms_of(chosen), at, key_groups, is_alone=True, attempts=chosen.attempts)
    held.prepare()
    return Recovery(held, chosen, on_progress)


class Recovery(Closing):
    """A planned recovery. Each target reads everything anew. Belongs to one thread; made by `recover` and `read`.

        recovery = recover(log)
        state, resume = recovery.to_dict(), recovery.last_commit("web")

    `position`, `commits`, `meta`, `last_commit`, `value_schema`, `plan` are facts of one state; asking for them leaves
    nothing on the store. Once one was seen, every target is of that state and no other: if the log was truncated past
    it meanwhile, that is NotFound. Until then, a target of the newest state may be of a newer one than was planned.
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
        self._monitor = Monitor(held, on_progress, settings.progress_interval_s)
        self._resume = resume
        self._read_ahead: ReadAhead | None = None
        self.release: Callable[[], object] = lambda: None
        """Closes the log, if that is this recovery's."""

    # ---- targets

    def to_dict(self) -> dict[Any, Any]:
        """Key to value: bytes, or a dict of the fields of a typed log.

            recover(log).to_dict()[b"alice"]

        In a log whose callers name the key groups, the dict's keys are (key group, key). Raises Damaged, Unavailable,
        and NoSuchYear for a time that Python does not have: read such a state with `to_arrow`.
        """
        return self.dict_of(values_of)

    def dict_of(self, values_of: ValuesOf) -> dict[Any, Any]:
        """As `to_dict`, with the values that `values_of` makes of a value column and its keys."""
        with_group = self.descriptor.hash_rule is HashRule.CALLER
        return self._fill(partial(fill_dict, with_group=with_group, values_of=values_of))

    def to_arrow(self, *, ordered: bool = False) -> pa.Table:
        """A table of key_group (uint16), key, value (binary, or a struct), one row per key, in many chunks.

            recover(log).to_arrow(ordered=True).num_rows

        Rows come in any order; `ordered` sorts by (key group, key). Beside the table it takes the memory of
        `to_parquet`, or, if that is more and they are not ordered, the newest changes of the tail. Raises Damaged,
        Unavailable, StorageFull.
        """
        return self._fill(partial(fill_table, ordered=ordered))

    def to_parquet(self, path: str | PathLike[str]) -> int:
        """Write the same table, sorted by (key group, key), to a local file; returns the rows.

            rows = recover(log).to_parquet("/tmp/statelog/visits.parquet")

        Memory, beside that of the clients: about three times `fold_bytes` while a tail is sorted, which goes to
        `spill_directories` above that, however large it is; then, decoded, a row group of every run and what is read
        ahead (a dozen of four megabytes, up to 64 MB in their files). The file appears whole or not at all, replacing
        an older one. Raises AlreadyExists for what is no file, ConfigError, StorageFull, Damaged, Unavailable.
        """
        target = local_path(path)
        require_file(target)
        return self._fill(partial(fill_parquet, path=target))

    def to_rocksdb(self, path: str | PathLike[str], *, sst_bytes: int = 64 << 20) -> int:
        """Make a RocksDB database on the local disk; returns the rows. Needs the extra `statelog[rocksdb]`.

            rows = recover(log).to_rocksdb("/tmp/statelog/visits")

        A key is the key group (two bytes, big-endian) and the key's bytes, `RocksdbState.key`; a value is its bytes, or
        Avro's plain binary form. `read_rocksdb_state` tells what was recovered. SST files have about `sst_bytes`. The
        database appears whole or not at all, and never replaces anything. Memory as `to_parquet`, and the negative keys
        of one key group. Raises AlreadyExists, ConfigError, StorageFull, Damaged, Unavailable.
        """
        require_rocksdict()
        from statelog.recovery.rocksdb_target import fill_rocksdb, require_absent

        check_whole("sst_bytes", sst_bytes, 1)
        target = local_path(path)
        require_absent(target)
        return self._fill(partial(fill_rocksdb, path=target, sst_bytes=sst_bytes))

    def digest(self) -> StateDigest:
        """Read all of it, verify it and keep nothing: how many rows there are, and a digest of them in no order.

            recover(log).digest() == recover(other_log).digest()

        Equal states have equal digests, in one version of statelog. Memory and errors as `to_parquet`.
        """
        return self._fill(fill_digest)

    # ---- streams

    def stream(self) -> Stream:
        """The state in portions, read ahead within `memory_bytes` and spilled above: for a reader of your own.

            for changes, cursor in recover(log).stream():
                print(changes.num_rows, cursor.is_complete)

        The lease lies on the store when this returns, and is removed once all of it was read, however slow the reader
        is. Raises Misuse, NotFound, Damaged, Unavailable; the stream itself Damaged, Unavailable, StorageFull.
        """
        return self._open_stream()

    def follow(self, *, poll_s: float = 0.5) -> Stream:
        """The state as `stream`, and then every commit behind it, until the stream is stopped or closed.

            with recover(log).follow() as stream:
                changes, cursor = next(stream)

        A commit comes within `poll_s`, mostly at once: a thread waits for it at the broker. A lease holds the log for a
        follower that is behind, up to the cap on leases. Raises Misuse, NotFound, Damaged, Unavailable.
        """
        if not isinstance(poll_s, Real) or not 0 <= poll_s <= TIMEOUT_MAX:
            raise ConfigError(f"poll_s is {poll_s!r} and must be a number of seconds, 0 or more")
        if self._held.plan.is_alone:
            raise Misuse("a snapshot alone has no commits behind it", hint="Use stream; recover follows a log")
        return self._open_stream(poll_s)

    # ---- what it is

    @property
    def plan(self) -> Plan:
        """The plan that is, or was, carried out; from now on every target is of its position."""
        plan = self._held.plan
        self._held.pin()
        return plan

    @property
    def descriptor(self) -> Descriptor:
        """What the log is."""
        return self._held.log.descriptor

    @property
    def value_schema(self) -> ValueSchema:
        """The value schema that the state comes in, of which there may be a newer one by then; as `plan`, it is that of
        every target from now on.
        """
        self._held.pin()
        # Asked for behind the plan: a schema is stored before the first chunk that needs it.
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
        """A writer's last commit in this state, with its metadata: where its source resumes. None before its first."""
        return self.plan.state.last_commit(writer)

    @property
    def meta(self) -> Mapping[tuple[str, str], bytes]:
        """The committed meta records by (writer, key)."""
        return {(record.writer, record.key): record.value for record in self.plan.state.meta}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was damaged and gone around."""
        return tuple(self._held.snapshots.warnings)

    def statistics(self) -> RecoveryStatistics:
        """Numbers of the target that was filled last. Raises Misuse before the first."""
        return self._monitor.statistics

    # ---- life

    def reserve(self) -> Callable[[], None]:
        """Leave a lease on the store: for `lease_ttl_s`, or until what this returns is called, others can recover the
        state at this position.

            let_go = recovery.reserve()

        For a program that plans, and hands `position` to workers that read. Raises NotFound, Damaged, Unavailable, and
        Misuse while a stream is open, whose lease it would be.
        """
        self._check_idle()
        self._held.pin()
        return self._held.reserve()

    def close(self) -> None:
        """Close a stream that is open, remove the lease and leave the cache. Idempotent. A later target starts anew,
        unless the log is that of `read`, which is closed.
        """
        if self._read_ahead is not None:
            self._read_ahead.close()
            if self._read_ahead.is_running:
                return  # The plan belongs to the thread, which waits for a broker or store and releases it later.
        self._let_go()
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
            raise Misuse("what is resumed is the rest of a state", hint="Use stream or follow")
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
            self._let_go()

    def _reader(self, plan: Plan, beat: Beat) -> PlanReader:
        self._opener.hold()
        return PlanReader(self._held.log, plan, self._settings, beat, hold=self._held, opener=self._opener)

    def _open_stream(self, poll_s: float | None = None) -> Stream:
        self._check_idle()
        self._monitor.start()
        with undone_by_errors(self.close):
            self._held.take()
            self._opener.hold()
            self._monitor.begin()
            self._read_ahead = ReadAhead(
                self._held, self._settings, self._reader, self._let_go, self._resume, poll_s=poll_s
            )
            return Stream(self._read_ahead, self._monitor)

    def _let_go(self) -> None:
        """Of lease and cache, which in a fork are the parent's. Idempotent."""
        if self._held.is_foreign:
            return
        try:
            self._held.close()
        finally:
            self._opener.close()

    def _check_idle(self) -> None:
        if self._read_ahead is not None and self._read_ahead.is_running:
            raise Misuse("a stream of this recovery is open", hint="Close it first, or recover once more")
