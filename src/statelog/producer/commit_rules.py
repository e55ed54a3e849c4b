"""The rules of commits: which ids and handles make one, the record that they make, the error for a void one. Pure."""

from collections.abc import Sequence

from statelog.errors import (
    CheckpointMismatch,
    CommitRefused,
    Fenced,
    IdentityChanged,
    KeyGroupMismatch,
    OverlappingTasks,
    StatelogError,
    ValueTooLarge,
)
from statelog.producer.epoch import Grant
from statelog.schemas.key_groups import bitmaps_overlap, merge_bitmaps
from statelog.schemas.ledger.fold import Void, VoidReason
from statelog.schemas.ledger.handle import Checkpoint, Handle
from statelog.schemas.ledger.place import Metadata, check_metadata
from statelog.schemas.ledger.records import Commit


def make_commit(
    grant: Grant,
    last: Checkpoint,
    handles: Sequence[Handle],
    checkpoint_id: int,
    metadata: Metadata,
    *,
    final: bool = False,
) -> Commit:
    """The commit that continues `last` with these handles. No handles: progress without changes.

    Raises CheckpointMismatch, KeyGroupMismatch, IdentityChanged, OverlappingTasks if a handle cannot be committed under
    this grant; Misuse, ValueTooLarge if no ledger record could hold it.
    """
    next_checkpoint_id(checkpoint_id, last.id, writer=grant.writer)
    check_metadata(metadata)
    for handle in handles:
        check_handle(grant, handle, checkpoint_id)
    going_on = [handle.continuing(last) for handle in handles]
    nonces = {handle.nonce for handle in going_on}
    if len(nonces) > 1:
        raise CheckpointMismatch("the handles of one commit come from different lives of the writer")
    _refuse_repeats(going_on)
    commit = Commit.of(
        epoch=grant.epoch,
        nonce=grant.nonce,
        base=last,
        checkpoint=Checkpoint(checkpoint_id, nonces.pop() if nonces else grant.nonce),
        metadata=metadata,
        handles=going_on,
        final=final,
    )
    size_bytes, max_bytes = commit.size_bytes, grant.descriptor.record_bytes_max * 15 // 16  # With room for framing.
    if size_bytes > max_bytes:
        raise ValueTooLarge(
            "a commit is larger than a ledger record may be",
            hint="Confirm more often, from fewer tasks, and keep metadata and meta records small; if this one is too"
            " large already, open the writer again and resume. A log that is made with a larger max.message.bytes takes"
            " more",
            size_bytes=size_bytes,
            max_bytes=max_bytes,
        )
    return commit


def next_checkpoint_id(wanted: int | None, last_id: int, **facts: str) -> int:
    """The id of the checkpoint after `last_id`: the caller's, or the last one plus 1.

    Raises CheckpointMismatch, with these facts, for an id that is not later, or that no checkpoint can have.
    """
    checkpoint_id = last_id + 1 if wanted is None else wanted
    if not isinstance(checkpoint_id, int) or isinstance(checkpoint_id, bool) or not 0 < checkpoint_id < 1 << 63:
        raise CheckpointMismatch(f"a checkpoint id is a whole number from 1 to 2^63 - 1, and not {checkpoint_id!r}")
    if checkpoint_id <= last_id:
        raise CheckpointMismatch(
            f"checkpoint {checkpoint_id} is not later than the last one",
            last_checkpoint=last_id,
            hint="Each checkpoint id of a writer is greater than the last",
            **facts,
        )
    return checkpoint_id


def refuse_overlaps(handles: Sequence[Handle]) -> None:
    """Raise OverlappingTasks if two handles hold the same key group: the order between them is arbitrary."""
    seen: dict[int, bytes] = {}
    for handle in handles:
        for entry in handle.entries:
            before = seen.get(entry.partition, b"")
            if bitmaps_overlap(before, entry.key_groups):
                raise OverlappingTasks("two tasks of one commit wrote the same key group", partition=entry.partition)
            seen[entry.partition] = merge_bitmaps(before, entry.key_groups)


def _refuse_repeats(handles: Sequence[Handle]) -> None:
    """Raise OverlappingTasks if two change sets of a partition have one number: no reader could tell them apart."""
    seen: set[tuple[int, int]] = set()
    for handle in handles:
        for entry in handle.entries:
            if (entry.partition, entry.sqn) in seen:
                raise OverlappingTasks(
                    "two change sets of one commit have the same number",
                    hint="Pass each handle once, and give each attempt of each task its own slot",
                    partition=entry.partition,
                    sqn=entry.sqn,
                )
            seen.add((entry.partition, entry.sqn))


def refused(void: Void, grant: Grant, checkpoint_id: int) -> StatelogError:
    """The error that tells a committer why its commit is void."""
    error: type[StatelogError] = (
        Fenced if void.reason in (VoidReason.FENCED, VoidReason.UNKNOWN_EPOCH) else CommitRefused
    )
    return error(
        f"the commit is void: {void.reason.value}",
        writer=grant.writer,
        epoch=grant.epoch,
        checkpoint=checkpoint_id,
        detail=void.detail,
    )


def check_handle(grant: Grant, handle: Handle, checkpoint_id: int) -> None:
    """Raise IdentityChanged, CheckpointMismatch or KeyGroupMismatch if the handle cannot be of this commit at all.

    Whether it continues the log is another question; see `Handle.continuing`.
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
    strange = {entry.partition for entry in handle.entries} - set(grant.partitions)
    if strange:
        raise KeyGroupMismatch(
            "the handle holds partitions that this writer did not open", partitions=str(sorted(strange))
        )
