"""Offsets of a stream in Spark's form, the start of a micro-batch, and the options of a stream."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from statelog.errors import ConfigError, Corrupt, Damaged, IdentityChanged, InvalidName, UnknownFormat
from statelog.reading.plan import AtCheckpoint, AtPosition
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.spark.options import Beginning, names_stream, stream_options
from statelog.spark.stream_offset import StreamOffset, batch_start
from statelog.spark.stream_reader import StreamReader

IDENTITY = LogIdentity(cluster_id="C", data_topic_id="D", ledger_topic_id="L")
BEGIN = StreamOffset.initial(IDENTITY, "one", Place(5), awaits_state=True)
LATER = replace(BEGIN, place=Place(9, LastRecord(8, 0x0123456789ABCDEF)), awaits_state=False)
PLACE = {"log": "l", "root": "r", "kafka.bootstrap.servers": "b"}
_DOCUMENT = Path(__file__).parents[3] / "docs/format-stream-offset.md"


def test_an_offset_survives_sparks_checkpoint() -> None:
    """An offset survives as JSON, in the documented form."""
    for one in (BEGIN, LATER):
        assert StreamOffset.from_json(json.loads(json.dumps(one.to_json())), IDENTITY) == one
    shown = _DOCUMENT.read_text("utf-8").split("```json\n")[1].split("```")[0]
    assert StreamOffset.from_json(json.loads(shown), IDENTITY) == LATER
    assert json.loads(shown) == LATER.to_json()


def test_what_is_no_offset_of_this_log_is_refused() -> None:
    """Offsets of another log, a newer version or another source, and damaged ones, are refused."""
    with pytest.raises(IdentityChanged, match="another log"):
        StreamOffset.from_json(LATER.to_json(), replace(IDENTITY, ledger_topic_id="made anew"))
    with pytest.raises(UnknownFormat):
        StreamOffset.from_json({**LATER.to_json(), "version": 3}, IDENTITY)
    wrong: list[dict[str, object]] = [
        {"place": [-1]},
        {"place": ["9"]},
        {"place": [9, 9, "0" * 16]},
        {"place": [9, 8, "0"]},
        {"place": 9},
        {"awaitsState": 1},
        {"more": 1},
        {"reading": None},
        {"version": True},
    ]
    for one in wrong:
        with pytest.raises(Corrupt):
            StreamOffset.from_json({**LATER.to_json(), **one}, IDENTITY)
    for other in ({"0": 17}, 17, "17", None):  # An offset of Spark's rate source is a number.
        with pytest.raises(Corrupt, match=r"not statelog's"):
            StreamOffset.from_json(other, IDENTITY)


def test_an_offset_of_version_1_is_read() -> None:
    """An offset of version 1 has positions, without the records below them."""
    older = {"position": 9, "beginPosition": 5, "version": 1}
    found = {name: value for name, value in LATER.to_json().items() if name not in ("place", "beginPlace")}
    assert StreamOffset.from_json({**found, **older}, IDENTITY) == replace(LATER, place=Place(9))


_VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*LATER.to_json(), "other"]), _VALUES))
def test_hostile_offsets_are_a_value_or_a_typed_error(changed: dict[str, object]) -> None:
    """Any text in a checkpoint is an offset or a typed error."""
    try:
        found = StreamOffset.from_json({**LATER.to_json(), **changed}, IDENTITY)
    except Damaged:
        return
    assert found.to_json() == {**LATER.to_json(), **changed}


def test_a_micro_batch_begins_where_its_own_reading_did() -> None:
    """A repeated first micro-batch begins where its own reading did, although Spark asks for a start again.

    A reset begins where it ends.
    """
    anew = StreamOffset.initial(IDENTITY, "two", Place(30), awaits_state=False)
    assert batch_start(BEGIN, LATER) == BEGIN
    assert batch_start(anew, LATER) == BEGIN
    reset = replace(anew, is_reset=True)
    assert batch_start(LATER, reset) == reset
    after = replace(anew, place=Place(40))
    assert batch_start(reset, after) == reset


def test_a_reader_is_made_without_a_word_and_then_says_what_is_missing() -> None:
    """No option is checked before a reader's first question, since Spark hides exceptions of its construction."""
    reader = StreamReader(PLACE, StructType())
    with pytest.raises(ConfigError, match="startingPosition is missing"):
        reader.getDefaultReadLimit()
    assert pickle.loads(pickle.dumps(reader)).__dict__ == reader.__dict__


def test_where_a_stream_begins_is_one_of_its_options() -> None:
    """The start of a stream is a word, a position or a writer's checkpoint. None, two, or an unknown one is refused."""
    starts = {
        "earliest": Beginning.EARLIEST,
        "LATEST": Beginning.LATEST,
        "snapshot": Beginning.SNAPSHOT,
        "7": AtPosition(7),
    }
    for text, start in starts.items():
        assert stream_options({**PLACE, "startingPosition": text}).start == start
    named = {"startingWriter": "w", "startingCheckpoint": "3"}
    assert stream_options({**PLACE, **named}).start == AtCheckpoint("w", 3)
    refused: list[dict[str, str]] = [
        {}, {"startingPosition": "newest"}, {"startingPosition": "latest", **named}, {"startingWriter": "w"},
        {"startingPosition": "latest", "endingPosition": "9"}, {"startingPosition": "latest", "read": "state"},
        {"startingPosition": "latest", "maxChangesPerTrigger": "0"}, {"startingPosition": "1", "onTruncation": "skip"},
    ]  # fmt: skip
    for one in refused:
        with pytest.raises(ConfigError):
            stream_options({**PLACE, **one})
    with pytest.raises(InvalidName):
        stream_options({**PLACE, "startingPosition": "latest", "readerId": "a/b"})


def test_a_stream_is_told_by_its_options() -> None:
    """Options distinguish a stream from batch reads of changes and of the state, since Spark asks for columns alone."""
    assert all(names_stream({**PLACE, **one}) for one in ({"startingPosition": "5"}, {"readerId": "r"}))
    assert names_stream({**PLACE, "read": "changes", "startingPosition": "snapshot"})
    assert not any(names_stream({**PLACE, **one}) for one in ({}, {"read": "changes", "startingPosition": "5"}))
    assert not names_stream({**PLACE, "read": "state", "readerId": "r"})
