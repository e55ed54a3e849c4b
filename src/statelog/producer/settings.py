"""`WriterSettings`: how a writer batches its changes and bounds its memory; `WriterStatistics`: what it measured.

Nothing is counted per change: a counter moves once per chunk, checkpoint or commit.
"""

from dataclasses import dataclass, field
from pathlib import Path

from statelog.errors import ConfigError
from statelog.reading import check_directory
from statelog.schemas.names import check_whole

_MOST_INLINE = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterTuning:
    """Settings that only the tests and benchmarks of this package change. Not checked.

    `roll_rows`, `list_bytes`: single changes wait in plain lists up to these limits, then become Arrow.
    `roll_bytes`: Arrow changes of this size are split by partition and sent ahead of any checkpoint, which then finds
    little left to send. At most 1 GiB. By default eight partitions get a chunk each.
    `chunk_bytes`: the target size of a chunk, at most 8 MiB; less where the log's topics allow less.
    `stall_timeout_s`: waiting fails after this long without any delivery report.
    """

    roll_rows: int = 20_000
    list_bytes: int = 2 << 20
    roll_bytes: int = 6 << 20
    chunk_bytes: int = 1 << 20
    stall_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How a writer batches changes and bounds memory. The defaults measured best; see `bench`. Raises ConfigError.

        >>> settings = WriterSettings(in_flight_bytes_max=16 << 20)
        >>> with Writer(log, "web", settings=settings) as writer:
        ...     writer.put(b"alice", b"1")
        ...     writer.commit().checkpoint.id
        1

    in_flight_bytes_max     above it, appending blocks; at least 1 MiB, the size of a chunk
    inline_bytes            a commit of at most so many bytes of changes carries them in its own ledger record, while
                            the ledger carries less than 1 MiB a second; 0 for never
    local_copies            a directory for a copy of every change set, which `recover` can read instead of Kafka. Not
                            for durability
    local_copies_bytes_max  above it the oldest copies of this writer go; each counts as 4 KiB at least
    """

    in_flight_bytes_max: int = 64 << 20
    inline_bytes: int = 16 << 10
    local_copies: Path | None = None
    local_copies_bytes_max: int = 1 << 30
    _tuning: WriterTuning = field(default_factory=WriterTuning, repr=False)

    def __post_init__(self) -> None:
        for name in ("in_flight_bytes_max", "local_copies_bytes_max"):
            check_whole(name, getattr(self, name), 1)
        check_whole("inline_bytes", self.inline_bytes, 0)
        if self.inline_bytes > _MOST_INLINE:
            raise ConfigError(
                "inline_bytes is above 64 KiB", hint="Every process that follows a log reads all of its ledger"
            )
        check_directory(self.local_copies)
        if self.in_flight_bytes_max < self._tuning.chunk_bytes:
            raise ConfigError(
                "in_flight_bytes_max is below the size of a chunk, so no chunk could ever be sent",
                in_flight_bytes_max=self.in_flight_bytes_max,
                chunk_bytes=self._tuning.chunk_bytes,
            )


def tuning_of(settings: WriterSettings) -> WriterTuning:
    """Return the tuning of these settings: the defaults, except in tests."""
    return settings._tuning  # pyright: ignore[reportPrivateUsage] # private to programs, not to this package


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How often something happened, and its total, largest and latest value."""

    count: int = 0
    total: float = 0.0
    largest: float = 0.0
    last: float = 0.0

    @property
    def mean(self) -> float:
        """The mean; 0 if it never happened."""
        return self.total / self.count if self.count else 0.0

    def with_value(self, value: float) -> "Summary":
        """Return the summary with one more value."""
        return Summary(count=self.count + 1, total=self.total + value, largest=max(self.largest, value), last=value)


@dataclass(slots=True, kw_only=True)
class WriterStatistics:
    """One life of a writer so far. Only its own thread counts; `Writer.statistics` returns a copy.

    Times are in seconds, sizes in bytes of record values before compression.

    changes            appended changes: those that were given to the client, and those that wait
    buffered_changes   of these, the ones that wait
    messages           messages that were sent to leave with a commit, those that wait included
    change_sets        rolled over with at least one change
    chunk_bytes        the chunks that were sent: their number and sizes
    chunk_s            how long durable chunks took, from the send to Kafka's answer
    failed_chunks      chunks whose delivery failed or is unknown
    persists_ahead     times that a full buffer was sent before any checkpoint asked for it
    blocked_s          waits for room in flight
    persist_s          durable checkpoints: from the call of persist until durability was observed
    full_bytes         all that the newest durable checkpoint's handle lists, earlier unconfirmed ones included
    incremental_bytes  what that checkpoint added
    confirm_s          valid commits: from the send until the ledger showed them valid
    commit_attempts    how many Commits these took: 1 each, and 1 more for each that an Open had shown to be lost
    confirm_failures   commits that were refused, void, failed or stayed unknown
    carried_commits    commits that were sent with their changes, as one record
    settled_commits    of the valid ones, those whose outcome was unknown until a new Open resolved it
    in_flight_bytes    chunks that were sent and not reported yet; `in_flight_chunks` is their number
    local_copy_failures  change sets without a local copy because the local disk failed
    available          whether a whole chunk could be sent now without waiting

    There is no count of chunk attempts: each chunk is handed over once. librdkafka does not report how often it sends a
    record within its delivery timeout (its `txretries` counts other requests), but retries show in `chunk_s`.
    """

    changes: int = 0
    buffered_changes: int = 0
    messages: int = 0
    change_sets: int = 0
    chunk_bytes: Summary = Summary()
    chunk_s: Summary = Summary()
    failed_chunks: int = 0
    persists_ahead: int = 0
    blocked_s: Summary = Summary()
    persist_s: Summary = Summary()
    full_bytes: int = 0
    incremental_bytes: int = 0
    confirm_s: Summary = Summary()
    commit_attempts: Summary = Summary()
    confirm_failures: int = 0
    carried_commits: int = 0
    settled_commits: int = 0
    local_copy_failures: int = 0
    in_flight_bytes: int = 0
    in_flight_chunks: int = 0
    available: bool = False
