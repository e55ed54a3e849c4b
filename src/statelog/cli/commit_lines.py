"""Commits as lines: what `statelog follow` prints of a state, a commit and its changes, for people or as JSON. Pure.

For people a commit's line comes first and its changes are indented below; as JSON each change is an object that says
which commit it is part of, and the commit's own object comes last: then all of it is there.
"""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from statelog.cli.screen.output import as_json, clean
from statelog.cli.state_rows import BytesText, json_column
from statelog.schemas.changes.changes import DELETE
from statelog.storage.ledger_client import ValidCommit

__all__ = ["CommitLines"]

_BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLines:
    """How lines are made: `with_groups` where callers name the key group of a key."""

    as_json: bool
    bytes_text: BytesText
    with_groups: bool

    def heading(self, commit: ValidCommit) -> str | None:
        """What comes before a commit's changes."""
        if self.as_json:
            return None
        told = f", {as_json(dict(commit.metadata))}" if commit.metadata else ""
        time = f", {_time(commit.timestamp_ms)}" if commit.timestamp_ms >= 0 else ""
        return clean(f"commit {commit.checkpoint_id} of {commit.writer}{time}, position {commit.position}{told}")

    def closing(self, commit: ValidCommit, changes: int) -> str | None:
        """What comes behind a commit's changes, of which so many were printed."""
        if not self.as_json:
            return None
        return as_json(
            {
                "event": "commit",
                **_whose(commit),
                "time": _time(commit.timestamp_ms) if commit.timestamp_ms >= 0 else None,
                "changes": changes,
                "metadata": dict(commit.metadata),
            }
        )

    def state_heading(self, position: int) -> str | None:
        """What comes before the keys of a state."""
        return None if self.as_json else f"state at position {position}"

    def state_closing(self, position: int, keys: int) -> str | None:
        """What comes behind the keys of a state."""
        return as_json({"event": "state", "position": position, "keys": keys}) if self.as_json else None

    def changes(self, table: pa.Table, commit: ValidCommit | None) -> Iterator[str]:
        """The lines of changes, many in one text; `commit` is None for the keys of a state."""
        facts = {} if commit is None else _whose(commit)
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            yield "\n".join(self._change_lines(batch, facts))

    def _change_lines(self, batch: pa.RecordBatch, facts: Mapping[str, object]) -> Iterator[str]:
        bytes_text = self.bytes_text if self.as_json or self.bytes_text is BytesText.BASE64 else None
        ops = ["delete" if op == DELETE else "put" for op in batch.column("op").to_pylist()]
        groups = batch.column("key_group").to_pylist()
        keys = json_column(batch.column("key"), bytes_text)
        values = json_column(batch.column("value"), bytes_text)
        for op, group, key, value in zip(ops, groups, keys, values, strict=True):
            shown = ([group] if self.with_groups else []) + [key] + ([] if op == "delete" else [value])
            if self.as_json:
                names = (["key_group"] if self.with_groups else []) + ["key", "value"]
                yield as_json({"event": op, **dict(zip(names, shown, strict=False)), **facts})
            else:
                yield clean(f"  {op} {' '.join(map(_text, shown))}").replace("\n", "\\n")


def _whose(commit: ValidCommit) -> dict[str, object]:
    return {"writer": commit.writer, "checkpoint": commit.checkpoint_id, "position": commit.position}


def _time(timestamp_ms: int) -> str:
    return datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")


def _text(value: object) -> str:
    return value if isinstance(value, str) else as_json(value)
