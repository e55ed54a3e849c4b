"""`copy_log`: copies a log into a new one, on another cluster or below another root; `finish_copy` opens the copy.

    copy_log(log, "visits", there)                  # repeatedly: each call copies what is new
    copy_log(log, "visits", there, finish=True)     # the writers are fenced: from now on the copy is a log

A copy is a round of the new log whose changes come from the source. The first copies the whole state, a later one what
was committed since, or the whole state again where that was truncated. `docs/move.md` numbers the steps, and says what
a crash after each leaves behind. The history below the copied position is not copied.

Invariants:
- Until a copy is finished its ledger ends with a Restart at which every fold from its newest manifest stops. So nobody
  reads or writes a partial copy, and no commit is lost to the next manifest. One put opens it.
- A Restart names the position two above the manifest that its round began with. The slot of the next manifest has one
  winner, and a finishing copy continues at or above that position. So a Restart of a stalled round closes nothing.
- One manifest holds the state, the writers' progress, and the place in the source's ledger.
- The place is compared before new changes are read. If the source lost what the copy has, nothing is copied, and the
  loss is reported.
- A finishing copy opens every partition of the source before it plans, so it copies everything committed. It checks
  for a later Open right before its put, and again after it.
- Messages that left with commits are not copied. A finishing copy refuses a source that has unpublished ones.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from statelog.environment import Environment
from statelog.errors import (
    AlreadyExists,
    ConfigError,
    Corrupt,
    DataLoss,
    IdentityChanged,
    LogInUse,
    NotFound,
    OffsetGone,
)
from statelog.log import Log, LogOptions, Where
from statelog.log.loss import append_restarts
from statelog.log.making import make_log
from statelog.log.topics import record_at
from statelog.log.where import opened_ports
from statelog.materializer.cleanup import CleanupPlan
from statelog.materializer.engine import LocalEngine
from statelog.materializer.outcome import CompletedRound, LostRound
from statelog.materializer.round import Delta, Round
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.sorted_tables import delta_tables, merged_runs
from statelog.materializer.target import RoundTarget
from statelog.materializer.work import RoundWork
from statelog.reading import AtPosition, Converter, HeldPlan, Hold, Plan, Terms, check_published, plan_changes
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import Restart
from statelog.schemas.ledger.state import LedgerState, Origin, copied_state
from statelog.schemas.names import COPIER, settings_or
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.run_ref import in_order
from statelog.schemas.topic_policy import LEDGER_WRITING

_LOG = logging.getLogger("statelog.log")
_OPENS = 32
_TERMS = Terms("statelog copy", 300.0)
_THREAD = "statelog-copy"
_ALL = range(MAX_KEY_GROUPS)

CRASH_POINTS = (
    "after-create",  # the new log exists, and is closed
    "after-fence",  # the source's writers are fenced, if this run finishes
    "after-plan",  # the source is planned, and held by a lease
    "after-close",  # the Restart of this round is in the ledger
    "after-verify",  # both states have the same digest
)
"""The names that `Environment.crash` is called with, in addition to a round's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy.

    source_position  the copy has everything committed below this position of the source
    position         the copy's own position
    is_whole         whether the whole state was read, else the changes since the copy before
    is_finished      whether the copy is open
    changes          read from the source
    rows             written to the copy, as `size_bytes`
    verified_rows    rows of each of the two states, None if they were not compared
    writers          how many writers' progress was copied
    """

    source_position: int
    position: int
    is_whole: bool
    is_finished: bool
    changes: int
    rows: int
    size_bytes: int
    verified_rows: int | None
    writers: int


def copy_log(
    source: Log,
    name: str,
    where: Where,
    *,
    finish: bool = False,
    verify: bool = True,
    is_alone: bool = False,
    truncation: str | None = None,
    retention_days: int | None = None,
    settings: MaterializerSettings | None = None,
    on_progress: Callable[[float], object] = lambda _: None,
) -> Copied:
    """Copy what is committed now into the log `name`, which is created if it does not exist, and is closed until
    `finish`. Another call resumes where the last one ended or was killed.

    finish          fence the source's writers, which takes the right to write its ledger. They continue in the copy,
                    each with its last checkpoint, metadata and meta records
    verify          read and compare both whole states before the put
    is_alone        the source is one of `open_snapshots`: copy its newest snapshot, without asking its cluster
    truncation      as in `LogOptions`, for the new log; so is `retention_days`
    on_progress     is called with the share of the changes that was read

    Raises AlreadyExists for a log that is no copy, or a finished one. Raises IdentityChanged for a copy of another log.
    Raises LogInUse if another writer opened the source after the fence, if rounds of the source were faster than the
    comparison, or if another copy was faster. Raises it, too, if messages of the source may be unpublished. Raises
    ConfigError, OutcomeUnknown, Damaged, Unavailable.
    """
    options = replace(_options_of(source), truncation=truncation, retention_days=retention_days)
    with _opened(name, where, options, _reason(source.name, name)) as log:
        log.check_made_with(options)
        work = LogCopy(log, source, settings, finish=finish, verify=verify, is_alone=is_alone, on_progress=on_progress)
        return work.copy()


def _opened(name: str, where: Where, options: LogOptions, reason: str) -> Log:
    """Return the log that is copied into. Create it if it does not exist; a concurrent copy may create it first."""
    with suppress(NotFound):
        return Log.open(name, where)
    try:
        return _create_closed(name, where, options, reason)
    except AlreadyExists:
        with suppress(NotFound):
            return Log.open(name, where)
        raise


def _create_closed(name: str, where: Where, options: LogOptions, reason: str) -> Log:
    """Return a new log whose ledger begins with a Restart, which voids what follows for a fold from the beginning."""
    mark = partial(Restart, position=1, reason=reason, operator=COPIER)
    with opened_ports(name, where) as ports:
        made = make_log(ports, name, options, where.replication_factor, mark)
    return Log(made, ports.kafka, ports.store, waived=ports.waived)


def finish_copy(source: str, name: str, where: Where, *, settings: MaterializerSettings | None = None) -> Copied:
    """Open a copy of the log `source` as it was copied last, for when the source is lost.

    Later commits of the source are not in it. Raises NotFound if nothing was copied yet, ConfigError for a copy of
    another log, and what `copy_log` names.
    """
    with Log.open(name, where) as log:
        newest = log.manifests.newest()
        origin = Origin.of(newest.state) if newest else None
        if origin is not None and origin.log != source:
            raise ConfigError(f"{name} is a copy of {origin.log}", log=name, hint="Name that log, or another copy")
        return LogCopy(log, None, settings, finish=True).copy()


class LogCopy(Round):
    """One round of a copy. Without a `source` it only finishes the copy."""

    def __init__(
        self,
        log: Log,
        source: Log | None,
        settings: MaterializerSettings | None = None,
        *,
        finish: bool = False,
        verify: bool = False,
        is_alone: bool = False,
        on_progress: Callable[[float], object] = lambda _: None,
    ) -> None:
        super().__init__(log, settings_or(settings, MaterializerSettings()), make_engine=self._made_engine)
        self._source = source
        self._finishes = finish
        self._verifies = verify
        self._is_alone = is_alone
        self._on_progress = on_progress
        self._origin: Origin | None = None
        self._plan: Plan | None = None
        self._fence: int | None = None
        """The epoch in which this copy owns all partitions of the source, so that no other writer commits."""
        self._held = ExitStack()
        self._verified_rows: int | None = None

    def copy(self) -> Copied:
        """Run the copy to its end, once. Raises the errors of `copy_log`."""
        self._environment.crash("after-create")
        with self._held:
            self._origin = self._copied_so_far(self._log.manifests.newest())
            if self._finishes and self._source is not None and not self._is_alone:
                check_published(self._source)  # Before anybody is fenced.
                self._fence = _fence_writers(self._source, self._environment)
                check_published(self._source)
            self._environment.crash("after-fence")
            if self._source is not None:
                self._plan = self._planned(self._source, self._origin)
            self._environment.crash("after-plan")
            outcome = self.run()
        if isinstance(outcome, LostRound):
            raise self._overtaken()
        self._check_quiet(is_put=True)
        done = outcome if isinstance(outcome, CompletedRound) else None
        newest = self._log.manifests.newest()
        assert newest is not None, "a round that did not lose leaves a manifest"
        origin = Origin.of(newest.state)
        assert origin is not None, "a copy's manifest names its source"
        return Copied(
            source_position=origin.place.position,
            position=outcome.position,
            is_whole=done is not None and self._plan is not None and not self._plan.is_of_changes,
            is_finished=origin.is_finished,
            changes=done.changes if done else 0,
            rows=done.rows if done else 0,
            size_bytes=done.size_bytes if done else 0,
            verified_rows=self._verified_rows,
            writers=len(newest.state.commits) - 1,
        )

    # ---- what to copy

    def _choose_target(self, end_position: int) -> RoundTarget:
        origin, plan = self._copied_so_far(self._base), self._plan
        if origin != self._origin:
            raise self._overtaken()
        if self._source is None or plan is None:
            assert origin is not None, "without a source there is an earlier copy"
            return self._target(origin, end_position)
        if origin is not None and plan.position == origin.place.position and not self._finishes:
            assert self._base is not None, "an origin is part of a manifest"
            return self._at(self._base.state)
        self._copy_schemas(self._source)
        descriptor = self._source.descriptor
        copied = Origin(log=descriptor.name, identity=descriptor.identity, place=plan.place, is_finished=False)
        return self._target(copied, end_position)

    def _overtaken(self) -> LogInUse:
        hint = "Run the copy again once the other one has ended"
        return LogInUse("another copy into this log was faster", log=self._log.name, hint=hint)

    def _has_news(self, target: RoundTarget) -> bool:
        return self._base is None or target.position > self._base.position

    def _copied_so_far(self, newest: Manifest | None) -> Origin | None:
        """Return the origin of what was copied so far. Raises AlreadyExists, IdentityChanged, NotFound."""
        origin = Origin.of(newest.state) if newest else None
        name = self._log.name
        if origin is None and (newest is not None or not is_begun_copy(self._log)):
            raise AlreadyExists(f"the log {name} is there, and is no copy", log=name, hint="Choose another name")
        if origin is None and self._source is None:
            raise NotFound(f"nothing was copied into {name} yet", log=name, hint="Copy the log, or delete this one")
        if origin is not None and origin.is_finished:
            hint = "Write to it; or delete it, and copy again"
            raise AlreadyExists(f"the copy {name} is finished: it is a log of its own", log=name, hint=hint)
        if origin is not None and self._source is not None and origin.identity != self._source.descriptor.identity:
            raise IdentityChanged(
                f"{name} is a copy of another log",
                log=name,
                expected=self._source.descriptor.identity.ledger_topic_id,
                found=origin.identity.ledger_topic_id,
                hint="Copy that log, or copy into another one",
            )
        return origin

    def _planned(self, source: Log, origin: Origin | None) -> Plan:
        """Return a plan of the changes since the origin, or of the whole state if those were truncated."""
        if origin is not None and not self._is_alone:
            try:
                plan = plan_changes(source, AtPosition(origin.place.position), seen=[origin.place])
                hold = self._held.enter_context(Hold(source.store, _TERMS)).on(source, plan)
            except (NotFound, OffsetGone) as error:
                _LOG.warning("%s: the whole state is copied again: %s", self._log.name, error)
            else:
                self._held.enter_context(hold.renewing(_THREAD))
                return plan
        plan = self._state(source, None)
        if origin is not None and plan.position < origin.place.position:
            hint = "Finish it with --as-copied, without --snapshot"
            raise NotFound("the copy has more than the newest snapshot", position=plan.position, hint=hint)
        return plan

    def _state(self, source: Log, at: AtPosition | None) -> Plan:
        """Return a plan of the state at a position, or of the newest one, held by a lease as long as the copy runs."""
        held = self._held.enter_context(HeldPlan(source, _TERMS, at, is_alone=self._is_alone))
        plan = held.take()
        self._held.enter_context(held.renewing(_THREAD))  # Upload and read-back may take longer than a lease lasts.
        return plan

    def _copy_schemas(self, source: Log) -> None:
        """Copy the value schemas. Called after planning: a schema is stored before the first chunk that needs it."""
        for schema in source.value_schemas.all():
            if schema.id and self._log.evolve_value_schema(schema.avsc).id != schema.id:
                hint = "Delete the copy, and copy again: only the copy may evolve its schema"
                raise ConfigError(
                    "the copy has other value schemas", log=self._log.name, schema_id=schema.id, hint=hint
                )

    def _target(self, origin: Origin, end_position: int) -> RoundTarget:
        """Return the target, behind a Restart that closes the log above the next manifest, unless this finishes it."""
        log, base_position = self._log, self._base.position if self._base else 0
        log.verify(LEDGER_WRITING)
        reason, digest = _reason(origin.log, log.name), log.descriptor.digest
        record = Restart(digest=digest, position=base_position + 2, reason=reason, operator=COPIER)
        last = append_restarts(log, record, max(base_position + 1, end_position))
        self._environment.crash("after-close")
        position = last + 1 if self._finishes else base_position + 1
        own = replace(origin, is_finished=self._finishes)
        state = self._plan.state if self._plan else self._base.state if self._base else None
        assert state is not None, "it is the source's, or that of the copy before"
        return self._at(copied_state(state, own, position, self._environment.nonce()))

    def _at(self, state: LedgerState) -> RoundTarget:
        there = self._log.data_offsets()
        return RoundTarget(state=state, commits=(), behind=False, there=there)

    # ---- copying

    def _made_engine(self, work: RoundWork) -> LocalEngine:
        self._engine = LocalEngine(work)
        return self._engine

    def _write_delta(self, target: RoundTarget) -> Delta:
        plan = self._plan
        if plan is not None and not plan.is_of_changes:
            self._runs = ()
        output = self._output(target)
        if plan is None or plan.is_empty:
            return Delta(output)
        with closing(self._read(plan, output.value_schema_id, drop_deletes=output.drop_deletes)) as tables:
            written = self._engine.write_tables(self._counted(tables, plan.changes), output)
        self._runs = in_order((*self._runs, *written.runs))
        return Delta(output, written, plan.changes, plan.size_bytes)

    def _read(self, plan: Plan, value_schema_id: int, *, drop_deletes: bool) -> Generator[pa.Table]:
        """Yield the sorted tables of a plan of the source."""
        assert self._source is not None, "a plan is of the source"
        source, converter = self._source, Converter(self._source, value_schema_id)
        tail = delta_tables(source, plan.replay, converter, self._work, drop_deletes=False)
        runs, start = [part.run for part in plan.runs], self._environment.start
        try:
            with closing(tail):
                yield from merged_runs(source.store, runs, _ALL, converter, start, [tail], drop_deletes=drop_deletes)
        except NotFound as error:
            hint = "Restore it from a copy of the store, or run a round on the log first"
            raise DataLoss(
                f"a file of the log's snapshot is missing: {error.message}", hint=hint, **error.facts
            ) from error

    def _counted(self, tables: Iterable[pa.Table], changes: int) -> Generator[pa.Table]:
        done = 0
        for table in tables:
            yield table
            done += table.num_rows
            self._on_progress(min(1.0, done / max(1, changes)))

    # ---- comparing

    def _put(self, target: RoundTarget, read: Mapping[int, LastRecord]) -> tuple[Manifest, CleanupPlan] | LostRound:
        """Compare the states, then put. The runs were read back already."""
        if self._source is not None and self._plan is not None:
            if self._verifies:
                self._compare(self._source, self._plan.position)
            self._environment.crash("after-verify")
            self._check_quiet()
        return super()._put(target, read)

    def _compare(self, source: Log, position: int) -> None:
        """Raise Corrupt unless the runs to be named hold the state of the source at the position."""
        schema = self._log.value_schemas.newest()
        try:
            plan = self._state(source, AtPosition(position))
        except NotFound as error:
            hint = "Run it again. Without the right to write leases to the log's store, it must outrun the log's rounds"
            raise LogInUse(
                f"the log {source.name} moved on before its copy was compared: {error.message}", hint=hint
            ) from error
        with closing(self._read(plan, schema.id, drop_deletes=True)) as tables:
            expected = StateDigest.of(tables, source.value_schemas.get(schema.id))
        own, store, start = Converter(self._log, schema.id), self._log.store, self._environment.start
        with closing(merged_runs(store, self._runs, _ALL, own, start, drop_deletes=True)) as tables:
            found = StateDigest.of(tables, schema)
        if found != expected:
            hint = "Check memory and disks, and copy again. The copy was not put, and nothing else is affected"
            if plan.state.accepted:
                hint = "Delete the copy, and copy again: it may have changes whose loss was accepted in the log since"
            raise Corrupt(
                "the copy has another state than the log",
                log=self._log.name,
                rows=found.rows,
                expected_rows=expected.rows,
                position=position,
                hint=hint,
            )
        self._verified_rows = found.rows

    def _check_quiet(self, *, is_put: bool = False) -> None:
        """Raise LogInUse if another writer opened the source after this copy. `is_put`: the copy is finished."""
        source, fence, plan = self._source, self._fence, self._plan
        if source is None or fence is None or plan is None:
            return
        state = source.evidence.check_ledger().state
        if any(live.epoch == fence for live in state.live):
            return
        missing = [f"{name}: {last.checkpoint.id}" for name, last in state.commits.items() if last.offset > fence]
        opened = [row.name for row in state.writers if row.newest_epoch > fence]
        what = f"the log {source.name} is still written to"
        hint = "Stop its writers, and run it again: what they commit would be in neither log"
        if is_put:
            what = f"the copy {self._log.name} is finished, and the log {source.name} is written to behind that"
            hint = "Stop those writers: their commits, and the missing checkpoints, are only in the old log"
        raise LogInUse(
            what, log=source.name, writers=", ".join(opened), missing_checkpoints=", ".join(missing), hint=hint
        )


def _fence_writers(log: Log, environment: Environment) -> int:
    """Open all partitions of the log in the name of the copy, and return the epoch.

    While that epoch is live, no commit follows it. Raises LogInUse if others keep opening, ConfigError without the
    right to write the ledger, OutcomeUnknown, Damaged, Unavailable.
    """
    log.verify(LEDGER_WRITING)
    partitions, nonce = tuple(range(log.descriptor.partitions)), environment.nonce
    log.evidence.check_ledger()
    with closing(log.kafka.producer()) as producer:
        for _ in range(_OPENS):
            epoch = log.history.open(producer, lambda fold: fold.next_open(COPIER, partitions, nonce(), log.place))
            if epoch is not None:
                return epoch
    raise LogInUse("other writers keep opening at the same time", log=log.name, hint="Stop them, and run it again")


def _reason(source: str, name: str) -> str:
    return f"{name} is a copy that is not finished: statelog copy {source} {name}"


def _options_of(source: Log) -> LogOptions:
    made, first = source.descriptor, source.value_schemas.all()[0]
    return LogOptions(
        partitions=made.partitions,
        key_groups=made.key_groups,
        key_type=made.key_type,
        hash_rule=made.hash_rule,
        prefix_bytes=made.prefix_bytes,
        value_schema=first.avsc if first.id else None,
        value_type=made.value_type.value,
        ttl_s=made.ttl_s,
    )


def is_closed_copy(log: Log, newest: Manifest | None) -> bool:
    """Return whether the log with this newest manifest is an unfinished copy. Raises Unavailable, Damaged."""
    origin = Origin.of(newest.state) if newest else None
    return not origin.is_finished if origin else newest is None and is_begun_copy(log)


def is_begun_copy(log: Log) -> bool:
    """Return whether a log without a manifest was created as a copy: its first record says so."""
    try:
        first = record_at(log.kafka, log.ledger_topic, 0)
    except OffsetGone:
        return False
    return isinstance(first, Restart) and first.operator == COPIER
