"""`Committer`: writes commits under a grant, and resolves unknown outcomes. Pure functions below it decide which
handles may go together, and make their record.

Writers, coordinators whose tasks run elsewhere, and Spark's commit process use it.

Invariants:
- The ledger decides whether a commit is valid; a timeout decides nothing.
- A commit is never sent twice. If its outcome is unknown, a new Open (through a new producer) resolves it: the commit
  lies before that Open and is valid, or it never will be. Only then are the same handles committed again.
- A re-open never takes the epoch back from another writer.
- After a commit that did not end well nothing more is committed: a new life reads its outcome.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeVar

from statelog.environment import current_environment
from statelog.errors import (
    CheckpointMismatch,
    ClosedError,
    CommitRefused,
    ConfigError,
    Fenced,
    IdentityChanged,
    KeyGroupMismatch,
    OutcomeUnknown,
    Unavailable,
    Unsafe,
    ValueTooLarge,
)
from statelog.history import Landed
from statelog.log import Log
from statelog.pending import Pending
from statelog.producer.epoch import EpochClients, Grant, live_commit, open_epoch
from statelog.schemas.ledger.fold import LedgerFold, VoidReason
from statelog.schemas.ledger.handle import Checkpoint, Handle, next_checkpoint_id, refuse_repeats
from statelog.schemas.ledger.inline import CommitOutputs, Inline
from statelog.schemas.ledger.place import Metadata, Place, check_metadata
from statelog.schemas.ledger.records import Commit, LossRange
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.outputs.batch import serialize_outputs
from statelog.schemas.outputs.output import Output

T = TypeVar("T")

_RESOLVE_ATTEMPTS = 3
_AGAIN = "Open it again and resume from last_commit"


class Cargo(NamedTuple):
    """What a commit carries: the descriptions in its head of changes and of messages, and the batches of both."""

    inline: Inline | None = None
    batch: bytes = b""
    outputs: CommitOutputs | None = None

    @classmethod
    def of(cls, changes: tuple[Inline, bytes] | None, outputs: Sequence[Output]) -> "Cargo":
        """Make it of described changes, and of messages, if there are any of either."""
        inline, batch = changes or (None, b"")
        if not outputs:
            return cls(inline, batch)
        sent = serialize_outputs(outputs)
        return cls(inline, batch + sent, CommitOutputs(len(outputs), len(sent)))


NOTHING = Cargo()


class _End(Enum):
    """Why nothing more can be committed."""

    FINAL = "the last commit was final"
    IN_DOUBT = "an earlier commit did not end well"
    OVERTAKEN = "another writer took over behind the last commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    """A Commit that was sent, its parts, and the position that was folded before."""

    commit: Commit
    handles: Sequence[Handle]
    carried: Cargo
    metadata: Metadata
    sent_s: float
    position: int
    appended: Pending[Landed]


class Committer:
    """Commits handles for one writer. Owns the producer in `opened`; to resolve an outcome replaces it. If the grant
    `is_shared`, other processes may commit under it, too.
    """

    def __init__(self, log: Log, opened: EpochClients, *, is_shared: bool = False) -> None:
        self.opened = opened
        self._is_shared = is_shared
        self.last = opened.last
        self.attempts = 0
        """The number of Commits sent for the newest checkpoint: 1, plus 1 for each that was lost."""
        self._end: _End | None = None
        self._under_way: _UnderWay | None = None
        self._log = log
        self._environment = current_environment()

    @property
    def grant(self) -> Grant:
        """The grant that commits are written under now."""
        return self.opened.grant

    @property
    def place(self) -> Place:
        """The folded ledger position and the record below it. Everything acknowledged lies below."""
        return self._log.history.place

    def ask(self, question: Callable[[LedgerFold], T]) -> T:
        """Answer a question from the ledger, as far as this process has folded it."""
        return self._log.history.ask(question)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be committed: the last commit was final, did not end well, or was overtaken."""
        return self._end is not None

    @property
    def is_overtaken(self) -> bool:
        """Whether the last commit counts, and another writer has taken over behind it."""
        return self._end is _End.OVERTAKEN

    @property
    def base(self) -> Checkpoint:
        """The checkpoint that the next commit continues."""
        return self.last.checkpoint if self.last else self.grant.base

    def begin(
        self,
        handles: Sequence[Handle],
        checkpoint_id: int,
        metadata: Metadata,
        *,
        final: bool,
        carried: Cargo = NOTHING,
        waits: bool = False,
    ) -> None:
        """Send a Commit of handles, or of what its record carries. `finish` takes its outcome.

        Raises CheckpointMismatch and other misuse before anything is sent, ClosedError, Fenced, Unavailable.
        """
        if self._end is _End.OVERTAKEN:
            raise Fenced(self._end.value, **self.grant.facts, hint=_AGAIN)
        if self._end is not None:
            raise ClosedError(f"nothing more can be committed: {self._end.value}", **self.grant.facts, hint=_AGAIN)
        commit = make_commit(
            self.grant,
            self.base,
            handles,
            checkpoint_id,
            metadata,
            final=final,
            witness=self.place,
            carried=carried,
        )
        self.attempts = 0
        self._environment.crash("commit-made")
        self._end = _End.IN_DOUBT
        sent_s = self._environment.clock()
        self._under_way = _UnderWay(
            commit=commit,
            handles=handles,
            carried=carried,
            metadata=dict(metadata),
            sent_s=sent_s,
            position=self.place.position,
            appended=self._send(commit, waits=waits),
        )

    def is_answered(self, timeout_s: float) -> bool:
        """Wait for the answer to the Commit under way. Return whether `finish` would find it."""
        return self._under_way is not None and self._under_way.appended.wait(timeout_s)

    def finish(self, *, resolve: bool = True) -> LastCommit:
        """Return the pending Commit once the ledger shows it valid. `resolve`: resolve an unknown outcome first.

        Any error ends the committer: Fenced, CommitRefused, Damaged; Unavailable if the commit is certainly not in the
        ledger; OutcomeUnknown if it may be, and was not resolved.
        """
        assert self._under_way is not None, "nothing is under way"
        sent, self._under_way = self._under_way, None

        def amount() -> tuple[int, int]:
            inline = sent.commit.inline
            if inline is not None:
                return inline.changes, inline.size_bytes
            return sum(one.changes for one in sent.handles), sum(one.size_bytes for one in sent.handles)

        with self._environment.step("commit", self._log.name, sent.sent_s, amount=amount):
            is_overtaken = False
            try:
                offset = self._valid_append(sent.appended, sent.commit)
            except OutcomeUnknown as error:
                if not resolve:
                    raise
                offset, is_overtaken = self._resolve(sent, error)
            self._environment.crash("committed")
            self.last = LastCommit(sent.commit.checkpoint, offset, sent.metadata)
            self._end = _End.FINAL if sent.commit.final else _End.OVERTAKEN if is_overtaken else None
            return self.last

    def refresh(self, seen: Place) -> None:
        """Read the newer commits of other processes under the grant, one of which observed this place.

        Raises Fenced if the grant is over, Damaged, Unavailable.
        """
        self._log.history.read(seen)
        self.catch_up(seen)

    def catch_up(self, seen: Place) -> None:
        """Take over the newest commit under the grant that this process has read; it must have read up to a place.

        Raises Fenced if the grant is over, Damaged, Unavailable.
        """
        grant = self.grant
        self._log.history.expect([seen])
        self.last = self._log.history.ask(lambda fold: live_commit(fold, grant))

    def close(self) -> None:
        """Release the producer. Idempotent."""
        self.opened.close()

    def _send(self, commit: Commit, *, waits: bool = False) -> Pending[Landed]:
        self.attempts += 1
        return self._log.history.append(self.opened.producer, commit, waits=waits)

    def _valid_append(self, appended: Pending[Landed], commit: Commit) -> int:
        """Return the offset of a Commit that was sent, once it is valid."""
        try:
            offset, void = appended.result()
        except Unavailable as error:
            what = "the commit is in the ledger, but its validity could not be read"
            raise OutcomeUnknown(what, topic=self._log.ledger_topic, hint=_AGAIN) from error
        if void is not None:
            is_fenced = void.reason in (VoidReason.FENCED, VoidReason.UNKNOWN_EPOCH)
            raise (Fenced if is_fenced else CommitRefused)(
                f"the commit is void: {void.reason.value}",
                **self.grant.facts,
                epoch=self.grant.epoch,
                checkpoint=commit.checkpoint.id,
                detail=void.detail,
            )
        return offset

    def _resolve(self, sent: _UnderWay, error: OutcomeUnknown) -> tuple[int, bool]:
        """Return the offset of the commit, valid by now, and whether another writer took over behind it."""
        commit, position = sent.commit, sent.position
        for _ in range(_RESOLVE_ATTEMPTS):
            try:
                is_overtaken, end_position = self._reopen()
                offset = self._valid_offset(commit, position, end_position)
            except (Unavailable, OutcomeUnknown, ConfigError, Unsafe) as failure:
                raise error from failure  # Changed rights or settings say nothing about the commit.
            if offset is not None:
                return offset, is_overtaken
            is_replaced = not is_overtaken and self.grant.base != commit.base
            if (is_overtaken or is_replaced) and self._is_hidden(position):
                raise error  # It may lie in a range that a round has truncated, as may all that followed it.
            if is_overtaken:
                raise Fenced(
                    "another writer took over before the commit",
                    **self.grant.facts,
                    checkpoint=commit.checkpoint.id,
                )
            if is_replaced:
                what = "the commit is lost, and another one under the same grant is in its place"
                raise CommitRefused(what, **self.grant.facts, checkpoint=commit.checkpoint.id, hint=_AGAIN)
            again = make_commit(
                self.grant,
                self.base,
                sent.handles,
                commit.checkpoint.id,
                sent.metadata,
                final=commit.final,
                witness=self.place,
                carried=sent.carried,
            )
            # Keep the handle's nonce, which the caller knows. Without handles the new epoch's would be used.
            commit, position = replace(again, checkpoint=commit.checkpoint), self.place.position
            try:
                return self._valid_append(self._send(commit), commit), False
            except OutcomeUnknown as newer:
                error = newer
        raise error

    def _reopen(self) -> tuple[bool, int]:
        """Re-open the epoch. In each case an Open resolves what was sent before.

        Return whether another writer owns it now, and a position above that Open. The ledger's end is not asked for: a
        stale answer could hide a commit.
        """
        old = self.opened
        old.producer.close()
        try:
            grant = old.grant
            opened = self._environment.run(
                open_epoch, self._log, grant.writer, partitions=grant.partitions, ours=[grant.nonce]
            )
        except Fenced as fenced:
            position = fenced.facts.get("position")
            if not isinstance(position, int):
                raise OutcomeUnknown(
                    "other writers keep opening at the same time", writer=old.grant.writer, hint=_AGAIN
                ) from fenced
            return True, position
        # Changes that wait for the next change set have the old grant's value schema.
        opened.grant = replace(opened.grant, value_schema=old.grant.value_schema)
        self.opened = opened
        return False, opened.grant.epoch + 1

    def _valid_offset(self, commit: Commit, position: int, end_position: int) -> int | None:
        """Return the offset of the commit if it is valid and below `end_position`. It was sent at `position`.

        Search the commits, not the fold's rows: a final commit leaves no row, and others may have followed.
        """
        for valid in self._log.history.commits(position, end_position) or ():
            if valid.commit == commit:
                return valid.offset
        # The row shows a commit that was truncated unread, unless another process under the grant may have made it.
        last = self._log.history.ask(lambda fold: fold.last_commit(self.grant.writer))
        is_hidden = self._is_hidden(position) and not self._is_shared
        return last.offset if is_hidden and last and last.checkpoint == commit.checkpoint else None

    def _is_hidden(self, position: int) -> bool:
        """Return whether commits behind a position may have been truncated before this process read them."""
        return self._log.history.commits(position, position) is None


class GrantHolder:
    """A mixin of objects that commit under a grant: the grant, and the state of the ledger as they know it."""

    __slots__ = ()
    _committer: Committer

    @property
    def grant(self) -> Grant:
        """Its grant, under which its tasks write, too, if it has any."""
        return self._committer.grant

    @property
    def last_commit(self) -> LastCommit | None:
        """The last valid commit (checkpoint, offset, metadata): the source resumes there. None before the first."""
        return self._committer.last

    @property
    def position(self) -> int:
        """The ledger position up to which it has read."""
        return self._committer.place.position

    @property
    def place(self) -> Place:
        """`position` with the ledger record below it, for `recover(at_least=)` in other processes, and to be stored."""
        return self._committer.place

    def meta_record(self, key: str) -> bytes | None:
        """Return the committed meta record of this writer under a key; None if there is none."""
        return self._committer.ask(lambda fold: fold.meta_record(self.grant.writer, key))

    @property
    def accepted_losses(self) -> tuple[LossRange, ...]:
        """The ranges of the log that a person accepted as lost, below `position`."""
        return self._committer.ask(lambda fold: fold.accepted)

    @property
    def restarted(self) -> int:
        """The offset of the newest Restart below `position`, by which a person accepted a loss of the ledger; or -1."""
        return self._committer.ask(lambda fold: fold.restarted)


def make_commit(
    grant: Grant,
    last: Checkpoint,
    handles: Sequence[Handle],
    checkpoint_id: int,
    metadata: Metadata,
    *,
    witness: Place,
    final: bool = False,
    carried: Cargo = NOTHING,
) -> Commit:
    """Make the commit that continues `last` with these handles, or what it carries; without either, progress alone.

    `witness`: the place up to which the writer has folded. Raises CheckpointMismatch, KeyGroupMismatch,
    IdentityChanged, OverlappingTasks for a wrong handle; Misuse; ValueTooLarge if no ledger record could hold it.
    """
    next_checkpoint_id(checkpoint_id, last.id, writer=grant.writer)
    check_metadata(metadata)
    for handle in handles:
        check_handle(grant, handle, checkpoint_id)
    going_on = [handle.continuing(last) for handle in handles]
    nonces = {handle.nonce for handle in going_on}
    if len(nonces) > 1:
        raise CheckpointMismatch("the handles of one commit come from different lives of the writer")
    refuse_repeats(going_on)
    commit = Commit.of(
        epoch=grant.epoch,
        nonce=grant.nonce,
        base=last,
        checkpoint=Checkpoint(checkpoint_id, nonces.pop() if nonces else grant.nonce),
        metadata=metadata,
        handles=going_on,
        witness=witness,
        final=final,
        inline=carried.inline,
        batch=carried.batch,
        outputs=carried.outputs,
    )
    size_bytes, max_bytes = commit.size_bytes, grant.descriptor.record_bytes_max * 15 // 16  # With room for framing.
    if size_bytes > max_bytes:
        raise ValueTooLarge(
            "a commit is larger than a ledger record may be",
            hint="Open the writer again and resume. Then confirm more often, from fewer tasks, with smaller metadata"
            " and meta records, or make a log with a larger max.message.bytes",
            size_bytes=size_bytes,
            max_bytes=max_bytes,
        )
    return commit


def check_handle(grant: Grant, handle: Handle, checkpoint_id: int) -> None:
    """Raise IdentityChanged, CheckpointMismatch or KeyGroupMismatch if the handle cannot belong to this commit.

    `Handle.continuing` checks whether it continues the log.
    """
    if handle.identity != grant.descriptor.identity:
        raise IdentityChanged("the handle was written to another log", writer=handle.writer)
    if handle.writer != grant.writer or handle.checkpoint.id != checkpoint_id:
        raise CheckpointMismatch(
            "the handle is another writer's or another checkpoint's",
            writer=grant.writer,
            handle_writer=handle.writer,
            checkpoint=checkpoint_id,
            handle_checkpoint=handle.checkpoint.id,
        )
    strange = {entry.partition for entry in handle.listed} - set(grant.partitions)
    if strange:
        raise KeyGroupMismatch(
            "the handle holds partitions that this writer did not open", partitions=str(sorted(strange))
        )
