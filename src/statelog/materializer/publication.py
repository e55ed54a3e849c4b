"""What a round publishes beside the group offset, for Kafka's lag tools: it shows whether another root published last.

Invariants:
- What was published only ever holds cleanup back: where it is missing, or cannot be read, the round goes on. A round
  that holds back does not publish: the other root's publication stands until a person claims this one.
"""

from collections.abc import Mapping

from statelog.errors import StatelogError
from statelog.log import Log
from statelog.log.log import check_log
from statelog.materializer.cleanup import VerifiedRuns
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.retention import Publication, why_not_ours
from statelog.schemas.topic_policy import ROUND
from statelog.store.port import FileInfo


def claim_root(log: Log) -> None:
    """From now on the root of this `log` is the log's: materializers on a copy of it, or on the one that it was copied
    from, truncate no more. Stop them first: a round that is under way there may still truncate.

    Raises ConfigError without the right to, Damaged, Unavailable.
    """
    check_log(log)
    log.verify(ROUND)
    _publish(log, log.manifests.newest())


def publish(log: Log, manifest: Manifest) -> str:
    """Publish a manifest and its position; why that failed, or an empty string."""
    try:
        _publish(log, manifest)
    except StatelogError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def published(log: Log) -> Publication | None:
    """What a round published last, of this root or another one, as far as that can be known."""
    try:
        return Publication.from_text(log.kafka.published(_group(log), log.ledger_topic, 0))
    except StatelogError:
        return None  # A right that is missing, say: to publish fails, too, and says why.


def other_root(
    log: Log, own: Manifest, found: Publication | None, listed: Mapping[int, FileInfo], verified: VerifiedRuns
) -> str:
    """Why another root than this one may be the log's, or an empty string. `own` was just put; `found` was published
    before the manifests were `listed`, or what it names may be missing there.
    """
    if found is None:
        return ""
    there = _in_chain(log, own, verified, listed, found.number)
    return why_not_ours(found, _ours(log, own), max(listed), there)


def _in_chain(
    log: Log, own: Manifest, verified: VerifiedRuns, listed: Mapping[int, FileInfo], number: int
) -> Manifest | None:
    """The manifest of this number in the chain of `own`; None if it is gone, or below `own` and the next shows no link.

    A round that slept may have taken a slot that was cleaned up long ago. What it put belongs to no chain, and its
    number may be the one that another round, which slept as long, publishes last.
    """
    known = {one.number: one for one in verified.manifests(log.manifests, listed, {number, number + 1})}
    there, following = known.get(number), known.get(number + 1)
    if there is None or number >= own.number:  # No slot from ours on was cleaned up.
        return there
    is_linked = following is not None and following.previous_sha256 == there.sha256
    return there if is_linked else None


def _publish(log: Log, manifest: Manifest | None) -> None:
    position = manifest.position if manifest else 0
    log.kafka.publish_offset(_group(log), log.ledger_topic, 0, position, _ours(log, manifest).to_text())


def _ours(log: Log, manifest: Manifest | None) -> Publication:
    number, nonce = (manifest.number, manifest.nonce.hex()) if manifest else (0, "")
    return Publication(log.descriptor.identity.ledger_topic_id, number, nonce, log.store.url)


def _group(log: Log) -> str:
    return f"statelog.{log.name}.materializer"
