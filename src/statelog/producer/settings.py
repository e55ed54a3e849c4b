"""`WriterSettings`: how a writer batches its changes and bounds its memory."""

import math
from dataclasses import dataclass
from pathlib import Path

from statelog.errors import ConfigError
from statelog.storage.local.copy import check_directory

__all__ = ["WriterSettings"]

_POSITIVE = ("roll_rows", "list_bytes", "roll_bytes", "chunk_bytes", "in_flight_bytes_max", "local_copies_bytes_max")

_MOST_WAITING = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How a writer batches and bounds. The defaults measured best; see `bench`. Raises ConfigError.

        >>> settings = WriterSettings(in_flight_bytes_max=16 << 20)
        >>> with Writer(log, "web", settings=settings) as writer:
        ...     writer.put(b"alice", b"1")
        ...     writer.commit().checkpoint.id
        1

    roll_rows               single changes wait in plain lists until so many have come, then become Arrow
    list_bytes              ... or until they take so many bytes
    roll_bytes              Arrow changes of this size are split by partition and sent ahead of any checkpoint, which
                            then finds little left to send
    chunk_bytes             the size that a chunk aims at
    in_flight_bytes_max     above it, appending blocks
    stall_timeout_s         waiting fails after so long without any delivery report; a slow link still makes progress
    local_copies            a directory for a copy of every change set, which `recover` can read instead of Kafka. Not
                            for durability
    local_copies_bytes_max  above it the oldest copies of this writer go; each counts as 4 KiB at least
    """

    roll_rows: int = 20_000
    list_bytes: int = 2 << 20
    roll_bytes: int = 8 << 20
    chunk_bytes: int = 1 << 20
    in_flight_bytes_max: int = 64 << 20
    stall_timeout_s: float = 30.0
    local_copies: Path | None = None
    local_copies_bytes_max: int = 1 << 30

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)} and must be positive")
        for name in ("list_bytes", "roll_bytes"):
            if getattr(self, name) > _MOST_WAITING:
                raise ConfigError(
                    f"{name} is above 1 GiB", hint="Buffered changes become one Arrow array, which holds at most 2 GiB"
                )
        if not 0 < self.stall_timeout_s < math.inf:
            raise ConfigError(f"stall_timeout_s is {self.stall_timeout_s} and must be positive and finite")
        check_directory(self.local_copies)
        if self.chunk_bytes > 8 << 20:
            raise ConfigError("chunk_bytes is above 8 MiB", hint="A topic takes records of 16 MiB, framing included")
        if self.in_flight_bytes_max < self.chunk_bytes:
            raise ConfigError("in_flight_bytes_max is below chunk_bytes, so no chunk could ever be sent")
