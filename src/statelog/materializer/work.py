"""`RoundWork`: the dependencies of an engine for one round, and the scratch directory of the round.

A round writes runs to its scratch directory before it uploads them, and removes it at its end. The next round removes
the directory of a killed process. A directory that cannot be removed never fails a round: its runs are in the store.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from statelog.environment import Environment
from statelog.errors import ConfigError, StoreUnavailable
from statelog.log import Log
from statelog.store.disk.disk import local_disk
from statelog.store.disk.own_directory import make_own

FOLD_BYTES = 64 << 20
_PREFIX = "statelog-round-"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork:
    """The dependencies of an engine for one round.

    scratch     the round's directory on this machine
    go_on       reports progress, and raises once the round is given up
    threads     how many threads may work on this machine
    fold_bytes  how many bytes of changes a fold sorts at once
    prefix      begins the names of runs
    """

    log: Log
    scratch: Path
    go_on: Callable[[], None]
    environment: Environment
    threads: int = 1
    fold_bytes: int = FOLD_BYTES
    prefix: str = ""


@contextmanager
def scratch_directory(parent: Path, environment: Environment) -> Generator[Path]:
    """Create a directory below `parent`, removed on leaving; those of dead rounds are removed first.

    Raises ConfigError if `parent` is no directory that can be written to, StorageFull, StoreUnavailable.
    """
    try:
        with local_disk(parent, "make", environment.disk):
            own = make_own(parent, _PREFIX, new_id=environment.new_id)
    except StoreUnavailable as error:
        if os.access(parent, os.W_OK | os.X_OK):
            raise
        hint = "Name an existing, writable directory with room for two copies of the state"
        raise ConfigError("the scratch directory cannot be used", hint=hint, scratch=str(parent)) from error
    with own as directory:
        yield directory.path
