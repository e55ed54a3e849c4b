"""The cache's files: whole, verified downloads in a directory of its own, which is swept after a kill.

    <base>/attempt-<uuid>/<uuid>.run      a whole, verified run
    <base>/attempt-<uuid>/<uuid>.partial  a download on its way, never read

An attempt is one cache in one process; what dead attempts left is swept when the next one begins. Never decides which
files to keep.

Invariants:
- A file is readable under its name if and only if its length and its sha256 are those of its manifest.
- In a fork nothing is written or deleted.
"""

import hashlib
import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from statelog.environment import Environment
from statelog.errors import CorruptRun
from statelog.schemas.snapshot.runs import RunFile
from statelog.storage.local.own_directory import OwnDirectory, make_own
from statelog.storage.local.own_process import OwnProcess
from statelog.storage.store import Store
from statelog.storage.store.errors import guarded

__all__ = ["CacheDirectory"]

_LOG = logging.getLogger("statelog.recovery")


class CacheDirectory:
    """The directory of this attempt. Made by `create`; belongs to the process that made it."""

    def __init__(self, own: OwnDirectory, environment: Environment | None = None) -> None:
        self._own = own
        self._environment = environment or Environment()
        self._owner = OwnProcess("the cache")

    @classmethod
    def create(cls, base: Path, environment: Environment | None = None) -> "CacheDirectory":
        """Sweep what dead attempts left in `base`, and make a new directory there.

        Raises StoreUnavailable, StorageFull; what cannot be swept is a log line.
        """
        with _local("make a cache in", base):
            environment = environment or Environment()
            environment.disk("make", base)
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(make_own(base, "attempt-", new_id=environment.new_id), environment)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._own.path

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that owns the directory."""
        return self._own.is_foreign

    def check_owner(self) -> None:
        """Raise ClosedError in a fork of the process that made the directory."""
        self._owner.check()

    def new_file(self) -> Path:
        """A name that no file has or had."""
        return self.path / f"{self._environment.new_id()}.run"

    def fetch(self, store: Store, run: RunFile, file: Path) -> None:
        """Download a whole run; `file` appears when it is whole and verified, and nothing stays if that fails.

        Raises NotFound, CorruptRun, StoreUnavailable, StorageFull.
        """
        partial = file.with_suffix(".partial")
        try:
            with _local("download a run to", partial):
                self._environment.disk("download", partial)
                store.download(run.path, partial)
                self._environment.disk("verify", partial)
                _verify(partial, run)
                self._environment.disk("rename", partial)
                partial.rename(file)
        finally:
            partial.unlink(missing_ok=True)

    def open(self, file: Path) -> BinaryIO:
        """A reader of a file that was fetched. Raises StoreUnavailable."""
        with _local("open", file):
            self._environment.disk("open", file)
            return file.open("rb")

    def delete(self, file: Path) -> None:
        """Delete a file that was fetched; open readers keep on reading. A log line if it stays."""
        try:
            self._environment.disk("delete", file)
            file.unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("a cached run stays until the cache is closed: %s", error)

    def remove(self) -> None:
        """Delete everything. Idempotent; what stays, the next start sweeps."""
        self._own.remove()


def _verify(file: Path, run: RunFile) -> None:
    size_bytes = file.stat().st_size
    if size_bytes != run.size_bytes:
        raise CorruptRun("a download's length differs", path=run.path, got=size_bytes, expected=run.size_bytes)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != run.sha256:
        raise CorruptRun("a download's sha256 differs", path=run.path, got=digest, expected=run.sha256)


def _local(action: str, path: Path) -> AbstractContextManager[None]:
    """Failures of the local disk in our own terms."""
    return guarded(action=action, url=f"file://{path.parent}", path=path.name, reading=False)
