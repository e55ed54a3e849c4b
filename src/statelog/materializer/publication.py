"""The publication of a round, stored with the group offset for Kafka's lag tools. It shows which root published last.

Invariants:
- A publication can only hold cleanup back: if it is missing or unreadable, the round continues.
- A round that holds cleanup back does not publish: the other root's publication remains until a person claims this one.
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
    """Claim the log for the root of this `log`: materializers on any other copy of the root stop truncating.

    Stop them first: a round in flight there may still truncate. Raises ConfigError if rights are missing, Damaged,
    Unavailable.
    """
    check_log(log)
    log.verify(ROUND)
    _publish(log, log.manifests.newest())


def publish(log: Log, manifest: Manifest) -> str:
    """Publish a manifest and its position. Return why that failed, or an empty string."""
    try:
        _publish(log, manifest)
    except StatelogError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def published(log: Log) -> Publication | None:
    """Return the last publication, of this root or another one; None if it is missing or unreadable."""
    try:
        return Publication.from_text(log.kafka.published(_group(log), log.ledger_topic, 0).text)
    except StatelogError:
        return None  # For example a missing right: publishing then fails, too, and reports why.


def other_root(
    log: Log, own: Manifest, found: Publication | None, listed: Mapping[int, FileInfo], verified: VerifiedRuns
) -> str:
    """Return why another root than this one may be the log's, or an empty string.

    own     the manifest that was just put
    found   the last publication, read before `listed`: else its manifest could be missing there
    listed  the manifests
    """
    if found is None:
        return ""
    there = _in_chain(log, own, verified, listed, found.number)
    return why_not_ours(found, _ours(log, own), max(listed), there)


def _in_chain(
    log: Log, own: Manifest, verified: VerifiedRuns, listed: Mapping[int, FileInfo], number: int
) -> Manifest | None:
    """Return the manifest of this number in the chain of `own`; None if it is missing or not linked to the next one.

    A round that stalled may have put its manifest into a slot that was cleaned up long ago. Such a manifest belongs to
    no chain, but another round that stalled as long may publish the same number last.
    """
    known = {one.number: one for one in verified.manifests(log.manifests, listed, {number, number + 1})}
    there, following = known.get(number), known.get(number + 1)
    if there is None or number >= own.number:  # Slots from ours on were never cleaned up.
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
