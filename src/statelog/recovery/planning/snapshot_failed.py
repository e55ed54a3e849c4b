"""`SnapshotFailed`: a run of a snapshot cannot be read; the recovery falls back if it can. Pure."""

from statelog.errors import CorruptRun, NotFound

__all__ = ["SnapshotFailed"]


class SnapshotFailed(Exception):
    """A run of the snapshot cannot be read; `error` is what callers get if there is no way around it.

    `is_copy` says that it was a local copy: to read the run once more may succeed, and the snapshot is not to blame.
    """

    def __init__(self, error: CorruptRun | NotFound) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_copy = False
