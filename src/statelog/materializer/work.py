"""`RoundWork`: what whoever works for a round is given, and the scratch directory that it is given to work in.

A scratch directory is where a round writes runs before it uploads them: one that a kill left behind is removed by the
next round, others when their round ends. One that cannot be removed never fails a round: its runs are in the store.
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
    """What an engine gets for one round. `scratch` is a directory of the round on this machine. `go_on` raises once the
    round is given up. So many `threads` may be at work here, and a fold sorts `fold_bytes` of changes at once.
    The names of runs begin with `prefix`.
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
    """A new directory below `parent`, removed on leaving; those of dead rounds are removed first.

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
