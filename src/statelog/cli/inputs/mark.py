"""A mark: how far an input was read, with a digest of what was read. Every commit carries it as metadata. Pure.

So a run that was killed resumes right behind its last commit, and only on the input that it had begun with.
"""

from dataclasses import dataclass

from statelog.errors import CheckpointMismatch
from statelog.schemas.ledger.metadata import Metadata

__all__ = ["InputMark", "mark_of", "other_input"]


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

    def to_metadata(self) -> dict[str, str | int]:
        """As a commit carries it."""
        return {
            "input.rows": self.rows,
            "input.bytes": self.size_bytes,
            "input.sha256": self.digest,
            "input.kind": self.kind,
            "input.mapping": self.mapping,
        }


def mark_of(metadata: Metadata, writer: str) -> InputMark:
    """The mark in a commit's metadata. Raises CheckpointMismatch if another program than `append` committed it."""
    match metadata:
        case {
            "input.kind": str(kind),
            "input.mapping": str(mapping),
            "input.rows": int(rows),
            "input.bytes": int(size_bytes),
            "input.sha256": str(digest),
        }:
            return InputMark(kind=kind, mapping=mapping, rows=rows, size_bytes=size_bytes, digest=digest)
        case _:
            raise CheckpointMismatch(
                "the last commit of this writer does not come from `statelog append`",
                writer=writer,
                hint="Choose another name with --writer",
            )


def other_input(reason: str, mark: InputMark, **facts: str | int) -> CheckpointMismatch:
    """The error of an input that is not the one that was begun."""
    return CheckpointMismatch(
        f"this is not the input that this writer started with: {reason}",
        hint="Give it the same input again, or choose another name with --writer",
        committed_rows=mark.rows,
        **facts,
    )
