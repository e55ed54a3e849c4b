"""Manifests: their file, their checks, and their chain."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from statelog.errors import CorruptManifest, UnknownFormat
from statelog.schemas.avro import RecordCodec
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.ledger.handle import NO_CHECKPOINT
from statelog.schemas.ledger.state import LedgerState, LiveEpoch, PartitionState, WriterState
from statelog.schemas.names import MANIFESTS
from statelog.schemas.snapshot.manifest import Anchor, Manifest, check_chain, next_manifest
from statelog.schemas.snapshot.run_ref import RunRef, stretched
from statelog.schemas.snapshot.runs import RowGroupSpan, RunFile, RunIndex
from tests.support.samples.chunks import mutations
from tests.support.samples.manifests import IDENTITY, first_manifest, run_ref, second_manifest, state_at


def _timed() -> Manifest:
    """Return the second manifest with dues in its second run, which gives the file the newest format."""
    manifest = second_manifest()
    timed = replace(manifest.runs[1], due_rows=2, first_due_ms=1_800_000_000_000, last_due_ms=1_800_000_000_001)
    return replace(manifest, runs=(manifest.runs[0], timed))


@pytest.mark.parametrize("manifest", [first_manifest(), second_manifest(), _timed()], ids=["first", "second", "timed"])
def test_a_manifest_survives_its_file(manifest: Manifest) -> None:
    """The file decodes to the manifest."""
    assert Manifest.from_bytes(manifest.to_bytes(), MANIFESTS.path(manifest.number)) == manifest


def test_an_empty_log_has_an_empty_manifest() -> None:
    """A ledger without one committed change needs no run, whatever its position."""
    manifest = replace(first_manifest(), state=LedgerState(position=3), runs=(), anchors=())
    assert Manifest.from_bytes(manifest.to_bytes(), MANIFESTS.path(1)) == manifest
    assert (manifest.position, manifest.next_offsets) == (3, {})


@pytest.mark.parametrize(("manifest", "avsc"), [(second_manifest(), "manifest-2"), (_timed(), "manifest")])
def test_every_mutation_of_the_file_is_refused(manifest: Manifest, avsc: str) -> None:
    """A flipped, missing or added byte is refused, except in the schema text, which is for other tools."""
    for damaged in mutations(manifest.to_bytes(), spare=RecordCodec(avsc).text.encode()):
        with pytest.raises((CorruptManifest, UnknownFormat)):
            Manifest.from_bytes(damaged, MANIFESTS.path(2))


def test_a_newer_format_is_unknown() -> None:
    """A file of a later version is an unknown format, and not damage."""
    newer = first_manifest().to_bytes().replace(b"statelog.format\x022", b"statelog.format\x024")
    with pytest.raises(UnknownFormat):
        Manifest.from_bytes(newer, MANIFESTS.path(1))


def test_a_manifest_in_another_slot_is_corrupt() -> None:
    """A file that was copied under another number is not that number's manifest."""
    with pytest.raises(CorruptManifest):
        Manifest.from_bytes(first_manifest().to_bytes(), MANIFESTS.path(2))


def test_the_state_has_the_schema_of_the_ledger_state() -> None:
    """`manifest.avsc` carries the whole of `ledger_state.avsc`, so that any Avro tool opens a manifest."""
    avsc = resources.files("statelog.schemas").joinpath("avsc")
    fields = json.loads(avsc.joinpath("manifest.avsc").read_text("utf-8"))["fields"]
    (state,) = (field["type"] for field in fields if field["name"] == "state")
    assert state == json.loads(avsc.joinpath("ledger_state.avsc").read_text("utf-8"))


def _with_run(**changes: Any) -> Callable[[], Manifest]:
    """Return a maker of the second manifest with a changed second run."""

    def make() -> Manifest:
        manifest = second_manifest()
        return replace(manifest, runs=(manifest.runs[0], replace(manifest.runs[1], **changes)))

    return make


def _with(**changes: Any) -> Callable[[], Manifest]:
    """Return a maker of the second manifest with changes."""
    return lambda: replace(second_manifest(), **changes)


def _with_state(**changes: Any) -> Callable[[], Manifest]:
    """Return a maker of the second manifest with a changed folded ledger."""
    return _with(state=replace(second_manifest().state, **changes))


def _split(
    first: range, second: range, *, start: int = 5, end: int = 8, spans: range | None = None, number: int = 0
) -> tuple[RunRef, ...]:
    """Return one run up to position 5, then two side by side.

    The second covers other positions, and one other row groups.
    """
    runs: list[RunRef] = []
    for i, (key_groups, positions) in enumerate([(first, (5, 8)), (second, (start, end))]):
        held = spans if spans is not None and i == number else key_groups
        index = RunIndex(
            row_groups=(RowGroupSpan(held.start, held.stop, 12, 4, 500, 1),), footer_offset=504, footer_checksum=3
        )
        made = replace(run_ref(f"s{i}", *positions), index=index)
        runs.append(replace(made, first_key_group=key_groups.start, end_key_group=key_groups.stop))
    return (run_ref("one", 0, 5), *runs)


WRITER = WriterState("ingest", 0, NO_CHECKPOINT, 3, {})
WRONG = {
    "number 0": _with(number=0),
    "no link": _with(previous_sha256=b""),
    "short link": _with(previous_sha256=b"x" * 31),
    "link in the first": _with(number=1),
    "short nonce": _with(nonce=b"x"),
    "no time": _with(created_s=float("nan")),
    "gap at the start": _with(runs=(run_ref("a", 1, 8),)),
    "gap between": _with(runs=(run_ref("a", 0, 3), run_ref("b", 4, 8))),
    "overlap": _with(runs=(run_ref("a", 0, 5), run_ref("b", 4, 8))),
    "newest first": _with(runs=(run_ref("b", 5, 8), run_ref("a", 0, 5))),
    "short of the position": _with(runs=(run_ref("a", 0, 7),)),
    "beyond the position": _with(runs=(run_ref("a", 0, 9),)),
    "no runs": _with(runs=()),
    "the same run twice": _with(runs=(run_ref("a", 0, 5), run_ref("a", 5, 8))),
    "run elsewhere": _with_run(path="schemas/1.avsc"),
    "run outside": _with_run(path="runs/../../other/runs/a.parquet"),
    "run in a folder": _with_run(path="runs/a/b.parquet"),
    "run of dots": _with_run(path="runs/...parquet"),
    "run without a name": _with_run(path="runs/.parquet"),
    "run with a tail": _with_run(path="runs/a.parquet\n"),
    "a key group left out": _with(runs=_split(range(10), range(11, MAX_KEY_GROUPS))),
    "a key group twice": _with(runs=_split(range(10), range(9, MAX_KEY_GROUPS))),
    "the last key groups left out": _with(runs=_split(range(10), range(10, 128))),
    "the first key groups left out": _with(runs=_split(range(1, 10), range(10, MAX_KEY_GROUPS))),
    "a gap in one key group": _with(runs=_split(range(10), range(10, MAX_KEY_GROUPS), start=6)),
    "a key group short of the position": _with(runs=_split(range(10), range(10, MAX_KEY_GROUPS), end=7)),
    "higher key groups first": _with(runs=_split(range(10, MAX_KEY_GROUPS), range(10))),
    "no key groups": _with_run(first_key_group=9, end_key_group=9),
    "a negative key group": _with_run(first_key_group=-1),
    "key groups beyond all": _with_run(end_key_group=MAX_KEY_GROUPS + 1),
    "row groups above its key groups": _with(runs=_split(range(8), range(8, MAX_KEY_GROUPS), spans=range(9))),
    "row groups below its key groups": _with(runs=_split(range(8), range(8, MAX_KEY_GROUPS), spans=range(9), number=1)),
    "empty range": _with_run(start_position=5, end_position=5),
    "negative rows": _with_run(rows=-1),
    "other rows than the index": _with_run(rows=13),
    "no bytes": _with_run(size_bytes=0),
    "short hash": _with_run(sha256=b"x" * 31),
    "negative schema": _with_run(value_schema_id=-1),
    "anchor above the committed position": _with(anchors=(Anchor("data", 0, 12, 1),)),
    "anchor above the ledger position": _with(anchors=(Anchor("ledger", 0, 8, 1),)),
    "anchor in an unused partition": _with(anchors=(Anchor("data", 7, 0, 1),)),
    "two anchors": _with(anchors=(Anchor("data", 0, 1, 1), Anchor("data", 0, 2, 1))),
    "negative partition": _with_state(partitions=(PartitionState(-1, 0, 12),)),
    "epoch above the position": _with_state(partitions=(PartitionState(0, 8, 12),)),
    "writer's name": _with_state(writers=(WRITER._replace(name="../w"),)),
    "commit above the position": _with_state(writers=(WRITER._replace(commit_offset=8),)),
    "live writer's name": _with_state(live=(LiveEpoch(0, "a/b", bytes(16), frozenset()),)),
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_a_manifest_that_says_what_cannot_be_is_refused(wrong: str) -> None:
    """Each rule is checked where a manifest is made, and so where one is read."""
    with pytest.raises(CorruptManifest):
        WRONG[wrong]()


def test_the_base_of_the_wrong_ones_is_right() -> None:
    """The helpers above make a valid manifest if nothing is changed."""
    assert _with()() == _with_run()() == second_manifest()
    split = _with(runs=_split(range(10), range(10, MAX_KEY_GROUPS)))()
    assert Manifest.from_bytes(split.to_bytes(), MANIFESTS.path(2)) == split
    assert len(_with(runs=_split(range(8), range(8, MAX_KEY_GROUPS), spans=range(8)))().runs) == 3


def test_a_file_of_the_first_format_is_read() -> None:
    """A manifest of the first format is read: its runs cover all key groups. The bytes are from that format's code."""
    data = (Path(__file__).parents[2] / "support" / "samples" / "manifest-1.avro").read_bytes()
    assert Manifest.from_bytes(data, MANIFESTS.path(2)) == replace(
        second_manifest(), previous_sha256=Manifest.from_bytes(data, MANIFESTS.path(2)).previous_sha256
    )
    assert b"statelog.format\x021" in data
    with pytest.raises(CorruptManifest):
        Manifest.from_bytes(data.replace(b"statelog.format\x021", b"statelog.format\x022"), MANIFESTS.path(2))


def test_a_manifest_is_checked_when_it_is_read() -> None:
    """A file with right checksums and invalid contents is refused by the reader."""
    manifest = second_manifest()
    object.__setattr__(manifest, "runs", (run_ref("a", 0, 5), run_ref("b", 6, 8)))
    with pytest.raises(CorruptManifest, match="not adjacent"):
        Manifest.from_bytes(manifest.to_bytes(), MANIFESTS.path(2))


# ---- the chain


def test_a_manifest_links_to_the_file_that_was_read() -> None:
    """The next manifest names the hash of the bytes that were read, even if today's code would write others.

    A copy that differs has no file yet.
    """
    data = (Path(__file__).parents[2] / "support" / "samples" / "manifest-1.avro").read_bytes()
    read = Manifest.from_bytes(data, MANIFESTS.path(2))
    assert read.to_bytes() != data
    assert read.sha256 == hashlib.sha256(data).digest()
    other = replace(read, nonce=bytes(16))
    assert other.sha256 == hashlib.sha256(other.to_bytes()).digest()


def test_next_manifest_links_to_the_bytes_before_it() -> None:
    """The second manifest names the first one's hash, and the chain holds."""
    first, second = first_manifest(), second_manifest()
    assert (first.number, first.previous_sha256) == (1, b"")
    assert (second.number, second.previous_sha256) == (2, hashlib.sha256(first.to_bytes()).digest())
    check_chain(first, second)


@pytest.mark.parametrize(
    "broken",
    [
        replace(second_manifest(), number=3),
        replace(second_manifest(), previous_sha256=bytes(32)),
        replace(second_manifest(), identity=replace(IDENTITY, data_topic_id="another")),
        replace(second_manifest(), state=state_at(4, p0=9, p1=4), runs=(run_ref("a", 0, 4),)),
        replace(second_manifest(), state=state_at(8, p0=8, p1=4)),
    ],
    ids=["number", "link", "identity", "position", "committed position"],
)
def test_a_broken_chain_is_corrupt(broken: Manifest) -> None:
    """A manifest that was not built on the one before it is corrupt."""
    with pytest.raises(CorruptManifest):
        check_chain(first_manifest(), broken)


class _Rows(tuple[PartitionState, ...]):
    """Rows that count how often all of them are traversed."""

    walks = 0

    def __iter__(self) -> Iterator[PartitionState]:
        _Rows.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("partitions", [3, 300])
def test_no_partition_of_a_wide_log_goes_through_all_of_them(partitions: int) -> None:
    """A manifest is made and linked in a few traversals of its partitions, however many it has."""
    _Rows.walks = 0
    rows = _Rows(PartitionState(partition, 0, 5) for partition in range(partitions))
    first, second = first_manifest(), second_manifest()
    anchors = tuple(Anchor("data", partition, 4, 0) for partition in range(partitions))
    previous = replace(first, state=replace(first.state, partitions=rows), anchors=anchors)
    following = replace(second, previous_sha256=previous.sha256, state=replace(second.state, partitions=rows))
    check_chain(previous, following)
    assert _Rows.walks <= 10


def test_runs_stretch_over_a_ledger_without_changes() -> None:
    """A round that only moved the position makes no run: the newest one covers the quiet stretch."""
    first = first_manifest()
    following = next_manifest(
        first,
        nonce=b"o" * 16,
        identity=IDENTITY,
        state=state_at(7, p0=9, p1=4),
        anchors=(),
        runs=first.runs,
        created_s=0.0,
    )
    assert [(run.start_position, run.end_position) for run in following.runs] == [(0, 7)]
    assert following.runs[0].path == first.runs[0].path
    assert stretched((), 7) == ()
    split = _split(range(10), range(10, MAX_KEY_GROUPS))
    assert [run.end_position for run in stretched(split, 11)] == [5, 11, 11]


def test_a_run_keeps_what_its_file_says() -> None:
    """A run reference made of a file's facts gives the same facts back."""
    run = run_ref("one", 0, 5)
    file = {one.name: getattr(run, one.name) for one in fields(RunFile)}
    again = RunRef(**file, start_position=0, end_position=5, level=0, value_schema_id=1)
    assert again == run
