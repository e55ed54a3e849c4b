"""`Drills`: a drill of each log of a daemon now and then, beside its rounds, on a thread of its own.

Owns when. Invariants: one drill at a time; what one meets is told as an event of its log, and is no round's trouble; it
reads, and takes a lease as any reader does.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager

from statelog.closing import Closing
from statelog.environment import current_environment
from statelog.errors import StatelogError
from statelog.materializer.events import Event, EventKind, error_facts
from statelog.operate.drill import Drilled, drill
from statelog.recovery import RecoverySettings
from statelog.storage.log.log import Log

OpenLog = Callable[[str], AbstractContextManager[Log]]
_SETTINGS = RecoverySettings(holder="statelog drill")


class Drills(Closing):
    """Drills the logs of these names, one after the other, each time that `every_s` seconds have passed.

    `on_event` is called on its thread. A drill that is under way when it is closed is left to itself: it only reads.
    """

    def __init__(
        self,
        names: Callable[[], Collection[str]],
        open_log: OpenLog,
        every_s: float,
        on_event: Callable[[Event], None],
    ) -> None:
        self._names = names
        self._open_log = open_log
        self._every_s = every_s
        self._on_event = on_event
        self._environment = current_environment()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="statelog-drills", daemon=True).start()

    def close(self) -> None:
        """Begin no other drill. Idempotent."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            for name in sorted(self._names()):
                if self._over.is_set():
                    return
                event = self._drilled(name)
                if not self._over.is_set():
                    self._on_event(event)

    def _drilled(self, name: str) -> Event:
        try:
            with self._environment.step("drill", name), self._open_log(name) as log:
                found = drill(log, _SETTINGS)
                found.check()
        except StatelogError as error:
            return self._event(EventKind.DRILL_FAILED, name, error_facts(error), error)
        return self._event(EventKind.DRILLED, name, _facts(found))

    def _event(
        self, kind: EventKind, log: str, facts: Mapping[str, object], error: StatelogError | None = None
    ) -> Event:
        return Event(kind=kind, log=log, at_s=self._environment.clock(), facts=facts, error=error)


def _facts(found: Drilled) -> dict[str, object]:
    restored = found.restored
    return {
        "restored_s": restored.statistics.total_s,
        "rows": restored.digest.rows,
        "position": restored.statistics.position,
        "damaged_snapshots": restored.statistics.damaged_snapshots,
        "compared_with": found.other.name if found.other else f"nothing: {found.why}",
    }
