"""The bytes of every released version of every format are still read, with the same contents.

`tests/support/samples/released/<format>-<version>.bin` were written by the code of their time and are never written
again. A new version adds a file; a test here fails until it does.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from statelog.schemas.changes import chunk
from statelog.schemas.changes.changes import DELETE, PUT, change_schema
from statelog.schemas.descriptor import FORMAT_VERSION as DESCRIPTOR_VERSION
from statelog.schemas.descriptor import Descriptor, HashRule, ValueFormat
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger import records as ledger
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.place import Place
from statelog.schemas.names import DESCRIPTOR_PATH, MANIFESTS, lease_path, subscription_path
from statelog.schemas.snapshot.claims import Lease, Subscription
from statelog.schemas.snapshot.manifest import FORMAT_VERSION as MANIFEST_VERSION
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.runs import FORMAT_VERSION as RUN_VERSION
from statelog.schemas.snapshot.runs import RowGroupSpan, RunFile, RunIndex
from statelog.schemas.topic_policy import Truncation, TruncationMode
from statelog.store.run_reader import RunReader
from tests.support.samples.chunks import chunk_of, rows_batch
from tests.support.samples.folds import rows_of
from tests.support.samples.format_examples import EXAMPLES
from tests.support.samples.outputs import outputs_in
from tests.support.samples.runs import LABEL, label_of, table_of, timed_rows

_SAMPLES = Path(__file__).parents[2] / "support" / "samples"
_ROWS = rows_batch([(4, PUT, b"a", b"1"), (4, DELETE, b"b", None), (9, PUT, b"c", b"")])
_TIMED_ROWS = rows_batch(rows_of(_ROWS), dues=[1_900_000_000_000, None, None])
_DESCRIPTOR: Descriptor = EXAMPLES["descriptor"].value  # type: ignore[assignment]  # an example is of any type
_OPEN: ledger.Open = EXAMPLES["open"].value  # type: ignore[assignment]  # the same
_COMMIT: ledger.Commit = EXAMPLES["commit"].value  # type: ignore[assignment]  # the same
_DUE_COMMIT: ledger.Commit = EXAMPLES["due-commit"].value  # type: ignore[assignment]  # the same
_NO_WITNESS = struct.pack("<qq8x", 0, -1)

_read_descriptor = partial(Descriptor.from_bytes, path=DESCRIPTOR_PATH)


def _read_chunk(data: bytes) -> object:
    found = chunk.decode_head(data)
    assert found is not None
    head, at = found
    assert (head.epoch, head.sqn, head.index, head.witness) == (7, 3, 2, 11)
    return chunk.decode_batches(chunk.VerifiedChunks.of(data, head, at), change_schema(KeyType.BYTES))


def _file_version(data: bytes) -> int:
    found = re.search(rb"statelog\.format.(\d+)", data, re.DOTALL)
    assert found is not None
    return int(found[1])


_READ: dict[str, tuple[Callable[[bytes], object], object]] = {
    "mark-1": (ledger.decode, EXAMPLES["mark"].value),
    "open-1": (ledger.decode, replace(_OPEN, witness=Place(1, None))),
    "open-2": (ledger.decode, _OPEN),
    "commit-1": (ledger.decode, replace(_COMMIT, packed_witness=_NO_WITNESS)),
    "commit-2": (ledger.decode, _COMMIT),
    "commit-3": (ledger.decode, EXAMPLES["inline-commit"].value),
    "commit-4": (ledger.decode, _DUE_COMMIT),
    "commits-1": (ledger.decode, EXAMPLES["commits"].value),
    "commits-2": (ledger.decode, ledger.Commits((_COMMIT, _DUE_COMMIT))),
    "accept-loss-1": (ledger.decode, EXAMPLES["accept-loss"].value),
    "restart-1": (ledger.decode, EXAMPLES["restart"].value),
    "handle-1": (Handle.from_bytes, EXAMPLES["handle"].value),
    "handle-2": (Handle.from_bytes, EXAMPLES["output-handle"].value),
    "output-chunk-1": (outputs_in, EXAMPLES["output-chunk"].value),
    "chunk-1": (_read_chunk, _ROWS),
    "chunk-2": (_read_chunk, _ROWS),
    "chunk-3": (_read_chunk, _TIMED_ROWS),
    "descriptor-1": (_read_descriptor, _DESCRIPTOR),
    "descriptor-2": (_read_descriptor, replace(_DESCRIPTOR, hash_rule=HashRule.CRC32_PREFIX, prefix_bytes=3)),
    "descriptor-3": (_read_descriptor, replace(_DESCRIPTOR, record_bytes_max=8 << 20)),
    "descriptor-4": (_read_descriptor, replace(_DESCRIPTOR, value_type=ValueFormat.JSON)),
    "descriptor-5": (_read_descriptor, replace(_DESCRIPTOR, ttl_s=600.0)),
    "manifest-2": (partial(Manifest.from_bytes, path=MANIFESTS.path(1)), EXAMPLES["manifest"].value),
    "manifest-3": (partial(Manifest.from_bytes, path=MANIFESTS.path(1)), EXAMPLES["timed-manifest"].value),
    "lease-1": (partial(Lease.from_bytes, path=lease_path("r")), EXAMPLES["lease"].value),
    "subscription-1": (
        partial(Subscription.from_bytes, path=subscription_path("r", 2)),
        EXAMPLES["subscription"].value,
    ),
    "truncation-1": (
        partial(Truncation.from_bytes, path="truncation/1.avro"),
        (_DESCRIPTOR.digest, Truncation(TruncationMode.RETENTION, 7)),
    ),
}


@pytest.mark.parametrize("name", list(_READ))
def test_its_bytes_are_read(name: str) -> None:
    """Today's code reads the contents that were written in that version."""
    read, written = _READ[name]
    assert read((_SAMPLES / "released" / f"{name}.bin").read_bytes()) == written


def test_a_run_is_read() -> None:
    """A Parquet file of the first format is read by the index of its manifest."""
    groups = (
        RowGroupSpan(4, 5, rows=2, offset=4, size_bytes=230, checksum=11595587170323974560),
        RowGroupSpan(9, 10, rows=1, offset=234, size_bytes=217, checksum=15383913918799709654),
    )
    index = RunIndex(row_groups=groups, footer_offset=451, footer_checksum=6139154511161193387)
    path = _SAMPLES / "released" / "run-1.bin"
    digest = bytes.fromhex("3006dbce1cc5b8bd4e44e5dc0b0c5c335fbb5d1f60c01b2980d00b5fd52ef199")
    run = RunFile(path="runs/r.parquet", size_bytes=1978, rows=3, sha256=digest, index=index)
    with RunReader(path.open("rb"), run) as reader:
        reader.verify()
        assert label_of(reader.footer) == LABEL.to_parquet()
        assert table_of(reader).to_pydict() == _ROWS.to_pydict()


def test_a_run_with_dues_is_read() -> None:
    """A Parquet file of the second format has the column `due`."""
    groups = (
        RowGroupSpan(4, 5, rows=2, offset=4, size_bytes=317, checksum=12684436686811413546),
        RowGroupSpan(9, 10, rows=1, offset=321, size_bytes=256, checksum=5313286602267479663),
    )
    index = RunIndex(row_groups=groups, footer_offset=577, footer_checksum=5596011787226257098)
    path = _SAMPLES / "released" / "run-2.bin"
    digest = bytes.fromhex("d5e09a57835d95760ea0e47bc041a791ac9c8fbf4647445b04513a98d175f581")
    due_ms = 1_900_000_000_000
    facts: dict[str, int] = {"due_rows": 1, "first_due_ms": due_ms, "last_due_ms": due_ms}
    run = RunFile(path="runs/r.parquet", size_bytes=2354, rows=3, sha256=digest, index=index, **facts)
    with RunReader(path.open("rb"), run) as reader:
        reader.verify()
        assert label_of(reader.footer) == LABEL.to_parquet(due=True)
        assert timed_rows(table_of(reader)) == [
            (4, PUT, b"a", b"1", due_ms),
            (4, DELETE, b"b", None, None),
            (9, PUT, b"c", b"", None),
        ]


def test_no_version_lacks_its_bytes() -> None:
    """Each version that the code knows has its bytes, and the table of readers names all of them."""
    prefixed = ("mark", "open", "commit", "commits", "accept-loss", "restart", "output-chunk")
    newest = {
        **{name: EXAMPLES[name].data[4] for name in prefixed},
        "handle": EXAMPLES["output-handle"].data[4],
        "commit": EXAMPLES["due-commit"].data[4],
        "commits": ledger.encode(ledger.Commits((_DUE_COMMIT,)))[4],
        **{name: _file_version(EXAMPLES[name].data) for name in ("lease", "subscription")},
        "truncation": _file_version(Truncation().to_bytes(bytes(32))),
        "chunk": chunk_of(_TIMED_ROWS).value[4],
        "descriptor": DESCRIPTOR_VERSION,
        "manifest": MANIFEST_VERSION,
        "run": RUN_VERSION,
    }
    wanted = {f"{name}-{version}" for name, last in newest.items() for version in range(1, last + 1)}
    there = {path.stem for path in (_SAMPLES / "released").iterdir()}
    elsewhere = {"manifest-1"}  # for the tests of manifests, which read it
    assert there | elsewhere == wanted
    assert {*_READ, "run-1", "run-2", *elsewhere} == wanted
    assert all((_SAMPLES / f"{name}.avro").is_file() for name in elsewhere)
