"""Merges runs of a draft until no tier is full, as a stream of row groups, in bounded memory.

Which runs to merge is decided in `schemas.snapshot.retention`; how rows are merged, in `storage.runs.merge`.

Invariants:
- Only neighbours merge, and the merged run covers exactly their ledger range.
- A delete vanishes only in a merge that starts at the first run.
- A merged run's values have the newest schema.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa

from statelog.materializer.round.delta import to_schema
from statelog.materializer.round.draft import Draft
from statelog.schemas.snapshot.manifest import RunRef
from statelog.schemas.snapshot.retention import choose_merge, drops_deletes
from statelog.storage.log.log import Log
from statelog.storage.runs.merge import merge_streams
from statelog.storage.runs.read import RunReader

__all__ = ["merge_runs"]


def merge_runs(log: Log, draft: Draft, fanout: int) -> int:
    """Merge runs of the draft until `choose_merge` finds nothing more to do. Returns how many went into others.

    Raises CorruptRun, NotFound (a run was deleted meanwhile: the manifest is no longer the newest), Unavailable.
    """
    merged = 0
    while (chosen := choose_merge(draft.runs, fanout)) is not None:
        merged += len(draft.runs[chosen])
        draft.replace(chosen, _merge(log, draft, chosen))
    return merged


def _merge(log: Log, draft: Draft, chosen: slice) -> RunRef:
    runs = draft.runs[chosen]
    with ExitStack() as opened:
        readers = [opened.enter_context(draft.open(run)) for run in runs]
        streams = [_converted(log, draft, reader, run) for reader, run in zip(readers, runs, strict=True)]
        return draft.write(
            merge_streams(streams, drop_deletes=drops_deletes(chosen)),
            start_position=runs[0].start_position,
            end_position=runs[-1].end_position,
            level=1 + max(run.level for run in runs),
        )


def _converted(log: Log, draft: Draft, reader: RunReader, run: RunRef) -> Iterator[pa.Table]:
    for table in reader.tables():
        yield to_schema(log, table, run.value_schema_id, draft.schema)
