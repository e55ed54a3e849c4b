"""The planning process: gives each batch a task grant, from an epoch that is opened once per query run.

Spark plans all batches of a session in Python workers beside the driver. They are the only processes that pickle a
sink's writer, and that is when this module is called. Which worker plans is Spark's choice, and it may be another one
for every batch: so a worker that has no epoch takes the one that a sibling opened, and the ledger is read on from
there. A batch is planned only after the one before was committed, so what is read then is the base of the next commit.

Invariants:
- One Open for each run of a query, however many workers plan it and however long they rest; and one more for each
  commit whose outcome had to be settled, and each plain write that was given up.
- A plain write that is under way is in the ledger: by the Open of its epoch, or by a void record if that has committed.
- An epoch that a foreign writer fenced is never taken back. The query fails with Fenced; a restart opens a new one.
- Nothing is fenced before `check_ownership` has agreed, and nothing that was opened since.
- Task attempt ids are the slots of change sets. They are unique within a Spark context, which a run never outlives.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlparse

from statelog.closing import undone_by_errors
from statelog.environment import current_environment
from statelog.errors import Fenced, IdentityChanged, StatelogError
from statelog.producer.epoch import Grant, TaskGrant, grant_of, open_epoch
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.values.schema import ValueSchema
from statelog.spark.clients import ProcessCache, cached_log, planned, task_producer
from statelog.spark.option_texts import LogAddress
from statelog.spark.options import WriteOptions
from statelog.spark.ownership import Rival, check_ownership, find_rivals, has_begun, under_way
from statelog.spark.query_run import note_given_up, run_of, same_run, sibling_nonce, voided_nonce
from statelog.storage.ledger_client import LedgerClient
from statelog.storage.log.evidence import read_on
from statelog.storage.log.log import Log
from statelog.storage.log.producers import append_all

_LOG = logging.getLogger("statelog.spark")
_LOOKS = 5

Check = Callable[[Descriptor, ValueSchema], object]
"""Raises if what is to be written does not fit the log."""


@dataclass(slots=True)
class _Epoch:
    """The right to write, and the ledger as far as it was read. Has no producer: commits go out elsewhere."""

    grant: Grant
    ledger: LedgerClient
    log: Log

    def close(self) -> None:
        self.ledger.close()


_epochs: ProcessCache[tuple[LogAddress, str, str | None, object], _Epoch] = ProcessCache()


def plan_batch(options: WriteOptions, *, check: Check | None = None) -> TaskGrant:
    """The right to write the next batch. `check` may refuse the log before an epoch is opened.

    Raises LogInUse and CheckpointMismatch before anything is fenced; Fenced, OutcomeUnknown, Damaged, Unavailable,
    ConfigError.
    """
    return planned(options.where, lambda: _Planning(options, check).plan())


class _Planning:
    """One batch, as it is planned. Raises as `plan_batch`."""

    def __init__(self, options: WriteOptions, check: Check | None) -> None:
        self._options = options
        self._check = check
        part = (options.partitions, options.share)
        self._key = (options.where, options.writer, options.checkpoint_location or options.query_id, part)
        self._epoch = _epochs.get(self._key)
        self._log = cached_log(options.where)  # After the epoch: no log is idle for longer than what was made of it.
        self._run = run_of(options, self._log.descriptor.identity)

    def plan(self) -> TaskGrant:
        """The right to write it."""
        with undone_by_errors(_epochs.drop, self._key):
            epoch = self._current()
            if self._options.serves_query:
                self._run.keep()
            else:
                self._announce(epoch)
        base = epoch.ledger.fold.last_checkpoint(self._options.writer)
        grant = replace(epoch.grant, witness=epoch.ledger.place)
        return TaskGrant(grant=grant, base=base, checkpoint_id=base.id + 1)

    def _current(self) -> _Epoch:
        """The epoch that this worker has, as its siblings left it; or the one for a worker that has none."""
        epoch = self._epoch
        if epoch is not None and epoch.log is self._log:  # Else the log was opened anew, and the old one is closed.
            read_on(self._log, epoch.ledger)
            grant = self._grant(epoch.ledger, epoch.grant)
            if grant is not None:
                epoch.grant = grant
                return epoch
        return _epochs.put(self._key, self._first())

    def _announce(self, epoch: _Epoch) -> None:
        """Say in the ledger that another plain write of this epoch is under way."""
        last = epoch.ledger.fold.last_commit(self._options.writer)
        if last is not None and last.offset > epoch.grant.epoch:
            with task_producer(self._options.where) as producer:
                append_all(producer, self._log.ledger_topic, 0, under_way(epoch.grant.nonce), 1)

    def _first(self) -> _Epoch:
        """A sibling's epoch, or a new one.

        Who is overtaken between the look and the Open looks again: two jobs that start at once do not both see nobody.
        """
        overtaken: Fenced | None = None
        for _ in range(_LOOKS):
            ledger = self._log.ledger.newest_client()
            with undone_by_errors(ledger.close):
                read_on(self._log, ledger)
                grant = self._grant(ledger)
                if grant is not None:
                    return _Epoch(grant, ledger, self._log)
                rivals = self._rivals(ledger.fold)
            ledger.close()
            try:
                epoch = self._open(ledger.fold.prior(self._options.writer, self._taken))
            except Fenced as error:
                overtaken = error
                continue
            for ended in (rival.live.writer for rival in rivals):
                level = logging.INFO if ended == self._options.writer else logging.WARNING
                _LOG.log(level, "%s: writer %s took over from %s", self._log.name, self._options.writer, ended)
            return epoch
        assert overtaken is not None, "every look ends in an epoch or is overtaken"
        raise overtaken

    def _grant(self, ledger: LedgerClient, known: Grant | None = None, *, is_sure: bool = False) -> Grant | None:
        """The right to write under the newest epoch on our name or any partition that we take, if a worker of this run
        opened it; `known` is that of an earlier one. None if the run has no epoch, or it is a plain write, which has no
        run to lose. Raises Fenced if it was taken from a query, once: started again the query opens a new one. That is
        sure behind a barrier alone: the first answer of a deposed leader hides what a sibling has opened.
        """
        options, tag, fold = self._options, self._run.tag, ledger.fold
        newest = fold.live_epoch(fold.prior(options.writer, self._taken))
        if newest is not None and same_run(newest.nonce, tag):
            return known if known is not None and known.epoch == newest.epoch else grant_of(self._log, fold, newest)
        if options.serves_query and self._run.has_opened(lambda: has_begun(self._log, fold, options.writer, tag)):
            if not is_sure:
                ledger.fold_to(self._log.barrier())
                return self._grant(ledger, known, is_sure=True)
            self._run.note("told")
            raise Fenced(
                "another writer took over",
                writer=options.writer,
                by_writer=newest.writer if newest else None,
                hint="Stop this query if the other one should go on; a restart takes over again",
            )
        return None

    def _rivals(self, fold: LedgerFold) -> list[Rival]:
        """Whom an Open would fence. Raises LogInUse, CheckpointMismatch and the refusals of `check` if it may not."""
        if self._check is not None:
            self._check(self._log.descriptor, self._log.value_schemas.newest())
        options = self._options
        rivals = find_rivals(self._log, fold, options, current_environment().wall_clock())
        query_id = options.query_id or _query_id(options.checkpoint_location)
        check_ownership(options, query_id, self._run.tag, fold.last_commit(options.writer), rivals)
        return rivals

    def _open(self, judged: int) -> _Epoch:
        """Open an epoch. Raises Fenced if another one was opened since the ownership check."""
        siblings = replace(current_environment(), nonce=partial(sibling_nonce, self._run.tag))
        opened = siblings.run(open_epoch, self._log, self._options.writer, partitions=self._taken, judged=judged)
        opened.producer.close()
        with undone_by_errors(opened.close):
            if self._options.serves_query:
                self._run.note()
        return _Epoch(opened.grant, opened.ledger, self._log)

    @property
    def _taken(self) -> tuple[int, ...]:
        return self._options.taken(self._log.descriptor.partitions)


def give_up(options: WriteOptions, grant: Grant) -> None:
    """End the epoch of a write that failed, by an Open that is nobody's, so that it bars nobody. Never raise.

    It ends one that was to settle a plain write's commit, too, whatever became of that. The epoch of a query ends only
    while it has committed nothing.
    """
    voided = replace(current_environment(), nonce=voided_nonce)
    try:
        log = cached_log(options.where, grant.descriptor.identity)
        with log.ledger.newest_client() as ledger:
            ledger.fold_end()
            newest = ledger.fold.live_epoch(ledger.fold.prior(grant.writer, grant.partitions))
            last = ledger.fold.last_commit(grant.writer)
        if options.serves_query and last is not None and last.offset > grant.epoch:
            return
        if newest is not None and same_run(newest.nonce, grant.nonce):
            note_given_up(grant.nonce)
            voided.run(open_epoch, log, grant.writer, partitions=grant.partitions, judged=newest.epoch).close()
    except (Fenced, IdentityChanged):
        pass  # Another one has ended it, or its log is gone, with all that the epoch barred.
    except StatelogError as error:
        _LOG.warning("%s: the epoch of a write that failed bars others for a while: %s", options.where.log, error)


def _query_id(checkpoint_location: str) -> str | None:
    """The query's id from its checkpoint, where that lies on this machine; else it is known once its tasks run."""
    url = urlparse(checkpoint_location)
    if not checkpoint_location or url.scheme not in ("", "file"):
        return None
    path = unquote(url.path) if url.scheme else checkpoint_location
    try:
        found: object = json.loads((Path(path) / "metadata").read_text("utf-8")).get("id")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None
