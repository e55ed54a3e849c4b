"""A grant: what a valid Open gives its writer, as a value that travels to other processes.

Tasks write chunks under a grant's epoch without touching the ledger or the DFS; the process that opened
commits what they return. A grant fences nothing by itself and expires when a newer Open lands.
"""

from dataclasses import dataclass, field

from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint, Handle, Step
from statelog.schemas.ledger.metadata import Metadata
from statelog.schemas.values.schema import ValueSchema

__all__ = ["Grant", "TaskGrant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The right to persist and commit under an epoch.

    `base` is the writer's last valid checkpoint when it opened, and `metadata` what that commit carried: final, since
    nothing older can become valid any more. `value_schema` is the one that new changes are written with, `witness` the
    ledger position that was folded when it was given.
    """

    descriptor: Descriptor
    value_schema: ValueSchema
    writer: str
    epoch: int
    nonce: bytes
    partitions: tuple[int, ...]
    base: Checkpoint = NO_CHECKPOINT
    metadata: Metadata = field(default_factory=dict[str, str])
    witness: int = 0

    def handle(self, base: Checkpoint, steps: tuple[Step, ...]) -> Handle:
        """The handle of checkpoints that were written under it, the first of which continues `base`."""
        return Handle(
            identity=self.descriptor.identity,
            writer=self.writer,
            epoch=self.epoch,
            nonce=self.nonce,
            base=base,
            steps=steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGrant:
    """The right to write one checkpoint's changes: a grant, the checkpoint, and the one that it continues. Pickles."""

    grant: Grant
    base: Checkpoint
    checkpoint_id: int
