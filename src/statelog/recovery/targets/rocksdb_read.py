"""Reads the state description of a database; a helpful error when rocksdict is missing."""

from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path

from statelog.errors import ConfigError, Corrupt, NotFound, StoreUnavailable
from statelog.recovery.targets.rocksdb_state import STATE_FAMILY, STATE_KEY, RocksdbState

__all__ = ["read_rocksdb_state", "require_rocksdict"]


def require_rocksdict() -> None:
    """Raise ConfigError if the extra is not installed."""
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
