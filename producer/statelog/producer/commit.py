"""Committing: make handles part of history, and learn whether they are.

Executed by the one process that holds the grant. The verdict is the ledger's, never a timeout's.
"""

from collections.abc import Mapping, Sequence

from statelog.producer.grant import Grant
from statelog.schemas.errors import (
    CheckpointMismatch,
    CommitRefused,
    Fenced,
    IdentityChanged,
    KeyGroupMismatch,
    OverlappingTasks,
    StatelogError,
)
from statelog.schemas.fold import Reason, Void
from statelog.schemas.handle import Checkpoint, Handle
from statelog.schemas.key_groups import bitmaps_overlap, merge_bitmaps
from statelog.schemas.ledger import Commit

__all__ = ["make_commit", "refuse_overlaps", "refused"]


def make_commit(
    grant: Grant,
    last: Checkpoint,
    handles: Sequence[Handle],
    checkpoint_id: int,
    metadata: Mapping[str, str],
    *,
    final: bool = False,
) -> Commit:
    """The commit that continues `last` with these handles. No handles: progress without changes.

    Raises CheckpointMismatch, KeyGroupMismatch, IdentityChanged if a handle cannot be committed under this grant.
    """
    if checkpoint_id <= last.id:
        raise CheckpointMismatch(
            f"checkpoint {checkpoint_id} is not later than the last one",
            writer=grant.writer,
            last_checkpoint=last.id,
            hint="Checkpoint ids of a writer grow",
        )
    for handle in handles:
        _check_handle(grant, handle, checkpoint_id)
    going_on = [handle.continuing(last) for handle in handles]
    nonces = {handle.nonce for handle in going_on}
    if len(nonces) > 1:
        raise CheckpointMismatch("the handles of one commit come from different lives of the writer")
    return Commit.of(
        epoch=grant.epoch,
        nonce=grant.nonce,
        base=last,
        checkpoint=Checkpoint(checkpoint_id, nonces.pop() if nonces else grant.nonce),
        metadata=metadata,
        handles=going_on,
        final=final,
    )


def refuse_overlaps(handles: Sequence[Handle]) -> None:
    """Raise OverlappingTasks if two handles hold the same key group: the order between them is arbitrary."""
    seen: dict[int, bytes] = {}
    for handle in handles:
        for entry in handle.entries:
            before = seen.get(entry.partition, b"")
            if bitmaps_overlap(before, entry.key_groups):
                raise OverlappingTasks("two tasks of one commit wrote the same key group", partition=entry.partition)
            seen[entry.partition] = merge_bitmaps(before, entry.key_groups)


def refused(void: Void, grant: Grant, checkpoint_id: int) -> StatelogError:
    """The error that tells a committer why its commit is void."""
    error: type[StatelogError] = Fenced if void.reason in (Reason.FENCED, Reason.UNKNOWN_EPOCH) else CommitRefused
    return error(
        f"the commit is void: {void.reason.value}",
        writer=grant.writer,
        epoch=grant.epoch,
        checkpoint=checkpoint_id,
        detail=void.detail,
    )


def _check_handle(grant: Grant, handle: Handle, checkpoint_id: int) -> None:
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
    strange = {entry.partition for entry in handle.entries} - set(grant.partitions)
    if strange:
        raise KeyGroupMismatch(
            "the handle holds partitions that this writer did not open", partitions=str(sorted(strange))
        )
