"""`TableSettings`: how a table commits, and how much memory its backend may take."""

from dataclasses import dataclass, field

from statelog.errors import ConfigError
from statelog.producer import WriterSettings
from statelog.recovery import RecoverySettings

__all__ = ["TableSettings"]

_POSITIVE = ("commits_under_way_max", "uncommitted_changes_max", "cache_bytes", "write_buffer_bytes", "open_files_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """How a table commits, and how much memory it takes. Raises ConfigError.

        settings = TableSettings(cache_bytes=256 << 20)
        table = statelog.table("orders", backend="rocksdb", directory="/var/lib/job", settings=settings, **where)

    every_change             log every change, for readers that want all; else only the last of each key of a commit
    skip_equal               leave out changes that change nothing: a put of the value that is there, a delete of no key
    commits_under_way_max    above it `commit_async` and `commit_every` wait for the oldest
    uncommitted_changes_max  `commit_every` commits before its time is up once so many keys have changed
    cache_bytes              of RocksDB: blocks that were read, their indexes and filters included
    write_buffer_bytes       of RocksDB: changes in memory before they become a file; twice as much while one is made
    open_files_max           of RocksDB: files that it keeps open
    writer                   how changes are batched and sent
    recovery                 how the state is recovered, and the name of the lease meanwhile
    """

    every_change: bool = False
    skip_equal: bool = False
    commits_under_way_max: int = 4
    uncommitted_changes_max: int = 1_000_000
    cache_bytes: int = 64 << 20
    write_buffer_bytes: int = 32 << 20
    open_files_max: int = 512
    writer: WriterSettings = field(default_factory=WriterSettings)
    recovery: RecoverySettings = field(default_factory=lambda: RecoverySettings(holder="table"))

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)} and must be positive")
