"""The right to write: `plan_batch` reads the ledger for the tasks of a batch, `committer_of` opens for its commit.

Planning writes nothing, and Spark may do it in any Python worker of the driver, any number of times. Tasks write under
a nonce of their batch, which no Open names: their change sets are void until a Commit lists them. The commit process
reads the ledger, and opens an epoch, unless an Open whose nonce belongs to this run of the query is live. Then it
adopts the change sets.

Invariants:
- There is one Open for each run of a query, whichever workers commit for it, and at most one for each plain write: a
  worker that commits several reuses its epoch. There is one more for each commit whose outcome had to be resolved.
- Only a process with a whole batch to commit that is not in the ledger yet sends an Open.
- A run never takes back an epoch that another writer fenced: its query fails with Fenced. A restart opens a new one.
- `check_competitors` runs before every Open, and an Open never fences a writer that opened since.
- Change sets are numbered by task attempts, which are unique within a Spark context, and so within a batch's nonce.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import replace

from statelog.environment import current_environment
from statelog.errors import Fenced
from statelog.log import Log
from statelog.producer.committer import Committer
from statelog.producer.epoch import EpochClients, Grant, TaskGrant, grant_of, open_epoch
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.topic_policy import WRITING
from statelog.schemas.values.schema import ValueSchema
from statelog.spark.clients import cached_log, planned
from statelog.spark.options import WriteOptions
from statelog.spark.ownership import are_in_order, check_competitors, has_opened, is_of_run, planned_earlier

_LOG = logging.getLogger("statelog.spark")
_TRIES = 5
_TAG_BYTES = 8

Check = Callable[[Descriptor, ValueSchema], object]
"""Raises if the rows to write do not fit the log."""


def plan_batch(options: WriteOptions, *, check: Check | None = None) -> TaskGrant:
    """Return the grant for the tasks of the next batch: a new nonce, based on the newest epoch. `check` may refuse.

    Raises LogInUse, Damaged, Unavailable, ConfigError.
    """
    return planned(options.where, lambda: _plan(options, check))


def _plan(options: WriteOptions, check: Check | None) -> TaskGrant:
    log = cached_log(options.where)
    log.verify(WRITING)  # Missing rights are refused here, for the tasks and the commit.
    value_schema = log.value_schemas.newest()
    if check is not None:
        check(log.descriptor, value_schema)
    view = log.history.read()
    taken, fold = options.taken(log.descriptor.partitions), LedgerFold(log.descriptor.identity, view.state)
    check_competitors(log, fold, options, current_environment().wall_clock())
    base = fold.last_checkpoint(options.writer)
    grant = Grant(
        descriptor=log.descriptor,
        value_schema=value_schema,
        writer=options.writer,
        epoch=fold.prior(options.writer, taken),
        nonce=current_environment().nonce(),
        partitions=taken,
        base=base,
        witness=view.place,
    )
    return TaskGrant(grant=grant, base=base, checkpoint_id=base.id + 1)


def committer_of(
    log: Log, options: WriteOptions, plan: Grant, query_id: str, is_there: Callable[[LastCommit | None], bool]
) -> Committer | None:
    """Return a committer for the change sets of `plan`, under the epoch of this run of the query, or a new one.

    Returns None if `is_there` finds the batch in the writer's last commit; it raises if the batch cannot follow that.
    If another writer opens between the check and our Open, the check is repeated: of two jobs that start at once, one
    finds the other. Raises Fenced if the run has lost its epoch, LogInUse, OutcomeUnknown, Damaged, Unavailable.
    """
    run = _Run(log, options, plan, query_id)
    overtaken: Fenced | None = None
    for _ in range(_TRIES):
        fold = LedgerFold(log.descriptor.identity, log.evidence.check_ledger(places=[plan.witness]).state)
        committer = run.resumed(fold)
        if committer is not None:
            return committer
        if is_there(fold.last_commit(options.writer)):
            return None
        try:
            return run.opened(*run.judged(fold))
        except Fenced as error:
            overtaken = error
    assert overtaken is not None, "every try ends in an epoch or is overtaken"
    raise overtaken


class _Run:
    """A run of a query, or a plain write, that has a batch to commit.

    The nonces of all Opens of a run begin with its tag, whichever worker sends them, also those that resolve a commit.
    """

    def __init__(self, log: Log, options: WriteOptions, plan: Grant, query_id: str) -> None:
        self._log, self._options, self._plan, self._query_id = log, options, plan, query_id
        self._environment, self._tag = current_environment(), b""
        if options.run_id is not None:
            self._tag = tag = hashlib.sha256(repr((options.writer, options.run_id)).encode()).digest()[:_TAG_BYTES]
            self._environment = replace(self._environment, nonce=lambda: tag + os.urandom(16 - _TAG_BYTES))

    def resumed(self, fold: LedgerFold) -> Committer | None:
        """Return a committer under the epoch that a worker of this run has opened; None if it has opened none.

        Raises Fenced if another writer fenced that epoch. A restarted query opens a new one.
        """
        writer = self._options.writer
        newest = fold.prior(writer, self._plan.partitions)
        live = fold.live_epoch(newest)
        if self._tag and live is not None and live.nonce.startswith(self._tag):
            clients = EpochClients(
                grant_of(self._log, fold, live), self._log.kafka.producer(), fold.last_commit(writer)
            )
            return self._environment.run(Committer, self._log, clients, is_shared=True)
        has_committed = is_of_run(fold.last_commit(writer), self._options.run_id)
        if has_committed or (self._tag and has_opened(self._log, newest, self._tag)):
            raise Fenced(
                "another writer took over",
                writer=writer,
                by_writer=live.writer if live else None,
                hint="Stop this query if the other writer should continue; a restart takes over again",
            )
        return None

    def judged(self, fold: LedgerFold) -> tuple[int, set[str]]:
        """Return the newest epoch that an Open would follow, and the writers that it would fence.

        Raises LogInUse, Fenced if it may not.
        """
        options, plan = self._options, self._plan
        is_later = fold.newest_epoch(options.writer) > plan.epoch and fold.last_checkpoint(options.writer) != plan.base
        if is_later and not are_in_order(fold.last_commit(options.writer), options, self._query_id):
            raise planned_earlier(options)
        check_competitors(self._log, fold, options, current_environment().wall_clock())
        ended = {one.writer for one in fold.freeze().live if not one.partitions.isdisjoint(plan.partitions)}
        return fold.prior(options.writer, plan.partitions), ended - {options.writer}

    def opened(self, judged: int, ended: set[str]) -> Committer:
        """Open a new epoch, and return its committer. Raises Fenced if another one was opened after `judged`."""
        log, options = self._log, self._options
        opened = self._environment.run(open_epoch, log, options.writer, partitions=self._plan.partitions, judged=judged)
        for writer in sorted(ended):
            _LOG.warning("%s: writer %s took over from %s", log.name, options.writer, writer)
        return self._environment.run(Committer, log, opened, is_shared=True)
