"""Opening a table before all of its state is local: on a snapshot, with what was committed behind it.

    1  plan      the newest snapshot, and the commits behind it, as a recovery plans them     recovery
    2  fold      the newest change of each key of those commits: into the local part
    3  stand     on the snapshot, under a lease of its own                                    base.py
    4  load      the rest, behind the table's back, or never                                  loader.py

Invariants:
- What comes out is at or above the owner's Open, as after a recovery.
- Without a snapshot there is nothing to stand on: then the table opens as every other.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TypeVar

from statelog.errors import OffsetGone
from statelog.producer import Writer
from statelog.reading.converter import Converter
from statelog.reading.planner import Planner
from statelog.recovery import Host, Plan, RecoverySettings
from statelog.recovery.held_plan import HeldPlan
from statelog.recovery.reading.plan_reader import PlanReader
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage import Log
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.remote.backend import RemoteBackend
from statelog.tables.remote.base import Base
from statelog.tables.remote.cache import RowGroupCache
from statelog.tables.remote.loader import Loader
from statelog.tables.remote.part import LocalPart, MemoryPart
from statelog.tables.remote.snapshot import Reading
from statelog.tables.remote.standing import Standing
from statelog.tables.settings import Loading, TableSettings

__all__ = ["RemoteOpening"]

P = TypeVar("P", bound=LocalPart)


@dataclass(frozen=True, slots=True)
class RemoteOpening:
    """Opens the state of one owner, whose Open stands."""

    log: Log
    writer: Writer
    keys: KeyRule
    values: ValueRule
    settings: TableSettings
    host: Host

    @property
    def recovery(self) -> RecoverySettings:
        """The settings of what is read."""
        return replace(self.settings.recovery, value_schema_id=self.values.schema.id)

    def in_memory(self) -> RemoteBackend | None:
        """The state over a dict; None if the log has no snapshot. Raises as `recover`."""
        found = self.folded(lambda _: MemoryPart(self.keys, self.values, self.keys.groups), lambda _: None)
        return None if found is None else self.backend(*found)

    def folded(self, make: Callable[[Manifest], P], discard: Callable[[P], None]) -> tuple[P, Base] | None:
        """A local part with all that was committed behind a snapshot, and this snapshot as its base; None without one.

        `make` makes an empty part over a snapshot, `discard` lets go of one that will not be used. Raises as `recover`.
        """
        planner = Planner(self.log, None, self.keys.owned, seen=[self.writer.place])
        held = HeldPlan(self.log, planner, self.recovery, self.host, self.keys.owned)
        with ExitStack() as planned:
            planned.callback(held.release)
            while True:
                plan = held.claim()
                if plan.manifest is None or not plan.runs:
                    return None
                try:
                    return self._stood(held, plan, plan.manifest, make, discard)
                except OffsetGone as error:
                    held.replan(error)

    def _stood(
        self,
        held: HeldPlan,
        plan: Plan,
        manifest: Manifest,
        make: Callable[[Manifest], P],
        discard: Callable[[P], None],
    ) -> tuple[P, Base]:
        """As `folded`, for this plan. Raises OffsetGone if the log moved on."""
        with ExitStack() as undo:
            part, base = make(manifest), self.base(manifest.position)
            undo.callback(discard, part)
            undo.callback(base.let_go)
            if not base.claim(manifest):
                raise OffsetGone("the snapshot was cleaned up while a table was opened", log=self.log.name)
            self._fold(held, plan, part)
            undo.pop_all()
        return part, base

    def base(self, first_position: int) -> Base:
        """A base for local changes that begin at this position. It stands on nothing yet."""
        reading = Reading(
            log=self.log,
            opener=self.recovery.cache.opener(self.log),
            converter=Converter(self.log, self.recovery.value_schema_id),
            cache=RowGroupCache(self.settings.remote_cache_bytes),
            cache_bytes=self.settings.remote_cache_bytes,
            settings=self.recovery,
            host=self.host,
        )
        standing = Standing(
            first_position=first_position,
            position=self.writer.position,
            losses=len(self.writer.accepted_losses),
            writer=self.writer.name,
            epoch=self.writer.grant.epoch,
            partitions=tuple(self.writer.grant.partitions),
        )
        return Base(reading, standing)

    def backend(self, part: LocalPart, base: Base) -> RemoteBackend:
        """The backend of a part that is at the owner's place. As the settings say, it is loaded now, later or never.

        Raises as `Loader.run`, if it is loaded now; then part and base are let go.
        """
        backend = RemoteBackend(part, base, self.keys, self.values)
        loader = Loader(backend, base, self.host)
        try:
            match self.settings.loading:
                case Loading.FIRST:
                    loader.run()
                case Loading.BEHIND:
                    loader.start()
                case _:
                    pass
        except BaseException:
            backend.close()
            raise
        return backend

    def _fold(self, held: HeldPlan, plan: Plan, part: LocalPart) -> None:
        tail = replace(plan, runs=())
        reader = PlanReader(self.log, tail, self.recovery, lambda _: held.renew(), host=self.host)
        with closing(reader.open_tail()) as changes:
            for table in reader.merged(changes, drop_deletes=False):
                part.load(table)
        self.host.crash("tail-folded")
