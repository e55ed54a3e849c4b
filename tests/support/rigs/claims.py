"""A subscription that reports whether its lease is effective."""

from statelog.log import Log
from statelog.reading.claims import HeldSubscription
from statelog.schemas.snapshot.claims import Subscription

__all__ = ["SureSubscription"]


class SureSubscription(HeldSubscription):
    """`is_sure`: whether no truncation that was decided before the first file was written can pass it.

    A round drops the manifests that it does not retain before it checks what holds truncation. So while one at or below
    our position still exists, no round that checked before our write truncates above it. If there is none at all, no
    round has checked.
    """

    def __init__(self, log: Log, reader: str, *, holder_id: str, holder: str) -> None:
        super().__init__(log, reader, holder_id=holder_id, holder=holder)
        self._manifests = log.manifests
        self.is_sure = False

    def _check_start(self, written: Subscription) -> None:
        listed = self._manifests.listed()
        oldest = self._manifests.find(min(listed)) if listed else None
        self.is_sure = not listed or (oldest is not None and oldest.position <= written.position)
        super()._check_start(written)
