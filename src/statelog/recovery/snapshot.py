"""`recover_snapshot`: the state of a snapshot, read from the store alone, for when Kafka is gone.

    with recover_snapshot("flights", where) as recovery:
        recovery.to_parquet("flights.parquet")

Invariants:
- Kafka is never asked. So what was committed behind the snapshot, and whether its ledger still exists, is unknown:
  the state is one that was committed, at the position of the snapshot, and not the newest one.
- The snapshot is verified like any other, byte by byte; a damaged one is passed over, with a log line.
"""

from collections.abc import Iterable
from dataclasses import replace

from statelog.environment import Environment
from statelog.errors import NotFound
from statelog.reading.at import AtPosition
from statelog.reading.plan import Plan, make_plan
from statelog.reading.planner import Planner
from statelog.recovery.held_plan import HeldPlan
from statelog.recovery.planned_recovery import Recovery
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.targets.monitor import OnProgress
from statelog.storage.log.files import ManifestChain, descriptor_or_none
from statelog.storage.log.log import Log
from statelog.storage.log.no_kafka import NoKafka
from statelog.storage.log.where import Where, opened_store

__all__ = ["recover_snapshot"]


def recover_snapshot(
    name: str,
    where: Where,
    *,
    position: int | None = None,
    key_groups: Iterable[int] | None = None,
    progress: OnProgress | None = None,
    settings: RecoverySettings | None = None,
    environment: Environment | None = None,
) -> Recovery:
    """Plan to read the newest sound snapshot, or the one at this ledger position, without Kafka: `where` may be
    `Where(None, root)`.

    What it gives is filled and streamed as any recovery; `position`, `commits` and `meta` are the snapshot's.

    Raises NotFound if there is no log, or no such snapshot, KeyGroupMismatch, Damaged, StoreUnavailable, ConfigError.
    """
    store = opened_store(name, where)
    made = descriptor_or_none(store)
    if made is None:
        raise NotFound(f"there is no log {name}", url=store.url)
    newest = ManifestChain(store, made).newest_of_any()
    log = Log(made.at(newest.manifest.identity) if newest else made, NoKafka(), store)
    at = None if position is None else AtPosition(position)
    planner = _SnapshotPlanner(log, at, None if key_groups is None else frozenset(key_groups))
    held = HeldPlan(log, planner, settings or RecoverySettings(), environment or Environment(), planner.key_groups)
    held.prepare()
    return Recovery(held, progress)


class _SnapshotPlanner(Planner):
    """Plans that hold a snapshot and nothing behind it."""

    def plan(self) -> Plan:
        """The newest snapshot that can be read, or the one asked for. Raises NotFound, or what is wrong with it."""
        found = list(self.manifests())
        wanted = self.at.position if isinstance(self.at, AtPosition) else None
        chosen = next((one for one in found if wanted in (None, one.position)), None)
        if chosen is None:
            raise self.failure or NotFound(
                f"the log {self.log.name} has no such snapshot",
                log=self.log.name,
                url=self.log.store.url,
                positions=", ".join(str(one.position) for one in found) or None,
            )
        return replace(make_plan(self.log.descriptor, chosen, chosen, (), self.key_groups), is_alone=True)
