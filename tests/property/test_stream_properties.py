"""Streams against a plain fold of the history, with any bounds, interruptions and snapshots between."""

import random
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.recovery.cursor import Applied, Cursor
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from tests.support.rigs.history import HistoryRig, Reader, history_rig

_KEYS = [b"key-%d" % i for i in range(60)]


def _settings(directory: str, fold_bytes: int) -> RecoverySettings:
    return RecoverySettings(
        memory_bytes=64 * 1024,
        fold_bytes=fold_bytes,
        spill_directories=(directory,),
        _tuning=RecoveryTuning(segment_bytes=30_000),
    )


def _commit(rig: HistoryRig, writer: Writer, rng: random.Random, number: int) -> None:
    """Commit large values, so that a state takes several portions: one is at most 8 KiB here."""
    keys = rng.sample(_KEYS, rng.choice([0, 1, 10, 40]))
    rig.commit(writer, number, [(key, None if rng.random() < 0.2 else rng.randbytes(2000)) for key in keys])


def _history(seed: int) -> HistoryRig:
    rng, rig = random.Random(seed), history_rig()
    with Writer(rig.log, "w") as writer:
        for number in range(1, rng.randint(2, 6)):
            _commit(rig, writer, rng, number)
            if rng.random() < 0.5:
                rig.snapshot(merge=rng.random() < 0.5)
    return rig


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    stops=st.lists(st.integers(0, 12), max_size=4),
    fold_bytes=st.sampled_from([1, 60_000, 1 << 20]),
    groups=st.one_of(st.none(), st.frozensets(st.integers(0, 7))),
)
def test_an_interrupted_restore_goes_on_where_it_was(
    seed: int, stops: list[int], fold_bytes: int, groups: frozenset[int] | None
) -> None:
    """A reader that dies any number of times, with any events between, gets every row of one state exactly once."""
    rig, reader = _history(seed), Reader()
    position = rig.end()
    with tempfile.TemporaryDirectory() as directory:
        bounds = _settings(directory, fold_bytes)
        stream = recover(rig.log, key_groups=groups, settings=bounds).stream()
        for portions in stops:
            with stream:
                reader.checkpoint = stream.cursor.to_json()
                for _ in range(portions):
                    portion = stream.take()
                    if portion is None:
                        break
                    reader.apply(portion)
            rig.snapshot(merge=True)
            with Writer(rig.log, "w") as writer:
                _commit(rig, writer, random.Random(seed), 1000 + len(rig.history))
            stream = recover(rig.log, resume=reader.cursor, settings=bounds).stream()
        end = stream.apply(reader.apply)
    expected = rig.state_at(position, groups)
    assert [(row[0], row[2], row[3]) for row in reader.rows] == sorted(
        (rig.key_group(key), key, value) for key, value in expected.items()
    )
    assert (end.position, end.is_complete, end.key_groups) == (position, True, groups)
    assert list_leases(rig.log.store) == []


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32), stops=st.lists(st.integers(1, 8), max_size=3), fold_bytes=st.sampled_from([1, 1 << 20])
)
def test_a_follower_that_dies_misses_nothing(seed: int, stops: list[int], fold_bytes: int) -> None:
    """A follower that is stopped and resumed has, wherever it is complete, exactly the state of that position."""
    rig, reader, rng = _history(seed), Reader(), random.Random(seed)
    applied: Cursor | None = None
    with tempfile.TemporaryDirectory() as directory, Writer(rig.log, "w") as writer:
        bounds = _settings(directory, fold_bytes)
        for number, portions in enumerate([*stops, 1 << 30]):
            _commit(rig, writer, rng, 1000 + 2 * number)
            with recover(rig.log, resume=applied, settings=bounds).follow(poll_s=0) as stream:
                _commit(rig, writer, rng, 1001 + 2 * number)
                end = rig.end()
                for _ in range(portions):
                    _take(rig, stream.take(), reader)
                    if reader.cursor.position == end and reader.cursor.is_complete:
                        break
            applied = reader.cursor
    assert reader.state == rig.state_at(rig.end())
    assert list_leases(rig.log.store) == []


def _take(rig: HistoryRig, portion: Any, reader: Reader) -> None:
    reader.apply(portion)
    if portion.cursor.is_complete:
        assert reader.state == rig.state_at(portion.cursor.position)


@settings(deadline=None)
@given(
    position=st.integers(0, 2**63 - 1),
    group=st.integers(-1, 65535),
    rows=st.integers(0, 2**40),
    groups=st.one_of(st.none(), st.frozensets(st.integers(0, 65535))),
)
def test_what_was_applied_survives_as_text(position: int, group: int, rows: int, groups: frozenset[int] | None) -> None:
    """A cursor comes back unchanged from its text."""
    identity = LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l")
    last = LastRecord(position - 1, rows) if position and rows % 2 else None
    applied = Cursor(identity=identity, applied=Applied(Place(position, last), group, rows), key_groups=groups)
    assert Cursor.from_json(applied.to_json()) == applied
