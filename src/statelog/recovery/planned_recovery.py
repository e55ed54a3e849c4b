"""`Recovery`: a planned state: its facts, its targets and its streams.

Each target is filled as `targets.fill` says. Decides nothing by itself.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from statelog.closing import Closing
from statelog.errors import Misuse
from statelog.reading.plan import Plan
from statelog.recovery.held_plan import HeldPlan
from statelog.recovery.streaming.cursor import Cursor
from statelog.recovery.streaming.read_ahead import ReadAhead
from statelog.recovery.streaming.stream import Stream
from statelog.recovery.targets.arrow import ArrowTarget
from statelog.recovery.targets.dict import DictTarget
from statelog.recovery.targets.fill import fill
from statelog.recovery.targets.monitor import Monitor, OnProgress
from statelog.recovery.targets.parquet import ParquetTarget
from statelog.recovery.targets.rocksdb_read import require_rocksdict
from statelog.recovery.targets.statistics import RecoveryStatistics
from statelog.recovery.targets.target import Target
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.ledger.state import LastCommit

__all__ = ["Recovery"]

T = TypeVar("T")


class Recovery(Closing):
    """A planned recovery. Each target reads everything anew. Belongs to one thread; made by `recover`.

        recovery = recover(log)
        state, resume = recovery.to_dict(), recovery.last_commit("web")

    `position`, `commits`, `meta`, `last_commit` and `plan` are facts of one state; asking for them leaves nothing on
    the store. Once one was seen, every target is of that state and no other: if the log was truncated past it
    meanwhile, that is NotFound. Until then, a target of the newest state may be of a newer one than was planned.
    """

    def __init__(self, held: HeldPlan, on_progress: OnProgress | None, resume: Cursor | None = None) -> None:
        self._held = held
        self._monitor = Monitor(held, on_progress)
        self._resume = resume
        self._read_ahead: ReadAhead | None = None

    # ---- targets

    def to_dict(self) -> dict[Any, Any]:
        """Key to value: bytes, or a dict of the fields of a typed log.

            recover(log).to_dict()[b"alice"]

        In a log whose callers name the key groups, the dict's keys are (key group, key). Raises Damaged, Unavailable.
        """
        return self._fill(DictTarget(with_group=self.descriptor.hash_rule is HashRule.CALLER))

    def to_arrow(self, *, ordered: bool = False) -> pa.Table:
        """A table of key_group (uint16), key, value (binary, or a struct), one row per key, in many chunks.

            recover(log).to_arrow(ordered=True).num_rows

        Rows come by partition and in no order within it; `ordered` sorts by (key group, key), which takes a little
        longer, and beside the table only the memory of `to_parquet`. Raises Damaged, Unavailable, StorageFull.
        """
        return self._fill(ArrowTarget(ordered))

    def to_parquet(self, path: str | PathLike[str]) -> int:
        """Write the same table, sorted by (key group, key), to a local file; returns the rows.

            rows = recover(log).to_parquet("/tmp/statelog/visits.parquet")

        Memory, beside that of the clients: about three times `fold_bytes` while a tail is sorted, which goes to
        `spill_directories` above that, however large it is; then, decoded, a row group of every run and what is read
        ahead (six of a megabyte or more, up to 64 MB in their files). The file appears whole or not at all, replacing
        an older one. Raises AlreadyExists for a directory, StorageFull, Damaged, Unavailable.
        """
        return self._fill(ParquetTarget(Path(path)))

    def to_rocksdb(self, path: str | PathLike[str], *, sst_bytes: int = 64 << 20) -> int:
        """Make a RocksDB database on the local disk; returns the rows. Needs the extra `statelog[rocksdb]`.

            rows = recover(log).to_rocksdb("/tmp/statelog/visits")

        A key is the key group (two bytes, big-endian) and the key's bytes, `RocksdbState.key`; a value is its bytes, or
        Avro's plain binary form. `read_rocksdb_state` tells what was recovered. SST files have about `sst_bytes`. The
        database appears whole or not at all, and never replaces anything. Memory as `to_parquet`, and the negative keys
        of one key group. Raises AlreadyExists, ConfigError, StorageFull, Damaged, Unavailable.
        """
        require_rocksdict()
        from statelog.recovery.targets.rocksdb import RocksdbTarget

        return self._fill(RocksdbTarget(Path(path), sst_bytes))

    # ---- streams

    def stream(self) -> Stream:
        """The state in portions, read ahead within `memory_bytes` and spilled above: for a reader of your own.

            for changes, cursor in recover(log).stream():
                print(changes.num_rows, cursor.is_complete)

        The lease lies on the store when this returns, and is removed once all of it was read, however slow the reader
        is. Raises ConfigError, Misuse, and as `recover`; the stream itself raises what reading does.
        """
        return self._open_stream()

    def follow(self, *, poll_s: float = 0.5) -> Stream:
        """The state as `stream`, and then every commit behind it, until the stream is stopped or closed.

            with recover(log).follow() as stream:
                changes, cursor = next(stream)

        The ledger is asked for more every `poll_s`. A lease holds the log for a follower that is behind, up to the cap
        on leases. Raises as `stream`.
        """
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
        return self._monitor.statistics

    # ---- life

    def reserve(self) -> Callable[[], None]:
        """Leave a lease on the store: for `lease_ttl_s`, or until what this returns is called, others can recover the
        state at this position.

            let_go = recovery.reserve()

        For a program that plans, and hands `position` to workers that read. Raises as a target does.
        """
        self._held.pin()
        return self._held.reserve()

    def close(self) -> None:
        """Close a stream that is open, remove the lease and leave the cache. Idempotent; a later target starts anew."""
        if self._read_ahead is not None:
            self._read_ahead.close()
            if self._read_ahead.is_running:
                return  # The plan belongs to the thread, which waits for a broker or store and releases it later.
        self._held.release()

    def __repr__(self) -> str:
        plan = self._held.plan if self._held.is_planned else None
        where = f"position={plan.position}, manifest={plan.manifest_number}" if plan else "no plan"
        return f"Recovery({self._held.log.name!r}, {where})"

    # ---- at work

    def _fill(self, target: Target[T]) -> T:
        self._check_idle()
        if self._resume is not None:
            raise Misuse("what is resumed is the rest of a state", hint="Use stream or follow")
        return fill(target, self._held, self._monitor)

    def _open_stream(self, poll_s: float | None = None) -> Stream:
        self._check_idle()
        self._monitor.start()
        self._monitor.follow(self._held.claim())
        try:
            self._read_ahead = ReadAhead(self._held, self._resume, poll_s=poll_s)
        except BaseException:
            self._held.release()
            raise
        return Stream(self._read_ahead, self._monitor)

    def _check_idle(self) -> None:
        if self._read_ahead is not None and self._read_ahead.is_running:
            raise Misuse("a stream of this recovery is open", hint="Close it first, or recover once more")
