"""Manifests: the description of one snapshot, and the only source of truth for how far the log is rolled up.

A manifest names the runs that hold all changes below its position. It carries the folded ledger at that position and
the hash of the manifest before it. Its file is put if absent under its number, and never overwritten.

Invariants, checked whenever a manifest is made or read (a file is untrusted input):
- Runs tile the ledger below the position times all key groups: per key group they cover adjacent ledger ranges from
  0 to the position, oldest first. Only a log without one committed change has no runs.
- A run's row groups lie within the key groups that it names.
- Every path is a run's path below the log's directory, and no path is named twice.
- The first manifest is number 1 and names no previous one; every later one names its predecessor's sha256.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from statelog.errors import CorruptManifest, Fact
from statelog.schemas.avro import Datum, FileCodec, datum_of
from statelog.schemas.changes.due import DUE_MS_MAX
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import MANIFESTS, is_name, is_run_path
from statelog.schemas.snapshot.run_ref import RunRef, check_tiles, stretched
from statelog.schemas.snapshot.runs import RunIndex

FORMAT_VERSION = 3
"""Since 3, runs count their rows with a due. Since 2, they name their key groups; before, each covers all of them."""
_EARLIER = {1: "manifest-1", 2: "manifest-2"}
_FILE = FileCodec("manifest", version=FORMAT_VERSION, error=CorruptManifest, earlier=_EARLIER)
_FILE_2 = FileCodec("manifest-2", version=2, error=CorruptManifest)
_SHA256_BYTES = 32
_NONCE_BYTES = 16


class Anchor(NamedTuple):
    """A record that the snapshot was built on: its offset, and the xxh3-64 of its value.

    Another record at this offset is data loss.
    """

    topic: Literal["data", "ledger"]
    partition: int
    offset: int
    hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One snapshot. `created_s` is the materializer's wall clock, for people only. Raises CorruptManifest."""

    number: int
    previous_sha256: bytes
    nonce: bytes
    identity: LogIdentity
    state: LedgerState
    anchors: tuple[Anchor, ...]
    runs: tuple[RunRef, ...]
    created_s: float
    _read_sha256: bytes = field(default=b"", init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_header(self)
        _check_state(self.state)
        _check_anchors(self)
        _check_runs(self)

    @property
    def position(self) -> int:
        """The snapshot's identity: the next ledger offset to fold."""
        return self.state.position

    @property
    def place(self) -> Place:
        """The position, and the last ledger record that the snapshot was built on."""
        anchors = (one for one in self.anchors if one.topic == "ledger")
        return Place(self.position, next((LastRecord(one.offset, one.hash) for one in anchors), None))

    @property
    def next_offsets(self) -> dict[int, int]:
        """The committed positions, from which replay continues. A partition without one starts at 0."""
        return self.state.committed_positions

    @property
    def sha256(self) -> bytes:
        """The hash of its file, as read or to be written. It chains manifests."""
        return self._read_sha256 or hashlib.sha256(self.to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """Return the content of the file, in the earliest version that suffices, so that older releases can read it."""
        file = _FILE if any(run.due_rows for run in self.runs) else _FILE_2
        return file.encode(
            datum_of(
                self,
                identity=datum_of(self.identity),
                state=self.state.to_datum(),
                anchors=[{**row._asdict(), "hash": row.hash.to_bytes(8, "little")} for row in self.anchors],
                runs=[datum_of(run, index=run.index.to_bytes()) for run in self.runs],
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "Manifest":
        """Decode the file at `path`, whose slot must have its number. Raises CorruptManifest, UnknownFormat."""
        manifest = _FILE.decode(data, path, _from_datum)
        slot = MANIFESTS.number(path)
        if slot is not None and slot != manifest.number:
            raise CorruptManifest(f"{path} holds manifest {manifest.number}", path=path, number=manifest.number)
        object.__setattr__(manifest, "_read_sha256", hashlib.sha256(data).digest())
        return manifest


def next_manifest(
    previous: Manifest | None,
    *,
    nonce: bytes,
    identity: LogIdentity,
    state: LedgerState,
    anchors: Sequence[Anchor],
    runs: Sequence[RunRef],
    created_s: float,
) -> Manifest:
    """Make the manifest that follows `previous` (None for the first). `runs` are extended to the new position."""
    return Manifest(
        number=previous.number + 1 if previous else 1,
        previous_sha256=previous.sha256 if previous else b"",
        nonce=nonce,
        identity=identity,
        state=state,
        anchors=tuple(anchors),
        runs=stretched(runs, state.position),
        created_s=created_s,
    )


def restarted_state(state: LedgerState, restarted: int) -> LedgerState:
    """Return the state of another ledger's first manifest: without epochs, right behind its Restart."""
    return replace(state, position=restarted + 1, live=(), restarted=restarted)


def follows_restart(previous: Manifest, following: Manifest) -> bool:
    """Return whether `following` only moves the state of `previous` to other topics."""
    return (
        following.identity.cluster_id == previous.identity.cluster_id
        and following.state == restarted_state(previous.state, following.position - 1)
        and following.runs == stretched(previous.runs, following.position)
    )


def check_chain(previous: Manifest, following: Manifest) -> None:
    """Raise CorruptManifest unless `following` was built on `previous`."""
    numbers: dict[str, int] = {"previous": previous.number, "number": following.number}
    _require(following.number == previous.number + 1, "a manifest's number does not follow", **numbers)
    _require(following.previous_sha256 == previous.sha256, "a manifest was built on another one", **numbers)
    is_same = following.identity == previous.identity or follows_restart(previous, following)
    _require(is_same, "a manifest changes the log's identity", **numbers)
    _require(following.position >= previous.position, "a manifest's position moves back", **numbers)
    for partition, offset in previous.next_offsets.items():
        now = following.next_offsets.get(partition, 0)
        _require(now >= offset, "a manifest's committed position moves back", partition=partition, **numbers)


# ---- checks


def _require(truth: bool, message: str, **facts: Fact) -> None:
    if not truth:
        raise CorruptManifest(message, hint="", **facts)


def _check_header(manifest: Manifest) -> None:
    number = manifest.number
    _require(number >= 1, "a manifest's number is below 1", number=number)
    expected = _SHA256_BYTES if number > 1 else 0
    _require(len(manifest.previous_sha256) == expected, "a manifest's link has the wrong length", number=number)
    _require(len(manifest.nonce) == _NONCE_BYTES, "a manifest's nonce has the wrong length", number=number)
    _require(math.isfinite(manifest.created_s), "a manifest's time is not a number", number=number)


def _check_state(state: LedgerState) -> None:
    _require(state.position >= 0, "a manifest's position is negative", position=state.position)
    for row in state.partitions:
        sane = row.partition >= 0 and row.committed_position >= 0 and -1 <= row.newest_epoch < state.position
        _require(sane, "a partition's row is impossible", partition=row.partition)
    for name in {row.name for row in state.writers} | {row.writer for row in state.live}:
        _require(is_name(name), f"a manifest names a writer {name!r}, which is not a valid name")
    for writer in state.writers:
        _require(writer.commit_offset < state.position, "a commit lies at or above the position", writer=writer.name)


def _check_anchors(manifest: Manifest) -> None:
    for anchor in manifest.anchors:
        end = manifest.position if anchor.topic == "ledger" else manifest.next_offsets.get(anchor.partition, 0)
        sane = anchor.partition >= 0 and 0 <= anchor.offset < end
        _require(sane, "an anchor lies outside its snapshot", topic=anchor.topic, offset=anchor.offset)
    places = {(anchor.topic, anchor.partition) for anchor in manifest.anchors}
    _require(len(places) == len(manifest.anchors), "a partition has two anchors", number=manifest.number)


def _check_runs(manifest: Manifest) -> None:
    runs = manifest.runs
    for run in runs:
        _check_run(run)
    _require(len({run.path for run in runs}) == len(runs), "a manifest names a run twice", number=manifest.number)
    if not runs:
        _require(not manifest.next_offsets, "a manifest with committed changes has no runs", number=manifest.number)
        return
    try:
        check_tiles(runs, manifest.position)
    except ValueError as error:
        raise CorruptManifest(f"the runs do not fit together: {error}", number=manifest.number) from None


def _check_run(run: RunRef) -> None:
    _require(is_run_path(run.path), "a manifest names a file that is not a run", path=run.path)
    _require(run.start_position < run.end_position, "a run covers nothing", path=run.path)
    is_range = 0 <= run.first_key_group < run.end_key_group <= MAX_KEY_GROUPS
    _require(is_range, "a run covers impossible key groups", path=run.path)
    counts = (run.start_position, run.level, run.rows, run.value_schema_id)
    _require(min(counts) >= 0 and run.size_bytes > 0, "a run has an impossible count", path=run.path)
    dues = (0, run.first_due_ms, run.last_due_ms, DUE_MS_MAX)
    is_span = list(dues) == sorted(dues) if run.due_rows else not any(dues[1:3])
    _require(0 <= run.due_rows <= run.rows and is_span, "a run has impossible dues", path=run.path)
    _require(len(run.sha256) == _SHA256_BYTES, "a run's hash has the wrong length", path=run.path)
    _require(run.rows == run.index.rows, "a run's index has a different row count", path=run.path)
    for span in run.index.row_groups:
        inside = run.first_key_group <= span.first_key_group < span.end_key_group <= run.end_key_group
        _require(inside, "a run has a row group outside its key groups", path=run.path)


# ---- data


def _from_datum(datum: Datum) -> Manifest:
    return Manifest(
        number=datum["number"],
        previous_sha256=datum["previous_sha256"],
        nonce=datum["nonce"],
        identity=LogIdentity(**datum["identity"]),
        state=LedgerState.from_datum(datum["state"]),
        anchors=tuple(
            Anchor(**dict[str, Any](row, hash=int.from_bytes(row["hash"], "little"))) for row in datum["anchors"]
        ),
        runs=tuple(RunRef(**dict[str, Any](row, index=RunIndex.from_bytes(row["index"]))) for row in datum["runs"]),
        created_s=datum["created_s"],
    )
