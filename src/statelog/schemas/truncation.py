"""`Truncation`: who deletes the records that no snapshot needs any more, and the file that says so.

It may change in the life of a log, so it is no part of the descriptor, whose hash the ledger has. Each time it is said,
that is one more file, `truncation/<number>.avro`, written once: the newest one of this very log counts, and without
one the materializer truncates. Pure.
"""

from enum import StrEnum
from typing import NamedTuple

from statelog.errors import ConfigError, CorruptDescriptor
from statelog.schemas.avro import Datum, FileCodec
from statelog.schemas.names import parse_enum

_DAY_MS = 86_400_000
_MOST_DAYS = 36_500
_USUAL_DAYS = 7
_FILE = FileCodec("truncation", version=1, error=CorruptDescriptor)


class TruncationMode(StrEnum):
    """Who deletes records."""

    DELETE_RECORDS = "delete-records"
    """The materializer, once no kept snapshot and no reader needs them."""
    RETENTION = "retention"
    """Kafka, by their age, needed or not: rounds have to be faster."""


class Truncation(NamedTuple):
    """Who deletes, and after how many days, if that is Kafka."""

    mode: TruncationMode = TruncationMode.DELETE_RECORDS
    retention_days: int | None = None

    @classmethod
    def named(cls, mode: str | None, retention_days: int | None = None) -> "Truncation":
        """What a caller says; None says nothing. Raises ConfigError."""
        parsed = parse_enum(TruncationMode, "truncation", mode or TruncationMode.DELETE_RECORDS)
        if parsed is TruncationMode.DELETE_RECORDS:
            if retention_days is not None:
                hint = 'Say both: truncation="retention", retention_days=7, say'
                raise ConfigError("retention_days says when Kafka deletes, and the materializer does", hint=hint)
            return cls()
        days = _USUAL_DAYS if retention_days is None else retention_days
        if isinstance(days, bool) or not 1 <= days <= _MOST_DAYS:
            raise ConfigError(f"retention_days is {days} and must be a whole number from 1 to {_MOST_DAYS}")
        return cls(parsed, days)

    @property
    def is_by_kafka(self) -> bool:
        """Whether rounds truncate nothing."""
        return self.mode is TruncationMode.RETENTION

    @property
    def retention_ms(self) -> int:
        """What a new topic gets as `retention.ms`, and every one has to have at least; -1: for ever."""
        return -1 if self.retention_days is None else self.retention_days * _DAY_MS

    def __str__(self) -> str:
        return self.mode.value if self.retention_days is None else f"{self.mode.value}, {self.retention_days} days"

    def to_bytes(self, digest: bytes) -> bytes:
        """The file, for the log whose descriptor has this digest."""
        return _FILE.encode({"digest": digest, "mode": self.mode.value, "retention_days": self.retention_days or 0})

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "tuple[bytes, Truncation]":
        """The digest and what the file says; `path` is for messages. Raises CorruptDescriptor, UnknownFormat."""
        return _FILE.decode(data, path, _from_datum)


def _from_datum(datum: Datum) -> tuple[bytes, Truncation]:
    return datum["digest"], Truncation.named(datum["mode"], datum["retention_days"] or None)
