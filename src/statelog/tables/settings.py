"""`TableSettings`: when a table is open, how it commits, and how much memory its backend may take."""

from dataclasses import dataclass, field
from enum import StrEnum

from statelog.errors import ConfigError
from statelog.producer import WriterSettings
from statelog.recovery import RecoverySettings
from statelog.schemas.names import parse_enum

_POSITIVE = (
    "commits_under_way_max",
    "uncommitted_changes_max",
    "uncommitted_bytes_max",
    "cache_bytes",
    "write_buffer_bytes",
    "open_files_max",
    "remote_cache_bytes",
)


class BackendKind(StrEnum):
    """The backends that there are."""

    DICT = "dict"
    ROCKSDB = "rocksdb"


class Loading(StrEnum):
    """When the state that a snapshot holds becomes local: before the table opens, behind its back, or never."""

    FIRST = "first"
    BEHIND = "behind"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """How a table commits, and how much memory it takes. Raises ConfigError.

        settings = TableSettings(cache_bytes=256 << 20)
        table = statelog.table("orders", where, backend="rocksdb", directory="/var/lib/job", settings=settings)

    every_change             log every change, for readers of the history (`read_changes`); else only the last of each
                             key of a commit
    skip_equal               leave out changes that change nothing: a put of the value that is there, a delete of no key
    commits_under_way_max    above it `commit_async` and `commit_every` wait for the oldest
    uncommitted_changes_max  `commit_every` commits before its time is up once so many keys have changed
    uncommitted_bytes_max    the same once so many bytes were put; changes of bytes below 4 KiB do not count
    cache_bytes              of RocksDB: blocks that were read, their indexes and filters included
    recent_bytes             of RocksDB: what was committed last, kept as objects to be read back; 0 keeps none
    write_buffer_bytes       of RocksDB: changes in memory before they become a file; twice as much while one is made
    open_files_max           of RocksDB: files that it keeps open
    loading                  "first": all of the state is local before the table opens. "behind": it opens once what was
                             committed since the newest snapshot is read, and the rest is loaded while it is used.
                             "on-demand": the rest stays in the snapshot, and is read from there
    remote_cache_bytes       what was read of a snapshot on demand, decoded, and is kept for the next reads. A range
                             holds 8 KiB or more of each key group in each run besides
    writer                   how changes are batched and sent
    recovery                 how the state is recovered, and the name of the lease meanwhile
    """

    every_change: bool = False
    skip_equal: bool = False
    commits_under_way_max: int = 4
    uncommitted_changes_max: int = 1_000_000
    uncommitted_bytes_max: int = 1 << 30
    cache_bytes: int = 128 << 20
    recent_bytes: int = 64 << 20
    write_buffer_bytes: int = 32 << 20
    open_files_max: int = 512
    loading: Loading | str = Loading.FIRST
    remote_cache_bytes: int = 64 << 20
    writer: WriterSettings = field(default_factory=WriterSettings)
    recovery: RecoverySettings = field(default_factory=lambda: RecoverySettings(holder="table"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "loading", parse_enum(Loading, "loading", self.loading))
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)} and must be positive")
        if self.recent_bytes < 0:
            raise ConfigError(f"recent_bytes is {self.recent_bytes}; 0 keeps nothing")
