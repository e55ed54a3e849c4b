"""Scratch directories: where a round writes runs before it uploads them. Removed when the round ends, or swept later.

A scratch directory is an own directory (`storage.local.own_directory`): one that a kill left behind is removed by the
next round. One that cannot be removed never fails a round: its runs are in the store by then.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from statelog.errors import ConfigError, StoreUnavailable
from statelog.seams import REAL
from statelog.storage.local.disk import DiskHook, local_disk, no_faults
from statelog.storage.local.own_directory import OwnDirectory, make_own

__all__ = ["scratch_directory"]

_PREFIX = "statelog-round-"


@contextmanager
def scratch_directory(
    parent: Path, *, new_id: Callable[[], str] = REAL.new_id, disk: DiskHook = no_faults
) -> Generator[Path]:
    """A new directory below `parent`, removed on leaving; those of dead rounds are removed first.

    Raises ConfigError if `parent` is no directory that can be written to, StorageFull, StoreUnavailable.
    """
    with _make(parent, new_id, disk) as directory:
        yield directory.path


def _make(parent: Path, new_id: Callable[[], str], disk: DiskHook) -> OwnDirectory:
    try:
        with local_disk(parent, "make", disk):
            return make_own(parent, _PREFIX, new_id=new_id)
    except StoreUnavailable as error:
        if os.access(parent, os.W_OK | os.X_OK):
            raise
        hint = "Name an existing, writable directory with room for two copies of the state"
        raise ConfigError("the scratch directory cannot be used", hint=hint, scratch=str(parent)) from error
