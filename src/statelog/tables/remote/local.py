"""`PartOpening`: opens the database of a home that may lack key groups, or makes one that does.

    1  look at it, and once the owner's Open stands bring it up to date, as one that is whole     opening/local.py
    2  stand     on a snapshot that has what is missing; if there is none any more, set it aside
    3  or else   make one at once: the commits behind a snapshot, and what is missing below; or a whole one

Invariants:
- A database that is made is renamed to its place once all that was committed behind its snapshot is in it.
- A base is held from before its commits are read until the backend has it.
"""

from contextlib import ExitStack
from pathlib import Path

from statelog.recovery import Host
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage import Log
from statelog.tables.backends.backend import Backend, StatePlace
from statelog.tables.backends.home import Home
from statelog.tables.backends.record import Missing, TableRecord
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.opening.local import LocalOpening
from statelog.tables.opening.opened import Opening
from statelog.tables.remote.base import Base
from statelog.tables.remote.opening import RemoteOpening
from statelog.tables.remote.rocksdb_part import RocksdbPart
from statelog.tables.settings import Loading, TableSettings

__all__ = ["PartOpening"]

_NOT_COVERED = "what it lacks is in no snapshot any more"


class PartOpening(LocalOpening):
    """Opens the database of an owner."""

    def __init__(
        self, log: Log, home: Home, keys: KeyRule, values: ValueRule, settings: TableSettings, host: Host
    ) -> None:
        super().__init__(log, home, keys, values, settings, host)
        self._base: Base | None = None

    def open_part(self, remote: RemoteOpening, place: StatePlace) -> tuple[Backend, Opening]:
        """The backend at the place of the owner's Open, and how it was opened. Raises as `look`, Fenced."""
        self._remote = remote
        self.to(place)
        self._reread(remote.values)
        with ExitStack() as undo:
            undo.callback(self._let_go)
            found, opening = self.open()
            undo.callback(found.close)
            assert isinstance(found, RocksdbPart)
            if found.missing and not self._stands_on(found):
                found.close()
                self.make()
                found, opening = self.replace(_NOT_COVERED)
                undo.callback(found.close)
                assert isinstance(found, RocksdbPart)
            undo.pop_all()
        if self._base is None:
            return found, opening
        return self._remote.backend(found, self._base), opening

    def _let_go(self) -> None:
        if self._base is not None:
            self._base.let_go()

    def make(self) -> None:
        """Make a database that lacks what a snapshot has; if there is none, or all is wanted first, a whole one."""
        if self._settings.loading is Loading.FIRST:
            super().make()
            return
        stood = self._remote.folded(self._empty, RocksdbPart.close)
        if stood is None:
            super().make()
            return
        made, self._base = stood
        try:
            made.adopt(self._record, self._place)
        finally:
            made.close()

    def _empty(self, manifest: Manifest) -> RocksdbPart:
        self._home.begin()
        missing = Missing(manifest.position, frozenset(self._keys.groups))
        return self._backend(self._home.unfinished, missing)

    def _stands_on(self, part: RocksdbPart) -> bool:
        """Whether there is a base for it: the one that it was made on, or in a later life the newest that will do."""
        if self._base is None:
            self._base = self._remote.base(part.first_position)
            if not self._base.claim():
                self._base.let_go()
                self._base = None
        return self._base is not None

    def _too_little(self, record: TableRecord) -> str:
        del record
        return ""

    def _backend(self, path: Path | None = None, missing: Missing | None = None) -> RocksdbPart:
        return RocksdbPart(self._home, self._keys, self._values, self._settings, path, missing)
