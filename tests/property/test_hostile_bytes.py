"""Every decoder against hostile bytes: a value or `Damaged`, never a death, a raw exception, or another value.

The bytes are mutants of real ones, as they are and with their checksums made right again. A checksum is no
authentication: writers with bugs and insiders can seal any bytes.
"""

import hashlib
import io
import mmap
import random
import resource
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import xxhash

from statelog.errors import Damaged
from statelog.recovery.cursor import Applied, Cursor, decode_frame, encode_frame
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.changes.chunk import VerifiedChunks, decode_batches, decode_head
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger import records as ledger
from statelog.schemas.ledger.place import LastRecord, Place
from statelog.schemas.ledger.records import Commit
from statelog.schemas.snapshot.runs import RunFile
from statelog.store.run_reader import RunReader
from statelog.store.run_writer import RunWriter
from tests.support.processes.starts import in_fork
from tests.support.samples.chunks import chunk_of, rows_batch
from tests.support.samples.folds import Row, apply_to_dict
from tests.support.samples.format_examples import EXAMPLES
from tests.support.samples.ledger_story import IDENTITY, Story
from tests.support.samples.runs import LABEL, change_table, table_of

_ROWS: list[Row] = [
    (i % 7, int(i % 5 == 0), b"key-%d" % i, None if i % 5 == 0 else b"value" * (i % 9)) for i in range(40)
]
_SCHEMA = change_schema(KeyType.BYTES)
_MEMORY_BYTES = 4 << 30
_NUMBERS = (1 << 62, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 0)


@dataclass(frozen=True, slots=True)
class Target:
    """Bytes, their decoder and its use, and the function that seals a mutant of them; None if nothing seals them."""

    data: bytes
    decode: Callable[[bytes], object]
    seal: Callable[[bytes], bytes] | None = None


def hostile(target: Target, *, seed: int, seconds: float = 0.0, mutants: int = 0) -> str:
    """Decode mutants in a forked child, so many or so long; return the failure, "" if there was none."""
    report = mmap.mmap(-1, 1 << 20)  # Shared with the child: the input that it decodes now, before it may die of it.
    code = in_fork(lambda: _attack(target, random.Random(seed), time.monotonic() + seconds, mutants, report))
    said = report.read(struct.unpack("<I", report.read(4))[0])
    report.close()
    return "" if code == 0 else f"seed {seed}, exit code {code}: {said[:4000]!r}"


def _attack(target: Target, rng: random.Random, until_s: float, mutants: int, report: mmap.mmap) -> None:
    limit = _address_space_bytes() + _MEMORY_BYTES  # The parent's memory is no fault of the mutants.
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    honest = target.decode(target.data if target.seal is None else target.seal(target.data))
    while mutants > 0 or time.monotonic() < until_s:
        mutants -= 1
        changed = _mutated(rng, target.data)
        if changed == target.data:
            continue
        data = changed if target.seal is None else target.seal(changed)
        _write(report, data)
        try:
            found = target.decode(data)
        except Damaged:
            continue
        except BaseException as error:
            _write(report, repr(error).encode() + b" of " + data)
            raise
        if target.seal is None and found is not None and found != honest:
            _write(report, b"another value of " + data)
            raise AssertionError
    _write(report, b"")


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _write(report: mmap.mmap, data: bytes) -> None:
    report.seek(0)
    report.write(struct.pack("<I", len(data)) + data)


def _mutated(rng: random.Random, data: bytes) -> bytes:
    mutant = bytearray(data)
    for _ in range(1 if rng.random() < 0.6 else rng.randint(2, 6)):
        if not mutant:
            break
        _mutate(rng, mutant, rng.randrange(len(mutant)))
    return bytes(mutant)


def _mutate(rng: random.Random, mutant: bytearray, i: int) -> None:
    """Make one change at byte `i`."""
    match rng.randrange(8):
        case 0 | 1:
            mutant[i] ^= 1 << rng.randrange(8)
        case 2:
            mutant[i] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        case 3:
            mutant[i : i + rng.randint(1, 9)] = b"\xff" * rng.randint(1, 9)
        case 4:
            del mutant[i : i + rng.randint(1, 8)]
        case 5:
            mutant[i:i] = rng.randbytes(rng.randint(1, 9))
        case 6:
            j = rng.randrange(len(mutant))
            mutant[i : i + 4] = mutant[j : j + 4]
        case _:
            mutant[i : i + 8] = rng.choice(_NUMBERS).to_bytes(8, "little")


# ---- the decoders


def make_target(name: str, *, sealed: bool, scratch: Path) -> Target:
    """Return the decoder of this name, with or without its seal; a run is made in `scratch`."""
    if name == "run":
        return _run(scratch, sealed=sealed)
    target = TARGETS[name]()
    return target if sealed else replace(target, seal=None)


def _chunk() -> Target:
    return Target(chunk_of(rows_batch(_ROWS)).value, _use_chunk, resealed_chunk)


def _timed_chunk() -> Target:
    dues = [None if op else 1000 * key_group for key_group, op, _, _ in _ROWS]
    return Target(chunk_of(rows_batch(_ROWS, dues=dues)).value, _use_chunk, resealed_chunk)


def _use_chunk(data: bytes) -> object:
    found = decode_head(data)
    if found is None:
        return None
    head, at = found
    batch = decode_batches(VerifiedChunks.of(data, head, at), _SCHEMA)
    state: dict[object, object] = {}
    apply_to_dict(batch, state)
    return head, batch.to_pylist(), state


def resealed_chunk(data: bytes) -> bytes:
    """Return a chunk with a right checksum over any contents."""
    seed = 3 if data[:5] == b"SLCK\x03" else 0
    return data[:8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(data[16:], seed)) + data[16:]


def _use_record(data: bytes) -> object:
    record = ledger.decode(data)
    return (record, record.read_body()) if isinstance(record, Commit) else record


def _reseal_record(data: bytes) -> bytes:
    if len(data) < 16:
        return data
    checksum = xxhash.xxh3_64_intdigest(data[6:8] + data[16:], seed=data[4] << 8 | data[5])
    return data[:8] + struct.pack("<Q", checksum) + data[16:]


def _commit() -> Target:
    story = Story()
    epoch = story.open("A", 0, 1)
    commit = story.new_commit(epoch, story.persist(epoch, 0, 1, meta="m"), story.persist(epoch, 0))
    return Target(ledger.encode(commit), _use_record, _reseal_record)


def _record(example: str) -> Callable[[], Target]:
    return lambda: Target(EXAMPLES[example].data, _use_record, _reseal_record)


def _handle() -> Target:
    return Target(EXAMPLES["handle"].data, EXAMPLES["handle"].decode, resealed_chunk)


def _file(example: str) -> Callable[[], Target]:
    """Return an Avro file: mutants of its datum, framed again."""

    def make() -> Target:
        data, sync = EXAMPLES[example].data, EXAMPLES[example].data[-16:]
        header = data[: data.index(sync)]
        rest = data[len(header) + 17 : -16]
        start = next(i for i, byte in enumerate(rest) if byte < 0x80) + 1
        return Target(rest[start:], EXAMPLES[example].decode, lambda datum: _framed(header, datum))

    return make


def _framed(header: bytes, datum: bytes) -> bytes:
    size, length = len(datum) * 2, bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    sync = xxhash.xxh3_128_digest(datum)
    return header + sync + b"\x02" + bytes([*length, size]) + datum + sync


def _whole_file(example: str) -> Callable[[], Target]:
    return lambda: Target(EXAMPLES[example].data, EXAMPLES[example].decode)


def _applied() -> Target:
    cursor = Cursor(
        identity=IDENTITY, applied=Applied(Place(5, LastRecord(4, 7)), 3, 2), key_groups=frozenset({1, 2, 3, 9})
    )
    return Target(cursor.to_json().encode(), lambda data: Cursor.from_json(data.decode("utf-8", "replace")), bytes)


def _frame() -> Target:
    frame = bytes(encode_frame(rows_batch(_ROWS), Applied(Place(1), 2, 3)))
    return Target(frame, lambda data: decode_frame(memoryview(data))[0].to_pylist(), bytes)


def _run(scratch: Path, *, sealed: bool) -> Target:
    changes = change_table([(group, op, key, value) for group, op, key, value in _ROWS])
    with RunWriter(scratch / "run", changes.schema, LABEL, target_rows=16) as writer:
        writer.append(changes)
        written = writer.finish()
    honest = written.file

    def decode(data: bytes) -> object:
        run = _refaced(honest, data) if sealed else honest
        with RunReader(nullcontext(io.BytesIO(data)), run) as reader:
            reader.verify()
            return table_of(reader).to_pylist(), reader.footer.metadata

    return Target(written.local.read_bytes(), decode, bytes if sealed else None)


def _refaced(run: RunFile, data: bytes) -> RunFile:
    """Return the facts of a run as a manifest would have them of these bytes."""
    spans = tuple(
        span._replace(checksum=xxhash.xxh3_64_intdigest(data[span.offset : span.offset + span.size_bytes]))
        for span in run.index.row_groups
    )
    footer = xxhash.xxh3_64_intdigest(data[run.index.footer_offset :])
    index = replace(run.index, row_groups=spans, footer_checksum=footer)
    return replace(run, size_bytes=len(data), sha256=hashlib.sha256(data).digest(), index=index)


TARGETS: Mapping[str, Callable[[], Target]] = {
    "chunk": _chunk,
    "timed chunk": _timed_chunk,
    "commit": _commit,
    "inline commit": _record("inline-commit"),
    "due commit": _record("due-commit"),
    "open": _record("open"),
    "accept-loss": _record("accept-loss"),
    "handle": _handle,
    "manifest": _file("manifest"),
    "lease": _file("lease"),
    "subscription": _file("subscription"),
    "descriptor": _file("descriptor"),
    "manifest file": _whole_file("manifest"),
    "lease file": _whole_file("lease"),
    "subscription file": _whole_file("subscription"),
    "descriptor file": _whole_file("descriptor"),
    "applied": _applied,
    "frame": _frame,
}
"""Decoders by name; a run is apart, because it needs a directory."""


_ONLY_SEALED = ("manifest", "lease", "subscription", "descriptor", "applied", "frame")
UNSEALED = [name for name in (*TARGETS, "run") if name not in _ONLY_SEALED]
SEALED = [name for name in (*TARGETS, "run") if not name.endswith(" file")]
SOAK_S = 60.0


@pytest.mark.parametrize("name", UNSEALED)
def test_no_mutant_is_another_value(name: str, tmp_path: Path) -> None:
    """No mutant decodes to another value: every change is noticed."""
    assert hostile(make_target(name, sealed=False, scratch=tmp_path), seed=1, mutants=400) == ""


@pytest.mark.parametrize("name", SEALED)
def test_no_sealed_mutant_breaks_its_reader(name: str, tmp_path: Path) -> None:
    """A sealed mutant, with a right checksum, decodes to a value or raises a typed error."""
    assert hostile(make_target(name, sealed=True, scratch=tmp_path), seed=2, mutants=400) == ""


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", UNSEALED)
def test_millions_of_mutants_are_no_other_value(name: str, tmp_path: Path) -> None:
    """No mutant of a minute of seeds, which differ in every run, is another value."""
    seed = random.SystemRandom().randrange(1 << 40)
    assert hostile(make_target(name, sealed=False, scratch=tmp_path), seed=seed, seconds=SOAK_S) == ""


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SEALED)
def test_millions_of_sealed_mutants_break_no_reader(name: str, tmp_path: Path) -> None:
    """No sealed mutant of a minute of seeds, which differ in every run, breaks its reader."""
    seed = random.SystemRandom().randrange(1 << 40)
    assert hostile(make_target(name, sealed=True, scratch=tmp_path), seed=seed, seconds=SOAK_S) == ""
