"""`RocksdbState`: the description of the state in a RocksDB database, and its keys. Imports without RocksDB.

It also has the common parts of all users of RocksDB: the check for the library, and its failures.

The default column family holds the state and nothing else. A second column family holds the description as one JSON
text: later writers can put the next position into the same write batch as the changes. A third one, of `rocksdb_dues`,
holds dues; it exists only where a row has one.

Invariants:
- A database key is the key group, two bytes big-endian, and the key's bytes. So a key group is one range of keys, which
  can be dropped, or moved to another worker, without reading it.
- A long is eight bytes big-endian two's complement, as everywhere in a log. So within a key group RocksDB sorts
  negative numbers after positive ones.
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
from statelog.store.disk.disk import is_there, local_disk, local_disk_error, local_path

STATE_FAMILY = "statelog"
STATE_KEY = b"state"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A writer's last commit in the state, from which its source resumes."""

    checkpoint_id: int
    metadata: Metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksdbState:
    """The log and the state that a database held when it was made.

    `recovered_key_groups`: None means all.
    `value_schema`: the text of the Avro schema of all values (plain binary form), '' for opaque bytes.
    `rows`: the number of keys.
    `commits`: by writer.
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
        """Return the database key of a log's key. `key_group` is required where callers name it, else checked.

        Raises InvalidChange for a key of another type, KeyGroupMismatch.
        """
        data = key_bytes(key, self.key_type)
        group = key_group
        if self.hash_rule is not HashRule.CALLER:
            group = key_group_of(key, self.key_type, self.key_groups, self.prefix_bytes)
        if group is None or not 0 <= group < self.key_groups or key_group not in (None, group):
            hint = "Name the key group that the key was written to" if group is None else "Do not pass key_group"
            raise KeyGroupMismatch("a key's key group", hint=hint, named=key_group, own=group)
        return group.to_bytes(2, "big") + data

    def to_json(self) -> bytes:
        """Encode it as in the database."""
        found = {**asdict(self), **asdict(self.identity), "position": self.position, "place": self.place.to_json()}
        del found["identity"]
        return json.dumps({"format": _FORMAT, **found}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "RocksdbState":
        """Decode `to_json`. Raises UnknownFormat for another version of statelog, Corrupt for anything else."""
        try:
            found = cast("dict[str, Any]", json.loads(data))
            if found["format"] != _FORMAT:
                raise UnknownFormat("a database made by another version of statelog", format=str(found["format"]))
            return _state_of(found)
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            raise Corrupt("the database does not describe its state", problem=repr(error)) from error


def _place_of(found: dict[str, Any]) -> Place:
    """Return the place. If a later writer has moved only the position, the record below it is unknown."""
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
    """Note that this process opens a database, which none of its forks can use.

    The library's threads do not exist in a fork: calls that need them hang or crash, and so does the library's exit.
    """
    if not _opened_in:
        os.register_at_fork(after_in_child=partial(_skip_exit, ctypes.CDLL(None)))
    _opened_in.add(os.getpid())


def _skip_exit(c: ctypes.CDLL) -> None:
    """End a forked child with its status right after Python, before the library's exit handler.

    Exit handlers run in reverse order. Where the C library cannot pass the status on, nothing is done.
    """
    if hasattr(c, "on_exit"):
        c.on_exit(c._exit, None)


def require_rocksdict() -> None:
    """Raise ConfigError if the extra is not installed, or if a parent of this forked process has used it."""
    if _opened_in - {os.getpid()}:
        hint = 'Use multiprocessing.get_context("spawn"), or open no database before the fork'
        raise ConfigError("RocksDB cannot be used in a fork of a process that used it", hint=hint)
    if find_spec("rocksdict") is None:
        hint = "Install the extra: pip install 'statelog[rocksdb]'"
        raise ConfigError("RocksDB needs the package rocksdict", hint=hint)


def read_rocksdb_state(path: str | PathLike[str]) -> RocksdbState:
    """Return the description of a database of `Recovery.to_rocksdb`. Opens it for reading only.

    Raises NotFound without a database, Corrupt without a description, UnknownFormat, StoreUnavailable, ConfigError.
    """
    require_rocksdict()
    import rocksdict

    place = local_path(path)
    with local_disk(place):
        if not is_there(place / "CURRENT"):
            raise NotFound("no RocksDB database is there", path=fspath(path))
    try:
        database = rocksdict.Rdict(fspath(path), access_type=rocksdict.AccessType.read_only())
    except Exception as error:  # The library has no error types of its own.
        raise StoreUnavailable(f"the database cannot be opened: {error}", path=fspath(path)) from error
    try:
        found = database.get_column_family(STATE_FAMILY).get(STATE_KEY)
    except Exception as error:
        raise Corrupt(f"the database does not describe its state: {error}", path=fspath(path)) from error
    finally:
        database.close()
    return RocksdbState.from_json(found or b"")


_LEAST_FREE_BYTES = 1 << 20  # About what RocksDB writes at once.
_IN_TEXT = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EACCES)  # RocksDB only has their texts.


@contextmanager
def rocksdb_disk(path: Path, step: str, disk: DiskHook) -> Generator[None]:
    """Translate failures as `local_disk` does. RocksDB's are a plain `Exception` with a text."""
    try:
        with local_disk(path, step, disk):
            yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise rocksdb_error(error, path) from error


def rocksdb_error(error: Exception, path: Path) -> StatelogError:
    """Return StorageFull or StoreUnavailable for a failure of RocksDB, which is only a text.

    On a full disk the text may be of a later write, which was not tried. So the free space is checked, too.
    """
    number = next((number for number in _IN_TEXT if os.strerror(number) in str(error)), errno.EIO)
    if number == errno.EIO:
        with suppress(OSError):
            there = next(one for one in (path, *path.parents) if one.exists())
            number = errno.ENOSPC if shutil.disk_usage(there).free < _LEAST_FREE_BYTES else number
    return local_disk_error(OSError(number, str(error)), path)
