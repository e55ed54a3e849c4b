"""`RocksdbState`: how a RocksDB database describes its state, and where a key lies in it; and what all who open one
share: whether the library is there, and its failures. Imports without RocksDB.

The default column family holds the state and nothing else. A column family of its own holds one JSON text: whoever goes
on writing to the database can put the next position into the same write batch as the changes.

Invariants:
- A database key is the key group, two bytes big-endian, and the key's bytes: a key group is one range of keys, which
  can be dropped, or taken out for another worker, without looking at what is in it.
- A long is eight bytes big-endian two's complement, as everywhere in a log; so within a key group RocksDB has negative
  numbers after positive ones.
"""

import ctypes
import errno
import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

from statelog.environment import DiskHook
from statelog.errors import (
    ConfigError,
    Corrupt,
    KeyGroupMismatch,
    NotFound,
    StatelogError,
    StoreUnavailable,
    UnknownFormat,
)
from statelog.schemas.descriptor import HashRule, check_hashing
from statelog.schemas.key_groups import KeyType, key_bytes, key_group_of
from statelog.schemas.ledger.place import LogIdentity, Metadata, Place
from statelog.store.disk.disk import local_disk, local_disk_error, local_path

STATE_FAMILY = "statelog"
STATE_KEY = b"state"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A writer's last commit in the state: where its source resumes."""

    checkpoint_id: int
    metadata: Metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksdbState:
    """Which state of which log a database held when it was made.

    `recovered_key_groups` None means all. `value_schema` is the text of the Avro schema that every value was encoded
    with (plain binary form), '' if values are opaque bytes. `rows` counts keys, `commits` is by writer.
    """

    log: str
    identity: LogIdentity
    place: Place
    key_type: KeyType
    hash_rule: HashRule
    key_groups: int
    recovered_key_groups: tuple[int, ...] | None
    value_schema_id: int
    value_schema: str
    rows: int
    commits: Mapping[str, ResumePoint]
    prefix_bytes: int | None = None

    def __post_init__(self) -> None:
        check_hashing(self.hash_rule, self.key_type, self.prefix_bytes)

    @property
    def position(self) -> int:
        """The ledger position of the state."""
        return self.place.position

    def key(self, key: bytes | str | int, *, key_group: int | None = None) -> bytes:
        """The database key of a log's key. `key_group` is needed where callers name it, and checked elsewhere.

        Raises InvalidChange for a key of another type, KeyGroupMismatch.
        """
        data = key_bytes(key, self.key_type)
        group = key_group
        if self.hash_rule is not HashRule.CALLER:
            group = key_group_of(key, self.key_type, self.key_groups, self.prefix_bytes)
        if group is None or not 0 <= group < self.key_groups or key_group not in (None, group):
            hint = "Name the key group that the key was written to" if group is None else "Leave key_group out"
            raise KeyGroupMismatch("a key's key group", hint=hint, named=key_group, own=group)
        return group.to_bytes(2, "big") + data

    def to_json(self) -> bytes:
        """As it stands in the database."""
        found = {**asdict(self), **asdict(self.identity), "position": self.position, "place": self.place.to_json()}
        del found["identity"]
        return json.dumps({"format": _FORMAT, **found}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "RocksdbState":
        """Raises UnknownFormat if a newer statelog wrote it, Corrupt if none did."""
        try:
            found = cast("dict[str, Any]", json.loads(data))
            if found["format"] != _FORMAT:
                raise UnknownFormat("a database made by another version of statelog", format=str(found["format"]))
            return _state_of(found)
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            raise Corrupt("the database does not say what state it holds", problem=repr(error)) from error


def _place_of(found: dict[str, Any]) -> Place:
    """Who goes on writing to the database may move the position alone, and then nobody knows the record below it."""
    alone = Place.from_json([found["position"]])
    place = Place.from_json(found.get("place", alone.to_json()))
    return place if place.position == alone.position else alone


def _state_of(found: dict[str, Any]) -> RocksdbState:
    groups, commits = found["recovered_key_groups"], found["commits"]
    return RocksdbState(
        identity=LogIdentity.from_fields(found),
        place=_place_of(found),
        key_type=KeyType(found["key_type"]),
        hash_rule=HashRule(found["hash_rule"]),
        recovered_key_groups=None if groups is None else tuple(groups),
        prefix_bytes=found.get("prefix_bytes"),
        commits={
            writer: ResumePoint(checkpoint_id=point["checkpoint_id"], metadata=point["metadata"])
            for writer, point in commits.items()
        },
        **{name: found[name] for name in ("log", "key_groups", "value_schema_id", "value_schema", "rows")},
    )


_opened_in: set[int] = set()


def opens_rocksdb() -> None:
    """This process opens a database now: in a fork of it the library's threads are not there, and whoever needs them
    waits for ever, or falls over what is left of them. So does the library itself at the end of the process.
    """
    if not _opened_in:
        os.register_at_fork(after_in_child=partial(_skip_exit, ctypes.CDLL(None)))
    _opened_in.add(os.getpid())


def _skip_exit(c: ctypes.CDLL) -> None:
    """In a forked child: once Python has ended, end the process with its status, before the library's own end comes.

    What is registered last is called first. Where the C library cannot pass the status on, nothing is done.
    """
    if hasattr(c, "on_exit"):
        c.on_exit(c._exit, None)


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

    place = local_path(path)
    with local_disk(place):
        if not (place / "CURRENT").exists():
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


_LEAST_FREE_BYTES = 1 << 20  # About what RocksDB writes at once.
_TOLD = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EACCES)  # RocksDB tells them in words only.


@contextmanager
def rocksdb_disk(path: Path, step: str, disk: DiskHook) -> Generator[None]:
    """As `store.disk.disk`. RocksDB's failures are plain `Exception` with a text."""
    try:
        with local_disk(path, step, disk):
            yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise rocksdb_error(error, path) from error


def rocksdb_error(error: Exception, path: Path) -> StatelogError:
    """Return StorageFull or StoreUnavailable for a failure that RocksDB tells in words only.

    A full disk fails a write, and RocksDB may tell of a later one alone, which it did not even try: the disk says more.
    """
    number = next((number for number in _TOLD if os.strerror(number) in str(error)), errno.EIO)
    if number == errno.EIO:
        with suppress(OSError):
            there = next(one for one in (path, *path.parents) if one.exists())
            number = errno.ENOSPC if shutil.disk_usage(there).free < _LEAST_FREE_BYTES else number
    return local_disk_error(OSError(number, str(error)), path)
