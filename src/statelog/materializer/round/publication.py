"""Publishes a round beside the group offset for Kafka's lag tools, and sees whether another root published last.

Invariants:
- What was published only ever holds cleanup back. Where it is missing, or cannot be read, the round goes on.
- Who holds back does not publish: the other root's publication stands until a person claims this one.
"""

from statelog.errors import StatelogError
from statelog.materializer.round.kept_manifests import KeptManifests
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.publication import Publication, why_not_ours
from statelog.storage.log.log import Log

__all__ = ["claim_root", "other_root", "publish"]


def claim_root(log: Log) -> None:
    """From now on the root of this `log` is the log's: materializers on a copy of it, or on the one that it was copied
    from, truncate no more. Stop them first: a round that is under way there may still truncate.

    Raises ConfigError without the right to, Damaged, Unavailable.
    """
    log.verify()
    newest = log.manifests.newest()
    _publish(log, newest.manifest if newest else None)


def publish(log: Log, manifest: Manifest) -> str:
    """Publish a manifest and its position; why that failed, or an empty string."""
    try:
        _publish(log, manifest)
    except StatelogError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def other_root(log: Log, own: Manifest, known: KeptManifests) -> str:
    """Why another root than this one may be the log's, or an empty string. `own` was just put."""
    try:
        text = log.kafka.published(_group(log), log.ledger_topic, 0)
    except StatelogError:
        return ""  # A right that is missing, say: to publish fails, too, and says why.
    found = Publication.from_text(text)
    if found is None:
        return ""
    listed = log.manifests.listed()
    there = [one.manifest for one in known.read(log.manifests, listed, {found.number})]
    return why_not_ours(found, _ours(log, own), max(listed), there[0] if there else None)


def _publish(log: Log, manifest: Manifest | None) -> None:
    position = manifest.position if manifest else 0
    log.kafka.publish_offset(_group(log), log.ledger_topic, 0, position, _ours(log, manifest).to_text())


def _ours(log: Log, manifest: Manifest | None) -> Publication:
    number, nonce = (manifest.number, manifest.nonce.hex()) if manifest else (0, "")
    return Publication(log.descriptor.identity.ledger_topic_id, number, nonce, log.store.url)


def _group(log: Log) -> str:
    return f"statelog.{log.name}.materializer"
