"""`Origin`: of which log another one is a copy, and up to where; and the ledger's state that a copy begins with. Pure.

It stands in the copy's manifests, as the last commit of a writer that nobody is: in one file with the state that it
speaks of, and told by `describe` and `commits()` as any writer's.

Invariants:
- What counts in one ledger alone stays behind: epochs, offsets, accepted losses. Checkpoints, metadata and meta records
  come along, so that a writer continues its last checkpoint, and its source where that says.
- No commit of a carried writer lies above the Restart right below the position, nor does an epoch.
"""

import json
from dataclasses import asdict, dataclass

from statelog.errors import Corrupt
from statelog.schemas.ledger.handle import Checkpoint
from statelog.schemas.ledger.place import LogIdentity, Metadata, Place
from statelog.schemas.ledger.state import NO_EPOCH, LedgerState, WriterState
from statelog.schemas.names import COPIER


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The log that was copied, up to a place in its ledger. Unless it `is_finished` the copy is closed, and goes on."""

    log: str
    identity: LogIdentity
    place: Place
    is_finished: bool

    @classmethod
    def of(cls, state: LedgerState) -> "Origin | None":
        """What the state of a copy's ledger says of it; None for a log that is no copy. Raises Corrupt."""
        last = state.last_commit(COPIER)
        if last is None:
            return None
        try:
            return cls(
                log=str(last.metadata["log"]),
                identity=LogIdentity.from_fields(last.metadata),
                place=Place.from_json(json.loads(str(last.metadata["place"]))),
                is_finished=last.metadata["is_finished"] is True,
            )
        except (KeyError, ValueError) as error:
            raise Corrupt(f"a copy does not say of which log it is one: {error!r}", writer=COPIER) from error

    def to_metadata(self) -> Metadata:
        """As the metadata of a commit."""
        return {
            "log": self.log,
            **asdict(self.identity),
            "place": json.dumps(self.place.to_json()),
            "is_finished": self.is_finished,
        }


def copied_state(state: LedgerState, origin: Origin, position: int, nonce: bytes) -> LedgerState:
    """The ledger of a copy at `position`, right behind a Restart of its own, which goes on from a `state`."""
    row = WriterState(COPIER, NO_EPOCH, Checkpoint(origin.place.position, nonce), metadata=origin.to_metadata())
    carried = [one._replace(newest_epoch=NO_EPOCH) for one in state.writers if one.last_commit and one.name != COPIER]
    rows = sorted((*carried, row), key=lambda one: one.name)
    return LedgerState(
        position=position,
        writers=tuple(one._replace(commit_offset=position - 1) for one in rows),
        meta=state.meta,
        restarted=position - 1,
    )
