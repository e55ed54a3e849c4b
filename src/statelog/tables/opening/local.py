"""Opening the local database of a table: what is kept is judged, brought up to date, or set aside and made anew.

    1  the lock of the home                               backends/home.py
    2  look     is it whole, of this log, and its place one of the ledger's?
                or, if it proves that the ledger lost what was acknowledged, keep it for a person, and open nothing
       the place that the state has to come to            an owner's: that of its Open; a standby's: the ledger's end
    3  read     the commits behind its place, newest change of each key
    4  or else  set it aside, loudly; recover all

Invariants:
- A database is used only if its place is part of the history below the place that it has to come to: not ahead of it,
  and the ledger's record below it is the one that it was. An owner looks before its Open, which would stand where the
  lost records did.
- What was committed behind the place is read whole, and verified, before the place moves.
- No database holds what no commit holds. One that is ahead of its ledger, or was built on another record than is
  there, is a proof of loss, and the only copy of what was lost: it stays as it is, and is told. Only once a person
  has accepted the loss it is set aside, and it is never deleted then.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from statelog.errors import AnchorMismatch, BeyondEnd, BrokerUnavailable, Corrupt, NotFound, OffsetGone
from statelog.recovery import AtPosition, Host, newest_changes, plan_changes, recover
from statelog.recovery.targets.rocksdb_read import require_rocksdict
from statelog.storage import Log
from statelog.tables.backends.backend import StatePlace
from statelog.tables.backends.home import Home
from statelog.tables.backends.record import TableRecord, difference
from statelog.tables.backends.rocksdb import RocksdbBackend, without_unsynced
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.opening.opened import Opening
from statelog.tables.settings import TableSettings

__all__ = ["LocalOpening"]


_LOST = "the ledger lost what it was built on, which a person has accepted"


def _nothing() -> None:
    """Nobody waits for a sign of life."""


class LocalOpening:
    """Opens the database of a home, and brings it to a place. `beat` is often called."""

    def __init__(
        self,
        log: Log,
        home: Home,
        keys: KeyRule,
        values: ValueRule,
        settings: TableSettings,
        host: Host,
        *,
        beat: Callable[[], None] = _nothing,
    ) -> None:
        require_rocksdict()
        self._log = log
        self._home = home
        self._keys = keys
        self._settings = settings
        self._host = host
        self._beat = beat
        self._kept: RocksdbBackend | None = None
        self._unfit = ""
        self._read_as(values)

    def _read_as(self, values: ValueRule) -> None:
        self._values = values
        self._recovery = replace(self._settings.recovery, value_schema_id=values.schema.id)
        self._record = TableRecord.of(self._log.descriptor, values.schema, self._keys.owned)

    def _reread(self, values: ValueRule) -> None:
        """Look again, if the values that the state has to have were given another schema since."""
        if values.schema != self._values.schema:
            if self._kept is not None:
                self._kept.close()
                self._kept = None
            self._read_as(values)
            self.look()

    def look(self) -> Self:
        """Open the database that is there, and compare its place with the ledger; the home closes what is open.

        Raises BeyondEnd or AnchorMismatch if it proves a loss that nobody has accepted, as `recover`, StorageFull,
        StoreUnavailable.
        """
        self._settle()
        if self._home.database.exists():
            self._kept, self._unfit = self._judged()
        return self

    def to(self, place: StatePlace, *, until: AtPosition | None = None) -> Self:
        """The place that the state has to come to: that of an owner's Open, since which nothing has changed its key
        groups, or what is read `until` there.
        """
        self._place, self._until = place, until
        return self

    def open(self) -> tuple[RocksdbBackend, Opening]:
        """The backend at the place, of what was looked at. Raises as `look`."""
        backend, self._kept = self._kept, None
        reason = self._unfit
        if backend is not None:
            opening, reason = self._brought(backend)
            if opening is not None:
                return backend, opening
        aside = self._home.set_aside(reason, self._host, is_last_copy=reason == _LOST) if reason else None
        self._host.crash("set-aside")
        self.make()
        return self._take(), Opening(position=self._place.position, set_aside=aside, reason=reason)

    def replace(self, reason: str) -> tuple[RocksdbBackend, Opening]:
        """What `make` has made, in the place of a database that was in use until now, and is closed."""
        aside = self._home.set_aside(reason, self._host)
        self._host.crash("set-aside")
        return self._take(), Opening(position=self._place.position, set_aside=aside, reason=reason)

    # ---- what is kept

    def _settle(self) -> None:
        """What may have been lost with another boot of the machine, or was never there in a copy, is not counted on."""
        boot_id = self._host.boot_id()
        if not self._home.is_of_boot(boot_id):
            if self._home.database.exists():
                without_unsynced(self._home.database)
            self._home.note_boot(boot_id)

    def _judged(self) -> tuple[RocksdbBackend | None, str]:
        """The database that is there, or why it cannot be used."""
        if self._home.damage:
            return None, f"it was found damaged: {self._home.damage}"
        backend: RocksdbBackend | None = None
        try:
            backend = self._backend()
            record = backend.record
            reason = difference(record, self._record) or self._lost(backend.place) or self._too_little(record)
        except Corrupt as error:
            reason = error.message
        except BaseException:
            if backend is not None:
                backend.close()
            raise
        if reason and backend is not None:
            backend.close()
        return (None, reason) if reason else (backend, "")

    def _too_little(self, record: TableRecord) -> str:
        """Why a database that may lack a part of the state cannot be used; empty if it can."""
        return "a part of its state is in a snapshot only" if record.is_partial else ""

    def _lost(self, place: StatePlace) -> str:
        """Why a place is none of the ledger's any more, as a person has accepted; empty if it is one.

        Raises BeyondEnd or AnchorMismatch if nobody has, BrokerUnavailable for an old answer of Kafka's.
        """
        ledger = self._log.ledger
        end = ledger.end(at_least=place.position)
        facts: dict[str, Any] = {
            "path": str(self._home.database),
            "position": place.position,
            "ledger_position": end,
            "hint": "The ledger lost commits that were acknowledged, and the directory has them: restore the topic, or "
            "move the directory away, and go on without them",
        }
        if place.position > end:
            raise BeyondEnd("the local state is ahead of the ledger", **facts)
        if place.last is None or ledger.place_at(place.position).last in (None, place.last):
            return ""
        with closing(ledger.newest_client()) as client:
            client.fold_end()
            if client.fold.restarted >= place.last.offset:
                return _LOST
        raise AnchorMismatch("the local state was built on another record than the ledger has", **facts)

    def _brought(self, backend: RocksdbBackend) -> tuple[Opening | None, str]:
        """How a database came to the place; or, once it is closed, why it did not."""
        try:
            self._check_below(backend.place)
            if backend.place.losses != self._place.losses:
                reason = "a loss was accepted since, and what was lost may be in it"
            else:
                return self._caught_up(backend), ""
        except (NotFound, OffsetGone):
            reason = "the log was truncated past it"
        except BaseException:
            backend.close()
            raise
        backend.close()
        return None, reason

    def _check_below(self, place: StatePlace) -> None:
        if place.position > self._place.position:
            raise BrokerUnavailable("Kafka gave an old end of the ledger", position=self._place.position)

    def _caught_up(self, backend: RocksdbBackend) -> Opening:
        """Read what was committed behind its place. Raises OffsetGone, NotFound if the log holds it no more."""
        start, rows = backend.place.position, 0
        plan = plan_changes(
            self._log,
            AtPosition(start),
            self._until,
            key_groups=self._keys.owned,
            value_schema_id=self._values.schema.id,
            seen=[self._place.ledger],
        )
        if not plan.is_empty:
            with closing(newest_changes(self._log, plan, settings=self._recovery, host=self._host)) as tables:
                for table in tables:
                    backend.load(table)
                    rows += table.num_rows
                    self._beat()
        self._host.crash("caught-up")
        backend.move(self._place)
        return Opening(position=self._place.position, from_position=start, rows_read=rows)

    # ---- anew

    def make(self) -> None:
        """Make a database at the place, beside the one that there may be. Raises as `look`."""
        recovery = recover(
            self._log,
            key_groups=self._keys.owned,
            at=self._until,
            at_least=self._place.ledger,
            progress=lambda _: self._beat(),
            settings=self._recovery,
            host=self._host,
        )
        self._home.begin()
        with recovery:
            recovery.to_rocksdb(self._home.unfinished)
        self._host.crash("recovered")
        made = self._backend(self._home.unfinished)
        try:
            made.adopt(self._record, self._place)
        finally:
            made.close()

    def _take(self) -> RocksdbBackend:
        self._home.finish()
        self._home.note_boot(self._host.boot_id())
        return self._backend()

    def _backend(self, path: Path | None = None) -> RocksdbBackend:
        return RocksdbBackend(self._home, self._keys, self._values, self._settings, path)
