"""Reads the state description of a database; a helpful error when rocksdict is missing."""

import os
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path

from statelog.errors import ConfigError, Corrupt, NotFound, StoreUnavailable
from statelog.recovery.targets.rocksdb_state import STATE_FAMILY, STATE_KEY, RocksdbState

__all__ = ["opens_rocksdb", "read_rocksdb_state", "require_rocksdict"]


_opened_in: set[int] = set()


def opens_rocksdb() -> None:
    """This process opens a database now: in a fork of it the library's threads are not there, and whoever needs them
    waits for ever.
    """
    _opened_in.add(os.getpid())


def require_rocksdict() -> None:
    """Raise ConfigError if the extra is not installed, or if a parent of this forked process has used it."""
    if _opened_in - {os.getpid()}:
        hint = 'Start the process anew: multiprocessing.get_context("spawn"), or open none before the fork'
        raise ConfigError("RocksDB cannot be used in a fork of a process that used it", hint=hint)
    if find_spec("rocksdict") is None:
        hint = "Install the extra: pip install 'statelog[rocksdb]'"
        raise ConfigError("RocksDB needs the package rocksdict", hint=hint)


def read_rocksdb_state(path: str | PathLike[str]) -> RocksdbState:
    """Which state a database of `Recovery.to_rocksdb` holds. Opens it for reading only.

    Raises NotFound if there is none, Corrupt if it does not say, UnknownFormat, StoreUnavailable, ConfigError.
    """
    require_rocksdict()
    import rocksdict

    if not (Path(path) / "CURRENT").exists():
        raise NotFound("no RocksDB database is there", path=fspath(path))
    try:
        database = rocksdict.Rdict(fspath(path), access_type=rocksdict.AccessType.read_only())
    except Exception as error:  # The library has no type of its own for anything.
        raise StoreUnavailable(f"the database cannot be opened: {error}", path=fspath(path)) from error
    try:
        found = database.get_column_family(STATE_FAMILY).get(STATE_KEY)
    except Exception as error:
        raise Corrupt(f"the database does not say what state it holds: {error}", path=fspath(path)) from error
    finally:
        database.close()
    return RocksdbState.from_json(found or b"")
