"""Chunks under Hypothesis: whatever goes in comes out, and no changed byte goes unnoticed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import CorruptChunk, UnknownFormat
from statelog.schemas.changes.changes import DELETE, PUT, chunk_slices
from statelog.schemas.changes.chunk import VerifiedChunk, decode_batches, decode_head
from statelog.schemas.key_groups import KeyType
from tests.support.samples.chunks import Row, chunk_of, rows_batch

MAGIC_BYTES = 4
KEYS: dict[KeyType, st.SearchStrategy[object]] = {
    KeyType.BYTES: st.binary(max_size=80),
    KeyType.STRING: st.text(max_size=20),
    KeyType.LONG: st.integers(-(1 << 63), (1 << 63) - 1),
}


@st.composite
def logs(draw: st.DrawFn) -> tuple[KeyType, list[Row]]:
    """A key type and at least one change with keys of it."""
    key_type = draw(st.sampled_from(KeyType))
    group, key = st.integers(0, 65535), KEYS[key_type]
    put = st.tuples(group, st.just(PUT), key, st.binary(max_size=60))
    delete = st.tuples(group, st.just(DELETE), key, st.none())
    return key_type, draw(st.lists(st.one_of(put, delete), min_size=1, max_size=30))


@settings(deadline=None)
@given(log=logs(), sqn=st.integers(0, (1 << 63) - 1), index=st.integers(0, (1 << 31) - 1), size=st.integers(1, 500))
def test_what_goes_in_comes_out(log: tuple[KeyType, list[Row]], sqn: int, index: int, size: int) -> None:
    """Cut into slices of any size, encoded and decoded, the changes are the same in the same order."""
    key_type, rows = log
    batch = rows_batch(rows, key_type)
    found: list[Row] = []
    for piece in chunk_slices(batch, size, 15 << 20):
        value = chunk_of(piece, sqn=sqn, index=index).value
        head_at = decode_head(value)
        assert head_at is not None
        head, at = head_at
        assert (head.sqn, head.index, head.changes) == (sqn, index, piece.num_rows)
        found.extend(
            tuple(row.values()) for row in decode_batches([VerifiedChunk(value, head, at)], batch.schema).to_pylist()
        )
    assert found == rows


@settings(deadline=None, max_examples=30)
@given(log=logs(), mask=st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(log: tuple[KeyType, list[Row]], mask: int) -> None:
    """With any one byte changed a chunk is a stranger's, of an unknown format, or corrupt: never another value."""
    key_type, rows = log
    value = chunk_of(rows_batch(rows, key_type)).value
    for place in range(len(value)):
        changed = bytearray(value)
        changed[place] ^= mask
        try:
            found = decode_head(bytes(changed))
        except (CorruptChunk, UnknownFormat):
            continue
        assert found is None and place < MAGIC_BYTES, place


@settings(deadline=None, max_examples=200)
@given(log=logs(), cut=st.floats(0, 1, exclude_max=True), tail=st.binary(min_size=1, max_size=16))
def test_cut_or_longer_chunks_are_noticed(log: tuple[KeyType, list[Row]], cut: float, tail: bytes) -> None:
    """A chunk that lost its end or gained one is never taken for another."""
    key_type, rows = log
    value = chunk_of(rows_batch(rows, key_type)).value
    for damaged in (value[: int(len(value) * cut)], value + tail):
        try:
            found = decode_head(damaged)
        except CorruptChunk:
            continue
        assert found is None and len(damaged) < MAGIC_BYTES
