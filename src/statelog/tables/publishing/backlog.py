"""`backlog`: what each writer has committed to send and not published yet, for people who ask. Reads only.

The stored place of a writer's publisher tells how far it is; without one, the subscription that holds for it. The
commits behind that are counted, and their messages are not read.

Invariant: a writer that never sent costs no request.
"""

from typing import NamedTuple

from statelog.log import Log
from statelog.reading import count_outputs, list_subscriptions
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.outputs.output import SENDER
from statelog.schemas.outputs.stored import StoredPlace, outputs_group
from statelog.schemas.snapshot.claims import OUTPUTS, PUBLISHED, Subscription, newest_files


class Backlog(NamedTuple):
    """The position up to which the messages of a writer are published, and how many messages are not."""

    published_position: int
    messages: int


def backlog(log: Log, state: LedgerState) -> dict[str, Backlog]:
    """Return the backlog of each writer that ever sent, as `state` has the ledger. Raises Damaged, Unavailable."""
    senders = sorted(one.writer for one in state.meta if one.key == SENDER)
    if not senders:
        return {}
    held = {reader: file.subscription for reader, file in newest_files(list_subscriptions(log.store).files).items()}
    return {writer: _backlog(log, writer, held.get(f"{OUTPUTS}{writer}"), state) for writer in senders}


def _backlog(log: Log, writer: str, held: Subscription | None, state: LedgerState) -> Backlog:
    if held is not None and (held.identity != log.descriptor.identity or held.ended == PUBLISHED):
        held = None
    ledger = log.descriptor.identity.ledger_topic_id
    found = log.kafka.published(outputs_group(log.name, writer), log.ledger_topic, 0)
    stored = StoredPlace.of(found.offset, found.text, ledger)
    places = [] if stored is None else [stored.place.position]
    places += [] if held is None else [held.position]
    after = min(max(places, default=state.position), state.position)
    return Backlog(after, count_outputs(log, writer, after, state.position, held))
