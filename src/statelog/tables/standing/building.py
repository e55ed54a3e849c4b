"""`Builder`: makes the state of a standby, and the feed that follows it from there; at the start, and again if need be.

    1  plan     a recovery of the newest state: a position           recovery
    2  hold     a feed from that position on, under its lease        recovery
    3  make     the state at the position: in a dict, or in a directory that is judged and brought there

Invariant: what the feed gives next is what the state lacks: the log is held from the state's own position on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from statelog.reading.hold import planned_anew
from statelog.recovery import AtPosition, Host, Recovery, recover
from statelog.recovery.streaming.commit_feed import CommitFeed
from statelog.schemas.values.schema import ValueSchema
from statelog.storage import Log
from statelog.tables.backends.backend import Backend, StatePlace
from statelog.tables.backends.home import Home
from statelog.tables.backends.memory import MemoryBackend
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.opening.opened import Opening
from statelog.tables.settings import TableSettings
from statelog.tables.standing.followed import Version

__all__ = ["Anew", "Builder", "Built"]


Install = Callable[[Callable[[], Version]], Version]
"""Puts a state in the place of one that is in use, while nobody reads it: it is finished by then. Returns it."""


@dataclass(frozen=True, slots=True)
class Built:
    """A state, and the feed of what is committed behind it."""

    version: Version
    feed: CommitFeed

    def close(self) -> None:
        """Release both, if nobody has taken them over. Idempotent."""
        try:
            self.feed.close()
        finally:
            self.version.backend.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Anew:
    """Why a state is made anew, how the new one takes the place of the old, the position that it has to reach, and
    the schema of its values (None: the newest).
    """

    reason: str
    install: Install
    at_least: int
    schema: ValueSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """The parts that a state is made of: the log, whose table it is, and where it is kept (None: in memory)."""

    log: Log
    owner: str
    keys: KeyRule
    home: Home | None
    settings: TableSettings
    host: Host

    def build(self, anew: Anew | None = None) -> Built:
        """The newest state; it is not the first one if it is made `anew`. Raises as `recover`, StorageFull."""
        return planned_anew(lambda: self._build(anew))

    def _build(self, anew: Anew | None) -> Built:
        level_s = self.host.clock()
        schema = (anew.schema if anew else None) or self.log.value_schemas.newest()
        feeds: list[CommitFeed] = []
        recovery = recover(
            self.log,
            key_groups=self.keys.owned,
            at_least=anew.at_least if anew else 0,
            progress=lambda _: feeds[0].renew(),
            settings=replace(self.settings.recovery, value_schema_id=schema.id),
            host=self.host,
        )
        with recovery:
            feed = CommitFeed(self.log, recovery.plan, self.keys.owned, self.settings.recovery, self.host)
            feeds.append(feed)
            try:
                return Built(self._version(recovery, schema, feed, anew, level_s), feed)
            except BaseException:
                feed.close()
                raise

    def _version(
        self, recovery: Recovery, schema: ValueSchema, feed: CommitFeed, anew: Anew | None, level_s: float
    ) -> Version:
        plan, values = recovery.plan, ValueRule(schema)
        place = StatePlace(plan.place, len(plan.state.accepted))

        def version(made: tuple[Backend, Opening]) -> Version:
            return Version(
                backend=made[0],
                values=values,
                place=place,
                last_commit=plan.state.last_commit(self.owner),
                level_s=level_s,
                opening=made[1],
            )

        if self.home is None:
            state = MemoryBackend.recovered(recovery, self.keys, values)
            whole = version((state, Opening(position=place.position, reason=anew.reason if anew else "")))
            return whole if anew is None else anew.install(lambda: whole)
        from statelog.tables.opening.local import LocalOpening

        local = LocalOpening(self.log, self.home, self.keys, values, self.settings, self.host, beat=feed.renew)
        local.to(place, until=AtPosition(place.position))
        if anew is None:
            return version(local.look().open())
        local.make()
        return anew.install(lambda: version(local.replace(anew.reason)))
