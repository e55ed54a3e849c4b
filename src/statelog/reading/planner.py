"""`Planner`: lists the manifests, takes the target once, folds the ledger to it, and checks that the log reaches back.

Owns the choice of the snapshot and what is known to be wrong with the others. Never reads a run or a chunk.

Invariants:
- Manifests are listed before the target is taken, so no snapshot that was listed can lie above it.
- A plan is never older than what this process was told or has read through this log, nor than what the caller knows of.
- The target is taken once. It moves only if the newest state was asked for and the log no longer holds that target.
- A snapshot that failed is never used again, it is never passed over in silence, and if the log does not reach back to
  an older one, its error is what the caller gets.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from statelog.errors import (
    BeyondEnd,
    BrokerUnavailable,
    CorruptManifest,
    IdentityChanged,
    NotFound,
    OffsetGone,
    StatelogError,
)
from statelog.reading.at import At, AtCheckpoint, AtPosition
from statelog.reading.commits import Commits
from statelog.reading.plan import Plan, make_plan, wanted_key_groups
from statelog.reading.preflight import LogOffsets, check_reach, log_offsets
from statelog.schemas.ledger.place import Place
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import READING
from statelog.storage.log.log import Log

__all__ = ["Planner"]

_LOG = logging.getLogger("statelog.recovery")
_NOT_HELD_HINT = "Ask for a position from the oldest to the newest, or for a checkpoint committed in between"
_PASSED_HINT = "The log was truncated since this state was planned and shown: recover again, into an empty target"


class Planner:
    """Makes plans for one request until one of them can be carried out."""

    def __init__(
        self, log: Log, at: At | None, key_groups: frozenset[int] | None, *, seen: Collection[Place] = ()
    ) -> None:
        """`seen` is what the caller remembers of the ledger: no newest state lies below it."""
        self.log = log
        self.at = at
        self._seen = seen
        self.key_groups = wanted_key_groups(key_groups, log.descriptor)
        self._target: int | None = None
        self._is_pinned = False
        self._failed: dict[int, StatelogError] = {}
        self.warnings: list[str] = []
        self.found: LogOffsets | None = None
        """Log start and log end, as they were when the newest plan was made of them; None for a snapshot alone."""

    def plan(self) -> Plan:
        """The best plan as things are now.

        Raises NotFound if the log does not hold the state asked for (and says what it holds), OffsetGone if truncation
        was faster than we (plan again), the error of a failed snapshot if there is no way around it, IdentityChanged,
        BeyondEnd, CorruptLedger, UnknownFormat, Unavailable.
        """
        self.log.verify(READING)
        with self.log.asking_who_answers():
            return self._plan()

    def _plan(self) -> Plan:
        manifests = self.manifests()
        end = self.ledger_end(manifests)
        target = self._take_target(manifests, end)
        base = next((manifest for manifest in manifests if manifest.position <= target), None)
        try:
            plan = self._plan_from(base, target, end, self.seen(manifests))
            self.found = log_offsets(self.log, plan)
            check_reach(plan, self.found, self.log.name)
        except OffsetGone as error:
            raise self._out_of_reach(error, base, manifests, end) from error
        return plan

    def manifests(self) -> "_Manifests":
        """Those that there are now, newest first."""
        return _Manifests(self, self.log.manifests.numbers())

    @property
    def failure(self) -> StatelogError | None:
        """What is wrong with the newest snapshot that was passed over."""
        return self._failed[max(self._failed)] if self._failed else None

    @property
    def damaged_snapshots(self) -> int:
        """How many snapshots were passed over."""
        return len(self._failed)

    def ledger_end(self, manifests: Iterable[Manifest]) -> int:
        """The ledger's end, asked now. An answer below what is known to be there is asked again, and never believed.

        Raises BeyondEnd if it ends below a snapshot or what was seen of it, BrokerUnavailable.
        """
        newest = next(iter(manifests), None)
        snapshot = newest.position if newest else 0
        known = max((self.log.place, *self._seen), key=lambda place: place.position)
        end = self.log.ledger.end(at_least=max(known.position, snapshot))
        if newest is not None and end < snapshot:
            raise BeyondEnd(
                "the ledger ends below the newest snapshot",
                topic=self.log.ledger_topic,
                end_offset=end,
                manifest=newest.number,
                position=newest.position,
                hint="The ledger lost records that were committed: restore the topic",
            )
        if end >= known.position:
            return end
        if known.last is not None:
            raise BeyondEnd(
                "the ledger ends below what was seen of it",
                topic=self.log.ledger_topic,
                log_end=end,
                position=known.position,
                hint="It lost commits that were acknowledged: restore the topic, or accept the loss by name",
            )
        raise BrokerUnavailable(  # A position without its record may be a slip.
            "Kafka shows an older end of the ledger than the caller knows of",
            topic=self.log.ledger_topic,
            log_end=end,
            position=known.position,
            hint="Check the position: if it came from a commit, an old leader may have answered; try again. If it"
            " stays so, the ledger lost its tail",
        )

    def seen(self, manifests: Iterable[Manifest]) -> list[Place]:
        """What the ledger is compared with: the places that the caller remembers, and that of the newest snapshot."""
        return [*self._seen, *(manifest.place for manifest in islice(manifests, 1))]

    def find(self, at: AtCheckpoint, manifests: Iterable[Manifest], end: int) -> int | None:
        """The position right after a checkpoint's commit, searched backwards from `end`; None if it is nowhere."""
        upper = end
        for manifest in manifests:
            position = self._find_between(at, manifest, upper)
            if position is not None:
                return position
            last = manifest.state.last_commit(at.writer)
            if last is not None and last.checkpoint.id == at.checkpoint_id:
                return last.offset + 1
            upper = manifest.position
        return self._find_between(at, None, upper)

    def pin(self, position: int) -> None:
        """From now on only this position is planned, also if the newest state was asked for."""
        self.at, self._target, self._is_pinned = AtPosition(position), position, True

    def read_manifest(self, number: int, *, is_newest: bool) -> Manifest | None:
        """A manifest, or None if it is gone, known to be damaged, or of topics that the log had before these.

        Raises IdentityChanged if the newest one is of others, UnknownFormat.
        """
        if number in self._failed:
            return None
        try:
            manifest = self.log.manifests.read(number).manifest
        except NotFound:
            return None  # Superseded and cleaned up since it was listed.
        except CorruptManifest as error:
            hint = error.hint or "Restore the file from a copy of the store"
            self.pass_over(number, error.restated(hint=hint))
            return None
        if manifest.identity != self.log.descriptor.identity:
            if not is_newest and self.log.descriptor.made_with is not None:
                return None  # A person accepted that those are lost: no state of theirs is held any more.
            raise IdentityChanged(
                "a manifest was made for another log",
                log=self.log.name,
                manifest=number,
                url=self.log.store.url,
                hint="Files were copied between directories: restore this log's own",
            )
        return manifest

    def pass_over(self, number: int, error: StatelogError) -> None:
        """Never use this snapshot again, and say so."""
        self._failed[number] = error
        text = f"{self.log.name}: snapshot {number} is damaged, falling back to an older one: {error}"
        self.warnings.append(text)
        _LOG.warning(text)

    # ---- target

    def _take_target(self, manifests: "_Manifests", end: int) -> int:
        newest = next(iter(manifests), None)
        passed = self.at is None and newest is not None and newest.position > (self._target or 0)
        if self._target is None or passed:
            self._target = self._resolve(manifests, end)
        return self._target

    def _resolve(self, manifests: "_Manifests", end: int) -> int:
        match self.at:
            case None:
                return end
            case AtPosition(position):
                if position > end:
                    raise self._not_held(manifests, end)
                return position
            case AtCheckpoint() as at:
                found = self.find(at, manifests, end)
                if found is None:
                    raise self._not_held(manifests, end)
                return found

    def _find_between(self, at: AtCheckpoint, base: Manifest | None, end: int) -> int | None:
        wanted = (at.writer, at.checkpoint_id)
        try:
            with Commits(self.log, base) as ledger:
                found = [one.position for one in ledger.read_to(end) if (one.writer, one.checkpoint_id) == wanted]
        except OffsetGone:
            return None  # The ledger does not reach back this far, so no state there can be recovered either.
        return found[-1] if found else None

    # ---- plan

    def _plan_from(self, base: Manifest | None, target: int, end: int, seen: Collection[Place]) -> Plan:
        """The fold at the target, and what leads there. The ledger is compared as it is at its end."""
        with Commits(self.log, base) as ledger:
            commits, folded = ledger.read_to(target), ledger.folded
            ledger.pass_to(end)
            ledger.check(seen)
        bodies = (valid.commit.read_body() for valid in commits)  # Decoded one by one: there may be many.
        return make_plan(self.log.descriptor, base, folded, bodies, self.key_groups)

    # ---- what cannot be

    def _out_of_reach(
        self, error: OffsetGone, base: Manifest | None, manifests: "_Manifests", end: int
    ) -> StatelogError:
        """Why there is no plan: a failed snapshot that nothing replaces, a state that is not kept, or truncation."""
        if self.failure:
            return self.failure
        if base is None and self.at is not None and next(iter(manifests), None) is not None:
            return self._not_held(manifests, end)
        return error

    def _not_held(self, manifests: "_Manifests", end: int) -> NotFound:
        positions = [manifest.position for manifest in manifests]
        start = self.log.kafka.offsets(self.log.ledger_topic, [0])[0].start
        reaches_back = start == 0 and self.log.descriptor.made_with is None
        oldest = 0 if reaches_back else min(positions, default=end)
        return NotFound(
            f"the log {self.log.name} does not hold the state at {self.at}",
            log=self.log.name,
            oldest_position=oldest,
            newest_position=end,
            snapshots=len(positions),
            hint=_PASSED_HINT if self._is_pinned else _NOT_HELD_HINT,
        )


class _Manifests:
    """The readable manifests out of those listed, newest first, each read when it is first looked at."""

    def __init__(self, planner: Planner, numbers: Sequence[int]) -> None:
        self._planner = planner
        self._numbers = numbers
        self._read: dict[int, Manifest | None] = {}

    def __iter__(self) -> Iterator[Manifest]:
        for number in reversed(self._numbers):
            if number not in self._read:
                is_newest = number == self._numbers[-1]
                self._read[number] = self._planner.read_manifest(number, is_newest=is_newest)
            manifest = self._read[number]
            if manifest is not None:
                yield manifest
