"""The one tree of errors that statelog raises.

    StatelogError
    ├── Misuse           InvalidName, InvalidChange, InvalidMetadata, KeyGroupMismatch, ValueTooLarge, LogInUse,
    │   │                IncompatibleSchema, CheckpointMismatch, SequenceTruncated, SequenceAhead, ReaderInUse,
    │   │                ClosedError, NestedCall, NotCommitted, OverlappingTasks, NoSuchYear
    │   └── ConfigError  StoreRefused
    ├── NotFound, AlreadyExists
    ├── Unsafe           UnsafeTopic, UnsafeStore
    ├── Unavailable      BrokerUnavailable, StoreUnavailable, StorageFull, TooOld, RoundGivenUp
    ├── PersistFailed, PublishFailed, OutcomeUnknown, SubscriptionEnded, Fenced, CommitRefused
    └── Damaged          UnknownFormat
        ├── Corrupt      CorruptChunk, CorruptLedger, CorruptDescriptor, CorruptManifest, CorruptRun, Unreadable
        └── DataLoss     IdentityChanged, OffsetGone, BeyondEnd, AnchorMismatch, IncompleteChangeSet

    UserWarning
    └── StatelogWarning  UncommittedChanges

The first branches of the tree tell callers how to react: *misuse*, fix the program; *unavailable*, retry; *fenced*, end
this writer; *damaged*, call a person.

Every error carries `facts` (plain values: topic, partition, offsets, paths) and a `hint` that says what to do. Errors
can be pickled, because they travel from Spark's workers to its driver.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Self

Fact = str | int | float | bool | None


class StatelogError(Exception):
    """Root of the tree. `message` is the problem, `facts` its values, `hint` the remedy."""

    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "", **facts: Fact) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint
        self.facts: Mapping[str, Fact] = facts

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        text = f"{self.message} ({facts})" if facts else self.message
        return f"{text}. {self.hint}" if self.hint else text

    def restated(self, *, hint: str = "", **facts: Fact) -> Self:
        """Return the same error with another hint, or with further facts."""
        return type(self)(self.message, hint=hint or self.hint, **{**self.facts, **facts})

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return partial(type(self), self.message, hint=self.hint, **self.facts), ()


class Misuse(StatelogError):
    """The call is wrong: the program needs a fix."""


class ConfigError(Misuse):
    """A setting is wrong, unknown or contradicts another."""


class StoreRefused(ConfigError):
    """The file system refuses: a missing right, wrong credentials, or no such bucket. Not taken for a missing file."""

    default_hint = "Check the credentials and their rights on this path"


class InvalidName(Misuse):
    """A name outside `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`, or one that is reserved."""


class InvalidChange(Misuse):
    """A change that the log cannot hold: no key, a wrong type, a null value in a put."""


class InvalidMetadata(Misuse):
    """Commit metadata with a name or value of a wrong type."""

    default_hint = "Use text, whole numbers of 64 bits, finite fractions and booleans; write anything else as text"


class KeyGroupMismatch(Misuse):
    """The named key group is not the key's own, or does not belong to this writer."""


class ValueTooLarge(Misuse):
    """One change is larger than a chunk may be."""


class IncompatibleSchema(Misuse):
    """A value schema that cannot read earlier values."""


class CheckpointMismatch(Misuse):
    """The log is not at the checkpoint that the caller expects."""


class SequenceTruncated(Misuse):
    """A sequence number below the writer's truncation: no change set may start there."""


class SequenceAhead(Misuse):
    """A sequence number above the next one of its writer: no change set has it."""


class LogInUse(Misuse):
    """Opening would fence another job that may be running, and no option allows that."""


class ReaderInUse(Misuse):
    """The subscription of this reader id belongs to another reading, which may resume."""


class ClosedError(Misuse):
    """Used after close, from a second thread, or in a process that was forked later."""


class NestedCall(Misuse):
    """Called inside of another call of the same object, from a signal handler or a callback. The call had no effect."""

    default_hint = "Only set a flag in a signal handler: the loop ends at it, then commits and closes"


class NotCommitted(Misuse):
    """A table was closed with changes after the last named progress. They are discarded."""


class OverlappingTasks(Misuse):
    """Two tasks of one commit wrote the same key group, so the order of their changes is arbitrary."""

    default_hint = "Repartition by statelog's key-group expression, or declare that keys are unique per batch"


class NoSuchYear(Misuse):
    """A value holds a time outside of Python's years 1 to 9999. `key` and `field` are facts."""

    default_hint = "Read it as a column: to_arrow, to_parquet or a stream of `recover`, or overwrite or delete its key"


class NotFound(StatelogError):
    """The requested log, checkpoint, position or file does not exist."""


class AlreadyExists(StatelogError):
    """The name or slot is taken."""


class Unsafe(StatelogError):
    """A topic or store that could lose data, and is refused."""


class UnsafeTopic(Unsafe):
    """A topic setting that deletes, or may lose, acknowledged records."""


class UnsafeStore(Unsafe):
    """A store that ignores put-if-absent, so that two materializers could overwrite each other."""


class Unavailable(StatelogError):
    """A broker, store or disk is not available; the same call may succeed later. Nothing is lost."""


class BrokerUnavailable(Unavailable):
    """Kafka does not answer, or not in time."""

    default_hint = "Check bootstrap.servers and that the broker is up, then retry"


class StoreUnavailable(Unavailable):
    """The file system does not answer, or not in time."""

    default_hint = "Check the root URL, its credentials and the network, then retry"


class StorageFull(Unavailable):
    """A disk or quota is full. Nothing that was committed is lost."""

    default_hint = "Free some space and run again; nothing that was committed is lost"


class TooOld(Unavailable):
    """A standby's state is older than its reader accepts. It is correct at its position."""

    default_hint = "Ask again, or accept an older state; if its age does not fall, check Kafka and the store"


class RoundGivenUp(Unavailable):
    """A round that exceeded its time and was aborted. Nothing is lost; the next round starts over."""

    default_hint = "If rounds make progress, raise round_timeout_s; else check the store and the brokers"


class PersistFailed(StatelogError):
    """Change sets that did not become durable. They were never committed and do not count."""


class PublishFailed(StatelogError):
    """Messages of commits could not be published in time. The commits stay, and no message is skipped."""

    default_hint = "Mend the cause, and open the table again: its next owner goes on with these messages"


class OutcomeUnknown(StatelogError):
    """A ledger record was sent but not acknowledged: only a new Open decides whether it counts."""


class SubscriptionEnded(StatelogError):
    """A reader's subscription was ended, by the materializer's cap or by a person: truncation does not wait for it."""


class Fenced(StatelogError):
    """A newer writer owns one of the partitions or the writer name. This one can never write again."""

    default_hint = "Stop this writer, or open it again if it should win: another writer took over"


class CommitRefused(StatelogError):
    """The commit is void in the ledger, for another reason than fencing."""


class Damaged(StatelogError):
    """Stored data is damaged or missing. Never skipped, never repaired silently."""


class Corrupt(Damaged):
    """Bytes that differ from the written ones."""


class CorruptChunk(Corrupt):
    """A chunk that does not decode, or whose checksum differs."""


class CorruptLedger(Corrupt):
    """A ledger record that does not decode, or whose checksum differs."""


class CorruptDescriptor(Corrupt):
    """A descriptor that does not decode, or whose checksum differs."""


class CorruptManifest(Corrupt):
    """A manifest that does not decode, whose checksum differs, or that breaks the chain."""


class CorruptRun(Corrupt):
    """A run that does not decode, or whose length or checksum differ from its manifest."""


class Unreadable(Corrupt):
    """Records that Kafka's client cannot unpack. The facts `start_offset` and `end_offset` span all of them that were
    requested.
    """


class UnknownFormat(Damaged):
    """Data of a newer statelog. The reader stops, because skipping it could hide commits."""

    default_hint = "Upgrade statelog on this machine"


class DataLoss(Damaged):
    """Committed changes can no longer be read."""


class IdentityChanged(DataLoss):
    """The cluster is another one, or a topic was deleted and recreated under the same name."""


class OffsetGone(DataLoss):
    """The log starts above a needed offset: more was truncated than is safe."""


class BeyondEnd(DataLoss):
    """The log ends below a committed offset: acknowledged records are missing."""


class AnchorMismatch(DataLoss):
    """A record differs from the one that a snapshot, or a fold of the ledger, was built on."""


class IncompleteChangeSet(DataLoss):
    """A committed change set lacks chunks or changes, or they differ from the listed ones."""


class StatelogWarning(UserWarning):
    """A mistake of the calling program, shown at its own line, every time, subject to its warning filters."""


class UncommittedChanges(StatelogWarning):
    """A writer was closed, and its uncommitted changes are discarded."""
