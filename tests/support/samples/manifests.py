"""Small whole manifests, for tests that name one behaviour."""

from dataclasses import replace

from statelog.schemas.ledger.handle import Checkpoint
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.ledger.state import LedgerState, LiveEpoch, MetaRecord, PartitionState, WriterState
from statelog.schemas.snapshot.manifest import Anchor, Manifest, next_manifest
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.snapshot.runs import RowGroupSpan, RunIndex

__all__ = ["IDENTITY", "first_manifest", "run_ref", "second_manifest", "state_at"]

IDENTITY = LogIdentity(cluster_id="cluster", data_topic_id="data", ledger_topic_id="ledger")


def run_ref(name: str, start: int, end: int, size_bytes: int = 1000) -> RunRef:
    """Return a run over these ledger positions."""
    spans = (RowGroupSpan(0, 3, 7, 4, 500, (1 << 64) - 1), RowGroupSpan(3, 9, 5, 504, 400, 2))
    return RunRef(
        path=f"runs/{name}.parquet",
        start_position=start,
        end_position=end,
        level=0,
        rows=12,
        size_bytes=size_bytes,
        sha256=bytes(range(32)),
        value_schema_id=1,
        index=RunIndex(row_groups=spans, footer_offset=904, footer_checksum=3),
    )


def state_at(position: int, **offsets: int) -> LedgerState:
    """Return a folded ledger at `position`, with committed positions given as p0=..., p1=..."""
    partitions = tuple(PartitionState(int(name[1:]), 0, offset) for name, offset in sorted(offsets.items()))
    return LedgerState(
        position=position,
        writers=(WriterState("ingest", 0, Checkpoint(4, b"n" * 16), position - 1, {"offset": "17"}),),
        partitions=partitions,
        live=(LiveEpoch(0, "ingest", b"n" * 16, frozenset({0, 1})),),
        meta=(MetaRecord("ingest", "serializer", b"\x00\xff"),),
        accepted=(LossRange(1, 2, 3),),
    )


def first_manifest() -> Manifest:
    """Return number 1, at position 5, with one run."""
    return next_manifest(
        None,
        nonce=b"m" * 16,
        identity=IDENTITY,
        state=state_at(5, p0=9, p1=4),
        anchors=[Anchor("data", 0, 8, (1 << 64) - 1), Anchor("data", 1, 3, 0), Anchor("ledger", 0, 4, 77)],
        runs=[run_ref("one", 0, 5)],
        created_s=1_700_000_000.25,
    )


def second_manifest() -> Manifest:
    """Return number 2, at position 8, with the first one's run and a new one."""
    first = first_manifest()
    return next_manifest(
        first,
        nonce=b"o" * 16,
        identity=IDENTITY,
        state=state_at(8, p0=12, p1=4),
        anchors=[],
        runs=[*first.runs, replace(run_ref("two", 5, 8), value_schema_id=2)],
        created_s=1_700_000_600.0,
    )
