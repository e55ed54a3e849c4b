"""A mark: how far an input was read, and a digest of what was read. It travels in the metadata of every commit. Pure.

So a run that was killed resumes right behind its last commit, and only on the input that it had begun with.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from statelog.errors import CheckpointMismatch

__all__ = ["InputMark", "mark_of", "other_input"]

_ROWS, _BYTES, _DIGEST, _KIND, _MAPPING = "input.rows", "input.bytes", "input.sha256", "input.kind", "input.mapping"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputMark:
    """`rows` were read, which are the first `size_bytes` of the input; `digest` is their SHA-256 in hex.

    A Parquet file cannot grow, so there the bytes and the digest are those of the whole file. `mapping` says how rows
    became changes.
    """

    kind: str
    mapping: str
    rows: int = 0
    size_bytes: int = 0
    digest: str = ""

    def to_metadata(self) -> dict[str, str]:
        """As a commit carries it."""
        return {
            _ROWS: str(self.rows),
            _BYTES: str(self.size_bytes),
            _DIGEST: self.digest,
            _KIND: self.kind,
            _MAPPING: self.mapping,
        }


def mark_of(metadata: Mapping[str, str], writer: str) -> InputMark:
    """The mark in a commit's metadata. Raises CheckpointMismatch if another program than `append` committed it."""
    try:
        return InputMark(
            kind=metadata[_KIND],
            mapping=metadata[_MAPPING],
            rows=int(metadata[_ROWS]),
            size_bytes=int(metadata[_BYTES]),
            digest=metadata[_DIGEST],
        )
    except (KeyError, ValueError):
        raise CheckpointMismatch(
            "the last commit of this writer does not come from `statelog append`",
            writer=writer,
            hint="Choose another name with --writer",
        ) from None


def other_input(reason: str, mark: InputMark, **facts: str | int) -> CheckpointMismatch:
    """The error of an input that is not the one that was begun."""
    return CheckpointMismatch(
        f"this is not the input that this writer has begun: {reason}",
        hint="Give it the same input again, or choose another name with --writer for another input",
        committed_rows=mark.rows,
        **facts,
    )
