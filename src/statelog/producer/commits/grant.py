"""`Grant`: the right that a valid Open gives, as a value that other processes can use.

Tasks write chunks under a grant's epoch without touching the ledger or the DFS; the process that opened
commits what they return. A grant itself fences nothing, and expires when a newer Open lands.
"""

from dataclasses import dataclass, field

from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint, Handle, Step
from statelog.schemas.ledger.metadata import Metadata
from statelog.schemas.ledger.place import ORIGIN, Place
from statelog.schemas.values.schema import ValueSchema

__all__ = ["Grant", "TaskGrant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The right to persist and commit under an epoch.

    `base` is the writer's last valid checkpoint when it opened, `metadata` what that commit carried; both are final.
    `value_schema` is the one for new changes, `witness` how far the ledger was folded when the grant was made.
    """

    descriptor: Descriptor
    value_schema: ValueSchema
    writer: str
    epoch: int
    nonce: bytes
    partitions: tuple[int, ...]
    base: Checkpoint = NO_CHECKPOINT
    metadata: Metadata = field(default_factory=dict[str, str])
    witness: Place = ORIGIN

    def handle(self, base: Checkpoint, steps: tuple[Step, ...]) -> Handle:
        """The handle of checkpoints written under this grant; the first continues `base`."""
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
    """The right to write the changes of one checkpoint, which continues `base`. Pickles."""

    grant: Grant
    base: Checkpoint
    checkpoint_id: int
