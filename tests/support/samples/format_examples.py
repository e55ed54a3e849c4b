"""The worked examples of the format documents."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from statelog.producer.change_set import carried_of
from statelog.producer.committer import Cargo
from statelog.schemas.avro import RecordCodec
from statelog.schemas.changes.changes import DELETE, PUT
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger import records as ledger
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint, Entry, Handle, Step
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.records import AcceptLoss, Commit, Commits, LossRange, Mark, Open, Restart
from statelog.schemas.ledger.state import LedgerState, LiveEpoch, PartitionState, WriterState
from statelog.schemas.names import DESCRIPTOR_PATH, MANIFESTS, lease_path, subscription_path
from statelog.schemas.outputs.chunk import encode_output_chunk
from statelog.schemas.outputs.output import Output
from statelog.schemas.snapshot.claims import Lease, Subscription
from statelog.schemas.snapshot.manifest import Anchor, Manifest, next_manifest
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.snapshot.runs import RowGroupSpan, RunIndex
from tests.support.samples.chunks import rows_batch
from tests.support.samples.outputs import outputs_in

__all__ = ["EXAMPLES", "Example"]

_IDENTITY = LogIdentity(cluster_id="C", data_topic_id="D", ledger_topic_id="L")
_NONCE = bytes(range(16))


class Example(NamedTuple):
    """A value, its bytes, and the function that reads them."""

    document: str
    value: object
    data: bytes
    schema_text: bytes  # part of a file, and left out of its dump; b"" in a Kafka record
    decode: Callable[[bytes], object]


def _handle() -> Handle:
    entry = Entry(1, 1, 2, 30, 4096, 7, 9, 0x1122334455667788, b"\x05")
    step = Step(checkpoint_id=1, entries=(entry,))
    return Handle(identity=_IDENTITY, writer="w", epoch=1, nonce=_NONCE, base=NO_CHECKPOINT, steps=(step,))


def _commit() -> Commit:
    handle = _handle()
    return Commit.of(
        epoch=1,
        nonce=_NONCE,
        base=NO_CHECKPOINT,
        checkpoint=handle.checkpoint,
        metadata={"offset": 30},
        handles=[handle],
        witness=Place(2, LastRecord.of(1, ledger.encode(_open()))),
    )


def _inline_commit() -> Commit:
    rows = [(65, PUT, b"a", b"1"), (127, DELETE, b"b", None)]
    inline, batch = carried_of(rows_batch(rows), _descriptor(), 0)
    return Commit.of(
        epoch=1,
        nonce=_NONCE,
        base=Checkpoint(1, _NONCE),
        checkpoint=Checkpoint(2, _NONCE),
        metadata={"offset": 32},
        handles=[],
        witness=Place(3, LastRecord.of(2, ledger.encode(_commit()))),
        inline=inline,
        batch=batch,
    )


def _output() -> Output:
    return Output("t", b"v", b"k", (("h", None),))


def _output_handle() -> Handle:
    step = replace(_handle().steps[0], outputs=(Entry(1, 1, 2, 30, 4096, 9, 12, 0x1122334455667788, b"", (1,)),))
    return replace(_handle(), steps=(step,))


def _output_commit() -> Commit:
    return Commit.of(
        epoch=1,
        nonce=_NONCE,
        base=Checkpoint(1, _NONCE),
        checkpoint=Checkpoint(2, _NONCE),
        metadata={},
        handles=[],
        witness=Place(3, LastRecord.of(2, ledger.encode(_commit()))),
        **Cargo.of(None, [_output()])._asdict(),
    )


def _output_chunk() -> bytes:
    seen = Place(2, LastRecord.of(1, ledger.encode(_open())))
    return encode_output_chunk(
        epoch=1, nonce=_NONCE, sqn=1, index=0, witness=seen, key=_NONCE, outputs=[_output()]
    ).value


def _due_commit() -> Commit:
    inline, batch = carried_of(rows_batch([(65, PUT, b"a", b"1")], dues=[1_900_000_000_000]), _descriptor(), 0)
    return Commit.of(
        epoch=1,
        nonce=_NONCE,
        base=Checkpoint(2, _NONCE),
        checkpoint=Checkpoint(3, _NONCE),
        metadata={"offset": 33},
        handles=[],
        witness=Place(4, LastRecord.of(3, ledger.encode(_inline_commit()))),
        inline=inline,
        batch=batch,
    )


def _commits() -> Commits:
    return Commits((_commit(), _inline_commit()))


def _open() -> Open:
    seen = Place(1, LastRecord.of(0, ledger.encode(_mark())))
    return Open(
        writer="w", partitions=(1,), nonce=_NONCE, prior=-1, last=NO_CHECKPOINT, identity=_IDENTITY, witness=seen
    )


def _loss() -> AcceptLoss:
    return AcceptLoss(ranges=(LossRange(1, 7, 8),), reason="disk", operator="ann")


def _mark() -> Mark:
    return Mark(_descriptor().digest)


def _restart() -> Restart:
    return Restart(digest=_descriptor().digest, position=3, reason="disk", operator="ann")


def _manifest(*, due_rows: int = 0) -> Manifest:
    state = LedgerState(
        position=3,
        writers=(WriterState("w", 1, Checkpoint(1, _NONCE), 2, {"offset": 30}),),
        partitions=(PartitionState(1, 1, 9),),
        live=(LiveEpoch(1, "w", _NONCE, frozenset({1})),),
    )
    index = RunIndex(row_groups=(RowGroupSpan(64, 128, 30, 4, 800, 5),), footer_offset=804, footer_checksum=6)
    run = RunRef(
        path="runs/r1.parquet",
        start_position=0,
        end_position=3,
        level=0,
        rows=30,
        size_bytes=1200,
        sha256=bytes(32),
        value_schema_id=0,
        index=index,
        due_rows=due_rows,
        first_due_ms=1_800_000_000_000 if due_rows else 0,
        last_due_ms=1_800_003_600_000 if due_rows else 0,
    )
    anchors = [Anchor("data", 1, 8, 0x0102030405060708), Anchor("ledger", 0, 2, 9)]
    return next_manifest(
        None, nonce=_NONCE, identity=_IDENTITY, state=state, anchors=anchors, runs=[run], created_s=1.0
    )


def _descriptor() -> Descriptor:
    return Descriptor(
        name="orders",
        identity=_IDENTITY,
        partitions=2,
        key_groups=128,
        hash_rule=HashRule.CRC32,
        key_type=KeyType.STRING,
        value_schema_id=0,
        nonce=_NONCE,
    )


def _lease() -> Lease:
    return Lease(id="r", holder="ann", manifest_number=1, next_offsets={1: 9}, position=3, ttl_s=60.0, created_s=1000.0)


def _subscription() -> Subscription:
    return Subscription(
        reader="r",
        number=2,
        nonce=_NONCE,
        identity=_IDENTITY,
        holder_id="h",
        holder="ann",
        is_taken_up=True,
        position=3,
        next_offsets={0: 0, 1: 9},
        state=LedgerState(position=3, partitions=(PartitionState(1, 1, 9),)),
        anchor=LastRecord(2, 9),
        created_s=1000.0,
        moved_s=1060.0,
    )


def _schema_text(avsc: str) -> bytes:
    return RecordCodec(avsc).text.encode()


def _examples() -> dict[str, Example]:
    loss, opened, commit, inline, handle = _loss(), _open(), _commit(), _inline_commit(), _handle()
    due = _due_commit()
    mark, restart = _mark(), _restart()
    manifest, descriptor, lease, subscription = _manifest(), _descriptor(), _lease(), _subscription()
    timed = _manifest(due_rows=20)
    return {
        "open": Example("format-ledger", opened, ledger.encode(opened), b"", ledger.decode),
        "commit": Example("format-ledger", commit, ledger.encode(commit), b"", ledger.decode),
        "inline-commit": Example("format-ledger", inline, ledger.encode(inline), b"", ledger.decode),
        "due-commit": Example("format-ledger", due, ledger.encode(due), b"", ledger.decode),
        "commits": Example("format-ledger", _commits(), ledger.encode(_commits()), b"", ledger.decode),
        "mark": Example("format-ledger", mark, ledger.encode(mark), b"", ledger.decode),
        "restart": Example("format-ledger", restart, ledger.encode(restart), b"", ledger.decode),
        "accept-loss": Example("format-ledger", loss, ledger.encode(loss), b"", ledger.decode),
        "handle": Example("format-ledger", handle, handle.to_bytes(), b"", Handle.from_bytes),
        "output-handle": Example(
            "format-ledger", _output_handle(), _output_handle().to_bytes(), b"", Handle.from_bytes
        ),
        "output-commit": Example(
            "format-ledger", _output_commit(), ledger.encode(_output_commit()), b"", ledger.decode
        ),
        "output-chunk": Example("format-output", [_output()], _output_chunk(), b"", outputs_in),
        "manifest": Example(
            "format-manifest",
            manifest,
            manifest.to_bytes(),
            _schema_text("manifest-2"),
            partial(Manifest.from_bytes, path=MANIFESTS.path(1)),
        ),
        "timed-manifest": Example(
            "format-manifest",
            timed,
            timed.to_bytes(),
            _schema_text("manifest"),
            partial(Manifest.from_bytes, path=MANIFESTS.path(1)),
        ),
        "lease": Example(
            "format-manifest",
            lease,
            lease.to_bytes(),
            _schema_text("lease"),
            partial(Lease.from_bytes, path=lease_path("r")),
        ),
        "subscription": Example(
            "format-subscription",
            subscription,
            subscription.to_bytes(),
            _schema_text("subscription"),
            partial(Subscription.from_bytes, path=subscription_path("r", 2)),
        ),
        "descriptor": Example(
            "format-descriptor",
            descriptor,
            descriptor.to_bytes(),
            _schema_text("descriptor-1"),
            partial(Descriptor.from_bytes, path=DESCRIPTOR_PATH),
        ),
    }


EXAMPLES = _examples()
