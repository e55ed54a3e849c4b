"""Arbitrary ledgers: the fold agrees with its naive twin, and stored bytes come back or are found to be damaged."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import Corrupt, CorruptLedger, OffsetGone, UnknownFormat
from statelog.schemas.avro import RecordCodec
from statelog.schemas.ledger import records as ledger
from statelog.schemas.ledger.fold import LedgerFold, VoidReason
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint, Entry, Handle, Step
from statelog.schemas.ledger.place import ORIGIN, LastRecord, LogIdentity, Place
from statelog.schemas.ledger.records import AcceptLoss, Commit, LedgerRecord, LossRange, Mark, Open, Restart
from statelog.schemas.ledger.state import LedgerState
from tests.sim.naive_fold import NaiveFold, same_verdict

IDENTITY = LogIdentity(cluster_id="cluster", data_topic_id="data", ledger_topic_id="ledger")
STRANGER = LogIdentity(cluster_id="cluster", data_topic_id="other", ledger_topic_id="ledger")
STATES = RecordCodec("ledger_state")

MOSTLY = st.integers(0, 9).map(lambda n: n < 9)  # shrinks towards true
MOST = (1 << 63) - 1
INT64 = st.integers(-(1 << 63), MOST)
INT32 = st.integers(0, (1 << 31) - 1)
UINT64 = st.integers(0, (1 << 64) - 1)
NONCES = st.binary(min_size=16, max_size=16)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
CHECKPOINTS = st.builds(Checkpoint, INT64, NONCES)
WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)
FRACTIONS = st.floats(allow_nan=False, allow_infinity=False)
METADATA = st.dictionaries(st.text(max_size=8), st.text(max_size=8) | WHOLE | FRACTIONS | st.booleans(), max_size=3)
META = st.dictionaries(st.text(max_size=8), st.none() | st.binary(max_size=8), max_size=2)
IDENTITIES = st.builds(LogIdentity, cluster_id=st.text(), data_topic_id=st.text(), ledger_topic_id=st.text())
DIGESTS = st.binary(min_size=32, max_size=32)


# ---- values that are possible: a decoder refuses all others, see test_hostile_bytes.py


@st.composite
def _entries(draw: st.DrawFn) -> Entry:
    gaps = draw(st.lists(st.integers(0, 1 << 58), max_size=3)) if draw(st.booleans()) else []
    chunks = len(gaps) + 1 if any(gaps) else draw(INT32.filter(bool))
    first_offset = draw(st.integers(0, 1 << 62))
    return Entry(
        partition=draw(INT32),
        sqn=draw(INT64),
        chunks=chunks,
        changes=draw(st.integers(chunks, MOST)),
        size_bytes=draw(st.integers(0, MOST)),
        first_offset=first_offset,
        end_offset=first_offset + chunks + sum(gaps),
        checksum=draw(UINT64),
        key_groups=draw(st.binary(max_size=4)),
        gaps=tuple(gaps) if any(gaps) else (),
    )


@st.composite
def _handles(draw: st.DrawFn) -> Handle:
    base_id, *ids = sorted(draw(st.sets(INT64, min_size=2, max_size=4)))
    return Handle(
        identity=draw(IDENTITIES),
        writer=draw(NAMES),
        epoch=draw(INT64),
        nonce=draw(NONCES),
        base=Checkpoint(base_id, draw(NONCES)),
        steps=tuple(Step(checkpoint_id=i, entries=draw(ENTRIES), meta=draw(META)) for i in ids),
    )


@st.composite
def _loss_ranges(draw: st.DrawFn) -> LossRange:
    start_offset = draw(st.integers(0, MOST))
    return LossRange(draw(INT32), start_offset, draw(st.integers(start_offset, MOST)))


ENTRIES = st.lists(_entries(), max_size=3).map(tuple)
HANDLES = _handles()
WITNESSES = st.builds(
    Place, INT64, st.none() | st.builds(LastRecord, st.integers(0, MOST), st.integers(0, (1 << 64) - 1))
)
OPENS = st.builds(
    Open,
    writer=NAMES,
    partitions=st.lists(INT32, max_size=4).map(tuple),
    nonce=NONCES,
    prior=INT64,
    last=CHECKPOINTS,
    identity=IDENTITIES,
    witness=WITNESSES,
)
COMMITS = st.builds(
    Commit.of,
    epoch=INT64,
    nonce=NONCES,
    base=CHECKPOINTS,
    checkpoint=CHECKPOINTS,
    metadata=METADATA,
    handles=st.lists(HANDLES, max_size=2),
    witness=WITNESSES,
    final=st.booleans(),
)
LOSSES = st.builds(
    AcceptLoss,
    ranges=st.lists(_loss_ranges(), max_size=3).map(tuple),
    reason=st.text(),
    operator=st.text(),
)
MARKS = st.builds(Mark, DIGESTS)
RESTARTS = st.builds(Restart, digest=DIGESTS, position=INT64, reason=st.text(), operator=st.text())
RECORDS = st.one_of(OPENS, COMMITS, LOSSES, MARKS, RESTARTS)


# ---- records that nearly fit, so that valid and void ones both come up


@st.composite
def _near_opens(draw: st.DrawFn, fold: LedgerFold, nonce: bytes) -> Open:
    writer = draw(st.sampled_from("ABC"))
    partitions = tuple(draw(st.sets(st.integers(0, 2), max_size=2)))
    honest = draw(MOSTLY)
    return Open(
        writer=writer,
        partitions=partitions,
        nonce=nonce,
        prior=fold.prior(writer, partitions) if honest else draw(st.integers(-1, 5)),
        last=fold.last_checkpoint(writer) if draw(MOSTLY) else NO_CHECKPOINT,
        identity=IDENTITY if draw(MOSTLY) else STRANGER,
    )


@st.composite
def _near_commits(draw: st.DrawFn, fold: LedgerFold, opens: Mapping[int, Open]) -> Commit:
    epoch = draw(st.sampled_from(sorted(opens))) if opens else 0
    mine = opens.get(epoch)
    nonce = mine.nonce if mine and draw(MOSTLY) else bytes(16)
    base = fold.last_checkpoint(mine.writer) if mine and draw(MOSTLY) else NO_CHECKPOINT
    owned = mine.partitions if mine else ()
    partitions = draw(st.sets(st.sampled_from(owned), max_size=2)) if owned else set[int]()
    if not draw(MOSTLY):
        partitions = {*partitions, draw(st.integers(0, 3))}
    entries: list[Entry] = []
    for partition in sorted(partitions):
        first = fold.committed_position(partition) + (draw(st.integers(0, 2)) if draw(MOSTLY) else -1)
        chunks = draw(st.integers(1, 3))
        entries.append(Entry(partition, 1, chunks, chunks, 1, first, first + chunks, 0, b"\1"))
    step = Step(
        checkpoint_id=base.id + (draw(st.integers(1, 2)) if draw(MOSTLY) else 0),
        entries=tuple(entries),
        meta=draw(META),
    )
    handle = Handle(identity=IDENTITY, writer="A", epoch=epoch, nonce=nonce, base=base, steps=(step,))
    return Commit.of(
        epoch=epoch,
        nonce=nonce,
        base=base,
        checkpoint=Checkpoint(step.checkpoint_id, draw(st.sampled_from([nonce, b"another life's.."]))),
        metadata=draw(METADATA),
        handles=[handle],
        witness=ORIGIN,
        final=not draw(MOSTLY),
    )


def _near_restarts(offset: int) -> st.SearchStrategy[Restart]:
    """Draw Restarts, most of them from a snapshot that the fold began at or above, or from the ledger's records."""
    positions = st.one_of(st.just(0), st.integers(0, offset), st.integers(0, offset + 2))
    return st.builds(Restart, digest=DIGESTS, position=positions, reason=st.just("disk"), operator=st.just("ann"))


Judge = Callable[[int, LedgerRecord | None], VoidReason | None]


def _judging(fold: LedgerFold) -> Judge:
    def judge(offset: int, record: LedgerRecord | None) -> VoidReason | None:
        void = fold.apply(offset, record)
        return void.reason if void else None

    return judge


def _answer(judge: Judge, offset: int, record: LedgerRecord | None) -> VoidReason | OffsetGone | None:
    try:
        return judge(offset, record)
    except OffsetGone as gone:
        return gone


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_the_fold_agrees_with_its_naive_twin(data: st.DataObject) -> None:
    """On any sequence of records both folds reach the same verdicts, positions and checkpoints, from any frozen state.

    At a Restart both stop or go on, by where they began.
    """
    fold, naive = LedgerFold(IDENTITY), NaiveFold(IDENTITY)
    opens: dict[int, Open] = {}
    for offset in range(data.draw(st.integers(0, 25))):
        record: LedgerRecord | None = data.draw(
            st.one_of(
                _near_opens(fold, offset.to_bytes(16, "little")),
                _near_commits(fold, opens),
                _near_commits(fold, opens),
                LOSSES,
                _near_restarts(offset),
                st.none(),
            )
        )
        if isinstance(record, Open):
            opens[offset] = record
        naive.began = offset  # The fold has just been built from its frozen state.
        expected = _answer(naive.apply, offset, record)
        found = _answer(_judging(fold), offset, record)
        if isinstance(expected, OffsetGone) or isinstance(found, OffsetGone):
            assert type(found) is type(expected)
            return  # A reader at this position starts again, from the snapshot that the Restart names.
        assert same_verdict(found, expected)
        assert {p: fold.committed_position(p) for p in range(4)} == {p: naive.committed(p) for p in range(4)}
        assert [fold.last_checkpoint(w) for w in "ABC"] == [naive.last(w) for w in "ABC"]
        fold = LedgerFold(IDENTITY, _through_bytes(fold.freeze()))


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_a_restart_counts_from_its_snapshot(data: st.DataObject) -> None:
    """A ledger that lost records of a snapshot restarts from that snapshot, and from there everybody agrees.

    No earlier epoch commits again, and a fold from below the snapshot stops before any record counts.
    """
    naive, snapshot = NaiveFold(IDENTITY), LedgerFold(IDENTITY)
    opens: dict[int, Open] = {}
    records: list[LedgerRecord | None] = []
    for offset in range(data.draw(st.integers(1, 8))):
        record = data.draw(st.one_of(_near_opens(snapshot, bytes([offset]) * 16), _near_commits(snapshot, opens)))
        records.append(record)
        if snapshot.apply(offset, record) is None and isinstance(record, Open):
            opens[offset] = record
        naive.apply(offset, record)
    position = snapshot.position
    records = records[: data.draw(st.integers(0, position - 1))]
    restart = data.draw(
        st.builds(Restart, digest=DIGESTS, position=st.just(position), reason=st.just("disk"), operator=st.just("ann"))
    )
    while len(records) <= position:
        records.append(restart)

    below = LedgerFold(IDENTITY)
    with pytest.raises(OffsetGone):
        for offset, one in enumerate(records):
            below.apply(offset, one)
    fold = LedgerFold(IDENTITY, _through_bytes(snapshot.freeze()))
    naive.began = position
    assert (fold.apply(position, restart), naive.apply(position, restart)) == (None, None)
    for offset in range(position + 1, position + 6):
        following = data.draw(st.one_of(_near_opens(fold, bytes([offset]) * 16), _near_commits(fold, opens)))
        verdict = _judging(fold)(offset, following)
        assert same_verdict(verdict, naive.apply(offset, following))
        if verdict is None and isinstance(following, Open):
            opens[offset] = following
        assert not (verdict is None and isinstance(following, Commit) and following.epoch < position), (
            "an old epoch commits"
        )


def _through_bytes(state: LedgerState) -> LedgerState:
    datum, _ = STATES.decode(STATES.encode(state.to_datum()))
    assert LedgerState.from_datum(datum) == state
    return LedgerState.from_datum(datum)


# ---- bytes


@given(RECORDS)
@settings(deadline=None)
def test_ledger_records_survive_their_bytes(record: LedgerRecord) -> None:
    """A record decodes to itself, and a commit's body to the values that it was made of."""
    found = ledger.decode(ledger.encode(record))
    assert found == record
    if isinstance(found, Commit) and isinstance(record, Commit):
        assert found.read_body() == record.read_body()


@given(HANDLES)
@settings(deadline=None)
def test_handles_survive_their_bytes(handle: Handle) -> None:
    """A handle decodes to itself, from both of its forms."""
    assert Handle.from_bytes(handle.to_bytes()) == handle
    assert Handle.from_record(handle.to_record()) == handle


@given(RECORDS, st.data())
@settings(deadline=None)
def test_a_damaged_ledger_record_stops_its_reader(record: LedgerRecord, data: st.DataObject) -> None:
    """Any flipped, cut or added byte of a ledger record raises, except in the magic: then it is a stranger's record."""
    damaged = _damage(ledger.encode(record), data)
    if damaged[:4] != b"SLLG":
        assert ledger.decode(damaged) is None
        return
    with pytest.raises((CorruptLedger, UnknownFormat)):
        ledger.decode(damaged)


@given(HANDLES, st.data())
@settings(deadline=None)
def test_a_damaged_handle_is_refused(handle: Handle, data: st.DataObject) -> None:
    """Any flipped, cut or added byte of a handle raises."""
    damaged = _damage(handle.to_bytes(), data)
    with pytest.raises((Corrupt, UnknownFormat)):
        Handle.from_bytes(damaged)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_arbitrary_bytes_after_the_magic_never_decode(rest: bytes) -> None:
    """Foreign bytes after our magic raise a typed error and nothing else."""
    with pytest.raises((CorruptLedger, UnknownFormat)):
        ledger.decode(b"SLLG" + rest)


def _damage(whole: bytes, data: st.DataObject) -> bytes:
    at = data.draw(st.integers(0, len(whole) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "add"])):
        case "flip":
            return whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
        case "cut":
            return whole[:at]
        case _:
            return whole + data.draw(st.binary(min_size=1, max_size=4))
