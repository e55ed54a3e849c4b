"""One round: roll the committed tail up into a run, publish it as the next manifest, and clean up.

`docs/protocol-materialize.md` numbers the steps, and says what a crash after each leaves behind. Any number of rounds
may run at once, on any machines, stalled for any time: the slot of the next manifest has one winner.

Invariants:
- The newest manifest is read first, and everything follows from it. Only the put of the next one makes a difference.
- What is missing is believed only while the manifest that needs it is still the newest (else the round is lost), and
  damage only while the directory is the log's.
- The budget never ends a round between a loss and the ledger record with which a person accepted it.
- A round that was given up stops at its next step, unless that lies after the put: then it counts, and is finished.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace

from statelog.environment import current_environment
from statelog.errors import Damaged, DataLoss, NotFound, OffsetGone, StatelogError
from statelog.materializer.cleanup import VerifiedRuns
from statelog.materializer.engine import EngineMaker, LocalEngine, scratch_directory
from statelog.materializer.outcome import CompletedRound, LostRound, RoundOutcome, SkippedRound
from statelog.materializer.roll_up import RollUp, Steps
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.target import RoundTarget, check_data, check_ledger, choose_target, prove_truncation
from statelog.schemas.topic_policy import ROLLING_UP
from statelog.storage.log.files import StoredManifest
from statelog.storage.log.log import Log

_LOG = logging.getLogger("statelog.materializer")

QUIET_RECORDS = 1000
"""So many ledger records without a commit are rolled up all the same, so that a quiet ledger is truncated, too."""


def run_round(
    log: Log,
    settings: MaterializerSettings | None = None,
    *,
    make_engine: EngineMaker = LocalEngine,
) -> RoundOutcome:
    """Run one round to its end, under any scheduler of your own.

    What the round could not do beside its snapshot is in the outcome, and a log line of `statelog.materializer`.
    `make_engine` makes who writes the runs: this process, unless another engine is given.

    Raises Damaged (DataLoss, Corrupt, UnknownFormat), UnsafeTopic, IdentityChanged, ConfigError for the scratch
    directory, Unavailable.

        >>> with Writer(log, "web") as writer:
        ...     writer.put(b"alice", b"1")
        ...     last = writer.commit()
        >>> run_round(log).rows
        1
    """
    outcome = Round(log, settings or MaterializerSettings(), make_engine=make_engine).run()
    if isinstance(outcome, CompletedRound):
        _log_shortfalls(log, outcome)
    return outcome


class Round:
    """One round, for the daemon and for tests.

    `verified` is what a process keeps from round to round. `make_engine` makes who writes the runs. `is_given_up` is
    asked between steps and between tables; once it returns true before the put, the round ends.
    """

    def __init__(
        self,
        log: Log,
        settings: MaterializerSettings,
        *,
        verified: VerifiedRuns | None = None,
        make_engine: EngineMaker = LocalEngine,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log = log
        self._settings = settings
        self._verified = verified or VerifiedRuns()
        self._make_engine = make_engine
        self._environment = environment = current_environment()
        self._steps = Steps(environment.crash, is_given_up)
        self._started_s = environment.wall_clock()

    def run(self) -> RoundOutcome:
        """Run it to its end, once. Raises what `run_round` names, and RoundGivenUp."""
        try:
            return self._roll_up_newest()
        except Damaged:
            self._log.manifests.check_place()  # In another directory, all that the log needs is missing.
            raise

    def _roll_up_newest(self) -> RoundOutcome:
        self._log.verify_anew(ROLLING_UP)
        if not self._verified.may_truncate:
            prove_truncation(self._log)
            self._verified.may_truncate = True
        newest = self._log.manifests.newest()
        self._steps.passed("after-newest")
        try:
            return self._roll_up_after(newest)
        except (OffsetGone, NotFound) as error:
            now = self._log.manifests.newest()
            if now is not None and now.manifest.number > _number(newest):
                return LostRound(number=now.manifest.number)
            raise _loss(error, _number(newest)) from error

    def _roll_up_after(self, newest: StoredManifest | None) -> RoundOutcome:
        base = newest.manifest if newest else None
        check_ledger(self._log, base)
        target = choose_target(self._log, base, self._settings)
        self._steps.passed("after-fold")
        if not _has_news(newest, target):
            check_data(self._log, base, target.state)
            return SkippedRound(number=_number(newest), position=base.position if base else 0)
        try:
            return self._roll_up_to(target, newest)
        except Damaged:
            farther = _past_acceptances(self._log, newest, target, self._settings)
            if farther is None:
                raise
        return self._roll_up_to(farther, newest)

    def _roll_up_to(self, target: RoundTarget, newest: StoredManifest | None) -> RoundOutcome:
        with scratch_directory(self._settings.scratch, self._environment) as scratch:
            return RollUp(
                self._log,
                self._settings,
                newest,
                target,
                scratch,
                steps=self._steps,
                verified=self._verified,
                make_engine=self._make_engine,
                environment=self._environment,
            ).run(self._started_s)


def _log_shortfalls(log: Log, outcome: CompletedRound) -> None:
    if outcome.cleanup.held_back:
        _LOG.warning("%s: cleanup held back, the log grows: %s", log.name, outcome.cleanup.held_back)
    for one in outcome.cleanup.capped:
        _LOG.error("%s: the subscription of reader %s was ended: %s", log.name, one.reader, one.reason)
    if outcome.unpublished:
        _LOG.warning("%s: the position for Kafka's lag tools was not published: %s", log.name, outcome.unpublished)


def _number(newest: StoredManifest | None) -> int:
    return newest.manifest.number if newest else 0


def _has_news(newest: StoredManifest | None, target: RoundTarget) -> bool:
    return bool(target.commits) or target.position - (newest.manifest.position if newest else 0) >= QUIET_RECORDS


def _past_acceptances(
    log: Log, newest: StoredManifest | None, target: RoundTarget, settings: MaterializerSettings
) -> RoundTarget | None:
    """The target without a budget, if a person accepted losses between the target and the ledger's end.

    A snapshot knows of losses that were accepted below its position only. So one that the budget ends between a lost
    change set and its acceptance can never be made.
    """
    if not target.behind:
        return None
    everything = replace(settings, budget_bytes=sys.maxsize, budget_commits=sys.maxsize)
    farther = choose_target(log, newest.manifest if newest else None, everything)
    return None if farther.state.accepted == target.state.accepted else farther


def _loss(error: StatelogError, number: int) -> StatelogError:
    if isinstance(error, OffsetGone):
        return error
    hint = "Restore them from a copy of the store, or recover an older snapshot"
    return DataLoss(
        f"files that the newest manifest names are gone: {error.message}", hint=hint, manifest=number, **error.facts
    )
