"""`Builder`: makes the state of a standby, and the feed that follows it from there; at the start, and again if need be.

    1  plan     a recovery of the newest state: a position           recovery
    2  hold     a feed from that position on, under its lease        recovery
    3  make     the state at the position: in a dict, or in a directory that is judged and brought there

Invariant: what the feed gives next is what the state lacks: the log is held from the state's own position on.
"""

from dataclasses import dataclass, replace

from statelog.environment import Environment
from statelog.reading.hold import planned_anew
from statelog.recovery import recover
from statelog.recovery.streaming.commit_feed import CommitFeed
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.values.schema import ValueSchema
from statelog.storage import Log
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.settings import TableSettings
from statelog.tables.standing.followed import Version
from statelog.tables.state.home import Home
from statelog.tables.state.opening import Opening, StateOpening, Wanted
from statelog.tables.state.record import StatePlace
from statelog.tables.state.state import State

__all__ = ["Builder", "Built"]


class Built:
    """A state, opened or made beside the one in use, and the feed of what is committed behind it."""

    def __init__(self, builder: "Builder", at_least: int, schema: ValueSchema) -> None:
        self._level_s = builder.environment.clock()
        self._recovery = builder.environment.run(
            recover,
            builder.log,
            key_groups=builder.keys.owned,
            at_least=at_least,
            progress=self._beat,
            settings=replace(builder.settings.recovery, value_schema_id=schema.id),
        )
        plan = self._recovery.plan
        self._last_commit: LastCommit | None = plan.state.last_commit(builder.owner)
        place = StatePlace(plan.place, len(plan.state.accepted))
        self._wanted = Wanted(place=place, values=ValueRule(schema), recovery=self._recovery)
        self._found: tuple[State, Opening] | None = None
        self.feed = CommitFeed(builder.log, plan, builder.keys.owned, builder.settings.recovery, builder.environment)
        self._opening = StateOpening(
            builder.log, builder.home, builder.keys, builder.settings, builder.environment, beat=self.feed.renew
        )

    def _beat(self, _: object) -> None:
        self.feed.renew()

    def open(self) -> None:
        """The first state. Raises as `StateOpening.open`."""
        with self._recovery:
            self._found = self._opening.open(self._wanted)

    def make(self) -> None:
        """Another one, beside it. Raises as `StateOpening.make`."""
        with self._recovery:
            self._opening.make(self._wanted)

    def replace(self, reason: str) -> Version:
        """What was made, in the place of the one that was in use until now, and is closed."""
        self._found = self._opening.replace(reason)
        return self.version()

    def version(self) -> Version:
        """What was opened."""
        assert self._found is not None
        state, opening = self._found
        return Version(
            state=state,
            values=self._wanted.values,
            place=self._wanted.place,
            last_commit=self._last_commit,
            level_s=self._level_s,
            opening=opening,
        )

    def close(self) -> None:
        """Release both, if nobody has taken them over. Idempotent."""
        try:
            self.feed.close()
        finally:
            if self._found is not None:
                self._found[0].close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """The parts that a state is made of: the log, whose table it is, and where it is kept (None: in memory)."""

    log: Log
    owner: str
    keys: KeyRule
    home: Home | None
    settings: TableSettings
    environment: Environment

    def release(self) -> None:
        """Close what is left when the follower has ended."""
        try:
            if self.home is not None:
                self.home.close()
        finally:
            self.log.close()

    def build(self, *, at_least: int = 0, schema: ValueSchema | None = None, is_beside: bool = False) -> Built:
        """The newest state, at a position or above it, with values of this schema (None: the newest); not the first one
        if it `is_beside` another. Raises as `recover`, StorageFull.
        """
        return planned_anew(
            lambda: self._build(at_least, schema or self.log.value_schemas.newest(), is_beside=is_beside)
        )

    def _build(self, at_least: int, schema: ValueSchema, *, is_beside: bool) -> Built:
        built = Built(self, at_least, schema)
        try:
            built.make() if is_beside else built.open()
        except BaseException:
            built.close()
            raise
        return built
