"""Changes: `split_changes` cuts a plan of changes for tasks, and `read_changes` gives each task its Arrow batches.

`read_changes` uses the one replay path. It reads the data topic, inline changes, and value schemas (once), without a
manifest or a lease. It holds a batch, and what the Kafka client reads ahead.

`CommitFeed` gives the commits after a state as they arrive, as their newest changes by (key group, key). One or more
commits are a small tail without a snapshot: they are read, verified, folded and sorted like the tail of a state.

Invariants:
- The parts of a plan together have each of its changes once, and each part has its changes in the plan's order.
- No part but the only one is smaller than `least_bytes`: such a task costs more than it saves.
- A lease holds the log from the first commit of a feed that was not passed yet. It is renewed as commits are read.
- A follower survives a broker that is unavailable for less than `stall_timeout_s`, and a store while the lease holds. A
  folded commit is returned and read even then.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa

from statelog.environment import Environment, current_environment
from statelog.errors import (
    BrokerUnavailable,
    IdentityChanged,
    IncompatibleSchema,
    Misuse,
    OffsetGone,
    StoreUnavailable,
)
from statelog.log import Log
from statelog.log.log import check_log
from statelog.reading import (
    CARRIED,
    CommitSpan,
    CommittedChunk,
    Converter,
    Hold,
    Needs,
    Plan,
    RetryWindow,
    SortedTail,
    commits_behind,
    partitions_of,
)
from statelog.recovery.plan_reader import PlanReader, committed_chunks
from statelog.recovery.settings import RecoverySettings, terms_of, tuning_of
from statelog.schemas.arrays import column_of, column_of_rows
from statelog.schemas.changes.due import DUE, check_shown, shown
from statelog.schemas.changes.replay_plan import ListedBy, ReplayPlan, plan_replay
from statelog.schemas.ledger.fold import Folded, ValidCommit
from statelog.schemas.ledger.handle import Entry
from statelog.schemas.names import check_kind, check_whole, settings_or

LEAST_BYTES = 4 << 20
"""The least input that is worth a task: about what a task reads while another one starts."""
_BATCH_ROWS = 65_536
_BATCH_BYTES = 8 << 20
_CHECK_S = 20.0
"""The longest time that a waiting feed does not check the ledger; at most a sixth of its lease's time."""
_CHECKS_PER_LEASE = 6
PAUSE = 0.5
"""The pause between two reads, as a part of the polling interval: commits in the pause are read no later, on average,
than by polling once in an interval.
"""
_TIME = pa.timestamp("ms", tz="UTC")
_Pieces = Mapping[int, Sequence[CommitSpan]]


# ---- parts


def split_changes(
    plan: Plan, tasks: int, *, least_bytes: int = LEAST_BYTES, whole_key_groups: bool = True
) -> tuple[Plan, ...]:
    """Split the plan into at most `tasks` parts of about equal size; none if there is nothing to fetch.

    With `whole_key_groups` all changes of a key group are in one part, in commit order, so there are no more parts than
    partitions. Without, a partition may be cut between two commits. Raises ConfigError for less than one task, Misuse
    for the plan of a state.
    """
    _check_changes(plan)
    check_whole("tasks", tasks, 1)
    wanted = max(1, min(tasks, plan.size_bytes // max(1, least_bytes)))
    return tuple(_by_partition(plan, wanted) if whole_key_groups else _by_size(plan, wanted))


def _by_partition(plan: Plan, wanted: int) -> list[Plan]:
    """Distribute whole partitions, the largest first, each to the smallest part."""
    parts: list[dict[int, Sequence[CommitSpan]]] = [{} for _ in range(wanted)]
    loads, sizes = [0] * wanted, plan.replay.sizes
    for partition in sorted(sizes, key=lambda one: (-sizes[one], one)):
        least = loads.index(min(loads))
        parts[least][partition] = plan.spans.get(partition, ())
        loads[least] += sizes[partition]
    return [_part(plan, {**mine, CARRIED: plan.spans.get(CARRIED, ())}, mine) for mine in parts if mine]


def _by_size(plan: Plan, wanted: int) -> list[Plan]:
    """Distribute partition after partition, cut at commits where the next part's share begins."""
    parts: list[dict[int, list[CommitSpan]]] = [{} for _ in range(wanted)]
    total, before = max(1, plan.size_bytes), 0
    for partition, spans in sorted(plan.spans.items()):
        for span in spans:
            middle = before + span.size_bytes // 2
            parts[min(wanted - 1, middle * wanted // total)].setdefault(partition, []).append(span)
            before += span.size_bytes
    return [_part(plan, mine, plan.partitions) for mine in parts if mine]


def _part(plan: Plan, pieces: _Pieces, partitions: Iterable[int]) -> Plan:
    """Return the plan of these spans, adjacent in each partition. Inline changes count for `partitions` only."""
    found = {partition: spans for partition, spans in pieces.items() if spans}
    used = sorted({span.commit for spans in found.values() for span in spans})
    numbers = {commit: number for number, commit in enumerate(used)}
    return replace(
        plan,
        commits=tuple(plan.commits[commit] for commit in used),
        spans={
            partition: tuple(span._replace(commit=numbers[span.commit]) for span in spans)
            for partition, spans in found.items()
        },
        replay=_replay_part(plan.replay, found, numbers).only(partitions),
    )


def _replay_part(replay: ReplayPlan, pieces: _Pieces, numbers: Mapping[int, int]) -> ReplayPlan:
    ranges: dict[int, tuple[tuple[int, int], ...]] = {}
    listed: dict[int, dict[Entry, ListedBy]] = {}
    for partition, spans in pieces.items():
        if partition == CARRIED:
            continue
        first, last = spans[0].first_offset, spans[-1].end_offset
        ranges[partition] = tuple(
            (max(a, first), min(b, last)) for a, b in replay.ranges[partition] if a < last and first < b
        )
        listed[partition] = {
            entry: origin._replace(commit=numbers[origin.commit])
            for entry, origin in replay.listed[partition].items()
            if first <= entry.first_offset < last
        }
    return ReplayPlan(
        ranges=ranges,
        listed=listed,
        accepted=tuple(lost for lost in replay.accepted if lost.partition in listed),
        carried={numbers[span.commit]: replay.carried[span.commit] for span in pieces.get(CARRIED, ())},
        partitions=replay.partitions,
    )


# ---- the changes of a part


def read_changes(
    log: Log, plan: Plan, *, due: bool = False, settings: RecoverySettings | None = None
) -> Generator[pa.RecordBatch]:
    """Yield the changes as batches of at most 65,536 rows or about 8 MiB, but for one larger chunk.

    The columns are those of `history_schema`: key, op (0 put, 1 delete), value (null in a delete), key_group, writer,
    checkpoint, position, timestamp; with `due` also the time from which the row is expired, or null. Within a key group
    they come in commit order, and in the order of their appends.

    Rows count once the generator has ended: only then no committed change is missing. A reader that cannot take rows
    back, such as a Spark task, retains them until then.

    Raises Unavailable, IncompleteChangeSet and other Damaged errors, and OffsetGone if the log was truncated past the
    plan. Raises IdentityChanged for another log's plan, Misuse for the plan of a state, and IncompatibleSchema if the
    plan's value schema is older than some value.
    """
    chosen = settings_or(settings, RecoverySettings())
    check_shown(due)
    _check_changes(plan)
    check_identity(log, plan)
    if plan.is_empty:
        return
    converter = Converter(log, plan.value_schema_id, drops_fields=False)
    clock = current_environment().clock
    with closing(committed_chunks(log, plan, converter, chosen, clock=clock, together=False)) as chunks:
        yield from _batches(plan, chunks, history_schema(converter.schema, due=due))


def _check_changes(plan: Plan) -> None:
    check_kind("plan", plan, Plan, example="what plan_changes gives")
    if not plan.is_of_changes:
        raise Misuse("the plan is of a state, which has no commits", hint="Plan with plan_changes")


def check_identity(log: Log, plan: Plan) -> None:
    """Raise IdentityChanged if the plan is another log's, ConfigError if `log` is no Log."""
    check_log(log)
    if plan.identity != log.descriptor.identity:
        raise IdentityChanged(
            "the plan was made for another log, or for earlier topics of this one",
            log=log.name,
            expected=log.descriptor.identity.ledger_topic_id,
            found=plan.identity.ledger_topic_id,
            hint="Plan again",
        )


def history_schema(change_schema: pa.Schema, *, due: bool = False) -> pa.Schema:
    """Return the columns of committed changes, for changes of `change_schema`.

    They are its key, op (0 put, 1 delete), value and key_group, and the commit's writer, checkpoint, position and
    timestamp; then `due`, if asked for. The position is right behind the commit. The timestamp is the broker's, in
    UTC; null if there is none.
    """
    own = [change_schema.field(name) for name in ("key", "op", "value", "key_group")]
    facts = [("writer", pa.string()), ("checkpoint", pa.int64()), ("position", pa.int64()), ("timestamp", _TIME)]
    return pa.schema([*own, *(pa.field(name, kind) for name, kind in facts), *[DUE] * due])


def _batches(plan: Plan, chunks: Iterable[CommittedChunk], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Join chunks to batches of at most 65,536 rows or about 8 MiB, but for one larger chunk."""
    commits, is_timed = plan.commits, DUE.name in schema.names
    times = [one.timestamp_ms if one.timestamp_ms >= 0 else None for one in commits]
    facts = [
        column_of_rows([one.writer for one in commits], pa.string()),
        column_of_rows([one.checkpoint_id for one in commits], pa.int64()),
        column_of_rows([one.position for one in commits], pa.int64()),
        column_of_rows(times, pa.int64()).cast(_TIME),
    ]
    known = pa.RecordBatch.from_arrays(facts, names=schema.names[4:8])
    for group in _grouped(chunk for chunk in chunks if chunk.changes.num_rows):
        numbers = [chunk.commit for chunk in group]
        which = np.repeat(np.array(numbers, np.int64), [chunk.changes.num_rows for chunk in group])
        changes = pa.concat_batches([shown(chunk.changes, due=is_timed) for chunk in group])
        own, dues = ([changes.column(name) for name in names] for names in (schema.names[:4], schema.names[8:]))
        yield pa.RecordBatch.from_arrays([*own, *known.take(column_of(which)).columns, *dues], schema=schema)


def _grouped(chunks: Iterable[CommittedChunk]) -> Iterator[list[CommittedChunk]]:
    group, rows, size_bytes = list[CommittedChunk](), 0, 0
    for chunk in chunks:
        rows += chunk.changes.num_rows
        size_bytes += chunk.changes.nbytes
        if group and (rows > _BATCH_ROWS or size_bytes > _BATCH_BYTES):
            yield group
            group, rows, size_bytes = [], chunk.changes.num_rows, chunk.changes.nbytes
        group.append(chunk)
    if group:
        yield group


def newest_changes(
    log: Log, plan: Plan, *, due: bool = False, settings: RecoverySettings | None = None
) -> Generator[pa.Table]:
    """Yield tables of key_group, op, key, value, sorted by (key group, key), one row for each key; deletes too.

    With `due` they have that column, too: the time from which a row is expired, or null.

        plan = plan_changes(log, AtPosition(0))
        for table in newest_changes(log, plan):
            print(table.num_rows)

    Memory is about three times `fold_bytes`; the rest is spilled. Close the generator to release the disk. Values of a
    newer schema than the plan's are converted to the plan's, where possible. Raises OffsetGone if the log was truncated
    past the plan, StorageFull, and the errors of `read_changes`.
    """
    check_shown(due)
    return _newest(log, plan, settings_or(settings, RecoverySettings()), current_environment(), due=due)


def _newest(
    log: Log, plan: Plan, settings: RecoverySettings, environment: Environment, *, due: bool
) -> Generator[pa.Table]:
    _check_changes(plan)
    check_identity(log, plan)
    hold, converter = Hold(log.store, terms_of(settings), environment=environment), Converter(log, plan.value_schema_id)
    reader = PlanReader(log, plan, settings, hold=hold, converter=converter)
    with reader.open_tail() as tail:
        with hold.on(log, plan):
            reader.fill(tail)
        yield from (shown(table, due=due) for table in reader.merge(tail, drop_deletes=False))


# ---- commit by commit


class CommitFeed:
    """A follower of a log from a plan's position on. Belongs to one thread. Close it to remove its lease.

    Every method raises OffsetGone if the log was truncated past it, Damaged, Unavailable.
    """

    def __init__(
        self,
        log: Log,
        plan: Plan,
        key_groups: frozenset[int] | None,
        settings: RecoverySettings,
        environment: Environment | None = None,
    ) -> None:
        self._log = log
        # Local copies serve a restart: they do not have later commits.
        self._settings = replace(settings, local_copies=None)
        self._environment = environment or Environment()
        self._partitions = partitions_of(key_groups, log.descriptor)
        self._base = replace(plan, manifest=None, runs=(), key_groups=key_groups, partitions=self._partitions)
        self.converter = Converter(log, settings.value_schema_id)
        """Defines the schema of the output. It advances with the first change in a newer value schema."""
        self._retries = RetryWindow(tuning_of(settings).stall_timeout_s, self._environment.clock)
        self.folded = Folded(plan.state, plan.place)
        """The ledger, up to the last commits that were returned."""
        self.is_answered = True
        """Whether Kafka answered the last call of `commits`."""
        self._hold = Hold(log.store, terms_of(settings), environment=self._environment).claim(
            Needs.behind(plan.state, self._partitions)
        )

    @property
    def passed_position(self) -> int:
        """The ledger position below which every commit was passed."""
        return self._hold.needs.position

    def commits(self, end_position: int | None = None) -> list[ValidCommit]:
        """Return the commits since the last call, oldest first; none while Kafka, or a needed store, does not answer.

        `end_position`: read up to this known position instead of the ledger's end.
        """
        self.renew()
        self._retries.ask()
        try:
            with _with_hint():
                found = self._commits(end_position)
        except (BrokerUnavailable, StoreUnavailable):  # The store has the state of a truncated ledger.
            self.is_answered = False
            if self._retries.is_over:
                raise
            return []
        self._retries.answered()
        self.is_answered = True
        if not found:
            self._hold.move(self.folded.place.position, self._hold.needs.next_offsets)
        return found

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait at the broker, by `History.wait`, until it is time to call `commits`. On any thread.

        Wait at most 20 s, or a sixth of the lease's time, and not at all if Kafka did not answer last. `is_over` is
        called every 0.2 s, and ends the wait.
        """
        if self.is_answered:
            limit_s = min(_CHECK_S, self._settings.lease_ttl_s / _CHECKS_PER_LEASE)
            self._log.history.wait(self.folded.place.position, limit_s, is_over)

    def _commits(self, end_position: int | None) -> list[ValidCommit]:
        history = self._log.history
        history.read_to(history.end() if end_position is None else end_position)
        history.expect([self.folded.place])
        found, self.folded = commits_behind(self._log, self.folded)
        return found

    def changes(self, commits: Sequence[ValidCommit], check: Callable[[], None]) -> Generator[pa.Table]:
        """Yield the newest change of each wanted key in these commits, with deletes, sorted. Call `check` often.

        A table has the column `due` if one of its rows may have a due.
        """
        replay = plan_replay((one.contents for one in commits), self._partitions, self.folded.state.accepted)
        if replay.is_empty:
            return
        with _with_hint():
            reader, tail = self._read(replay, check)
            with closing(tail):
                yield from reader.merge(tail, drop_deletes=False)

    def _read(self, replay: ReplayPlan, check: Callable[[], None]) -> tuple[PlanReader, SortedTail]:
        """Read whole commits. Read them again if they hold values of a newer schema than the known one."""
        plan, hold = replace(self._base, replay=replay), self._hold
        while True:
            converter = self.converter
            reader = PlanReader(self._log, plan, self._settings, lambda _: check(), hold=hold, converter=converter)
            with ExitStack() as failing:
                tail = failing.enter_context(reader.open_tail())
                try:
                    reader.fill(tail)
                except IncompatibleSchema:
                    if not self._has_newer(converter):
                        raise
                if not self._has_newer(converter):
                    failing.pop_all()
                    return reader, tail
            self.converter = Converter(self._log, converter.newest_id)

    def _has_newer(self, converter: Converter) -> bool:
        return self._settings.value_schema_id is None and converter.newest_id > converter.target.id

    def passed(self, commits: Sequence[ValidCommit]) -> None:
        """Move the lease past these commits, which the reader has."""
        needed = dict(self._hold.needs.next_offsets)
        for commit in commits:
            for entry in commit.entries(needed):
                needed[entry.partition] = max(entry.end_offset, needed[entry.partition])
        if commits:
            self._hold.move(commits[-1].position, needed)

    def renew(self) -> None:
        """Renew the lease if it is time to."""
        self._hold.renew()

    def close(self) -> None:
        """Remove the lease. Idempotent."""
        self._hold.close()


@contextmanager
def _with_hint() -> Generator[None]:
    """Add a hint to the error of a log that was truncated past its follower."""
    try:
        yield
    except OffsetGone as error:
        hint = "Recover the newest state into an empty target, and follow on: the reader was away or stuck for too long"
        raise error.restated(hint=hint) from error
