"""Publications: what a round leaves beside its group offset: the manifest that it put, and at which root. Pure.

A copy of a root has all that the log's own has, and the same topics: what both see is Kafka alone. So a round that
finds a publication of another chain removes nothing. That is all it is good for: it is never the truth about a log.
"""

import json
from dataclasses import asdict, dataclass

from statelog.schemas.snapshot.manifest import Manifest

__all__ = ["Publication", "why_not_ours"]

_WAY_OUT = "if the log's root is {url}, stop the materializers of any other, and claim it (--claim-root, claim_root)"


@dataclass(frozen=True, slots=True)
class Publication:
    """Manifest `number` (0: none yet) with this nonce, in hex, lies at the root `url`. `ledger` is the topic's id."""

    ledger: str
    number: int
    nonce: str
    url: str

    def to_text(self) -> str:
        """As Kafka keeps it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Publication | None":
        """Read it again; None if it is none."""
        try:
            found = cls(**json.loads(text))
        except (ValueError, TypeError):
            return None
        is_whole = type(found.number) is int and all(type(one) is str for one in (found.ledger, found.nonce, found.url))
        return found if is_whole else None


def why_not_ours(published: Publication, ours: Publication, newest: int, there: Manifest | None) -> str:
    """Why what was published last is not of the chain that `ours` belongs to, or an empty string.

    `newest` is the chain's newest number, and `there` its manifest of the published number, if it still has one.
    """
    if published.ledger != ours.ledger:
        return ""  # Of topics that the log had before.
    way_out = _WAY_OUT.format(url=ours.url)
    if published.url != ours.url:
        return f"the last round was published from another root, {published.url}, and this may be a copy: {way_out}"
    if published.number > newest:
        return (
            f"manifest {published.number} was published, and is not here: the store went back, or is a copy: {way_out}"
        )
    if there is not None and there.nonce.hex() != published.nonce:
        return f"another manifest {published.number} was published than the one here, so this may be a copy: {way_out}"
    return ""
