"""A writer that refuses: its state stays, it goes on, and nothing is lost silently."""

import datetime
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from statelog.errors import (
    CheckpointMismatch,
    ClosedError,
    IdentityChanged,
    InvalidChange,
    InvalidMetadata,
    KeyGroupMismatch,
    ValueTooLarge,
)
from statelog.log import Log
from statelog.producer.coordinator import Coordinator
from statelog.producer.guard import Life
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType
from tests.support.rigs.log import LogRig, twin_rig

pytestmark = pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")

TEXTS = """{"type": "record", "name": "Texts", "fields": [
    {"name": "text", "type": "string"}, {"name": "texts", "type": {"type": "array", "items": "bytes"}}]}"""


@pytest.fixture
def rig() -> LogRig:
    """Return a log's two places, in memory."""
    return twin_rig("l")


@pytest.fixture
def log(rig: LogRig) -> Iterator[Log]:
    """Yield a new log of opaque values under bytes keys."""
    with rig.create() as created:
        yield created


def test_a_refused_change_leaves_no_key_group_behind(rig: LogRig) -> None:
    """A value that is too large leaves no key group behind, which would shift the key groups of later changes."""
    with rig.create(hash_rule=HashRule.CALLER) as log, Writer(log, "w") as writer:
        with pytest.raises(ValueTooLarge):
            writer.append(3, b"large", bytes(16 << 20))
        writer.append(5, b"k", b"v")
        handle = writer.persist(1).result()
        writer.confirm(handle)

    assert [entry.partition for entry in handle.entries] == [1]
    assert rig.state() == {b"k": b"v"}


def test_a_put_without_a_key_group_is_refused_at_once(rig: LogRig) -> None:
    """A put that names no key group is refused and not buffered where the caller names them."""
    with rig.create(hash_rule=HashRule.CALLER) as log, Writer(log, "w") as writer:
        for _ in range(3):
            with pytest.raises(KeyGroupMismatch):
                writer.put(b"k", b"v")
            with pytest.raises(KeyGroupMismatch):
                writer.delete(b"k")
        writer.append(5, b"l", b"w")
        writer.commit(checkpoint_id=1)

    assert rig.state() == {b"l": b"w"}


@pytest.mark.parametrize(
    ("metadata", "blamed"),
    [
        ({"offset": b"42"}, "'offset' cannot hold b'42'"),
        ({"offset": None}, "'offset' cannot hold None"),
        ({"offset": {"a": 1}}, "'offset' cannot hold"),
        ({"offset": 1 << 63}, "'offset' cannot hold 9223372036854775808"),
        ({"offset": math.nan}, "'offset' cannot hold nan"),
        ({"offset": "\ud800"}, "'offset' cannot hold"),
        ({1: "x"}, "names of commit metadata are text, and 1 is not"),
        ({"\ud800": "x"}, "names of commit metadata are text"),
        (["offset"], "is a mapping, and not list"),
        (7, r"is a mapping, and not int.*commit\(metadata, checkpoint_id=7\)"),
    ],
    ids=str,
)
def test_metadata_that_cannot_be(rig: LogRig, log: Log, metadata: Any, blamed: str) -> None:
    """Invalid metadata is refused before anything is persisted, and the writer goes on."""
    with Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        with pytest.raises(InvalidMetadata, match=blamed):
            writer.commit(metadata, checkpoint_id=1)
        handle = writer.persist(1).result()
        with pytest.raises(InvalidMetadata, match=blamed):
            writer.confirm(handle, metadata)
        writer.confirm(handle, {"offset": 42})

    assert rig.state() == {b"k": b"v"}


def test_metadata_that_no_ledger_record_holds(rig: LogRig, log: Log) -> None:
    """A commit that is too large is refused before it is sent; the same handle is committed without the ballast."""
    with Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        handle = writer.persist(1).result()
        with pytest.raises(ValueTooLarge, match="ledger record"):
            writer.confirm(handle, {"offset": "x" * (15 << 20)})
        writer.confirm(handle)

    assert rig.state() == {b"k": b"v"}


@pytest.mark.parametrize("record", [("\ud800", b"v"), ("key", "text"), (b"key", b"v"), ("key", 1)])
def test_meta_records_are_text_and_bytes(log: Log, record: tuple[str, bytes]) -> None:
    """A meta record of another type is refused where it comes in, not at the commit."""
    with Writer(log, "w") as writer:
        with pytest.raises(InvalidChange):
            writer.append_meta(*record)
        writer.commit(checkpoint_id=1)


def test_meta_records_that_no_commit_holds_are_refused_at_append(rig: LogRig, log: Log) -> None:
    """Meta records that no commit holds are refused at append, with unconfirmed checkpoints' ones counted.

    The writer goes on, and a commit makes room.
    """
    with Writer(log, "w") as writer:
        with pytest.raises(ValueTooLarge):
            writer.append_meta("m", bytes(9 << 20))
        writer.append_meta("m", bytes(5 << 20))
        writer.persist(1)
        with pytest.raises(ValueTooLarge):
            writer.append_meta("m", bytes(5 << 20))
        writer.commit(checkpoint_id=2)
        writer.append_meta("m", bytes(5 << 20))
        writer.commit(checkpoint_id=3)


@pytest.mark.parametrize("checkpoint_id", [-1, 0, 1 << 63, 1.5, "1", True])
def test_checkpoint_ids_fit(log: Log, checkpoint_id: Any) -> None:
    """An id that no checkpoint can have is refused, by a writer and by a coordinator."""
    with Writer(log, "w") as writer:
        with pytest.raises(CheckpointMismatch):
            writer.commit(checkpoint_id=checkpoint_id)
        writer.commit(checkpoint_id=1)
    with Coordinator(log, "c") as coordinator:
        with pytest.raises(CheckpointMismatch):
            coordinator.commit([], checkpoint_id=checkpoint_id)
        coordinator.commit([], checkpoint_id=1)


@pytest.mark.parametrize(
    ("key_type", "column"),
    [
        (KeyType.BYTES, pa.array([1])),
        (KeyType.STRING, pa.array([1])),
        (KeyType.STRING, pa.array([1.5])),
        (KeyType.STRING, pa.array([True])),
        (KeyType.STRING, pa.array([datetime.date(2020, 2, 29)])),
        (KeyType.STRING, pa.array([b"\xff"])),
        (KeyType.LONG, pa.array(["12"])),
        (KeyType.LONG, pa.array([1.0])),
        (KeyType.LONG, pa.array([datetime.datetime(2020, 2, 29, tzinfo=datetime.UTC)])),
        (KeyType.LONG, pa.array([1 << 63], pa.uint64())),
        (KeyType.LONG, pa.array([None])),
    ],
    ids=str,
)
def test_a_batch_makes_no_key_that_a_put_refuses(key_type: KeyType, column: pa.Array) -> None:
    """A batch makes no key that a put refuses; only text and bytes, and all integers, are one kind."""
    rig = twin_rig("log")
    value = pa.array([b"v"])
    with rig.create(key_type=key_type) as log, Writer(log, "w") as writer:
        for batch in (pa.table({"key": column, "value": value}), pa.table({"key": ["a"]}), [1], None):
            given: Any = batch
            with pytest.raises(InvalidChange):
                writer.append_batch(given)
        good: pa.Array = pa.array([7], pa.int8()) if key_type is KeyType.LONG else pa.array(["ä"], pa.large_string())
        writer.append_batch(pa.table({"key": good, "value": value}))
        writer.append_batch(pa.table({"key": good.dictionary_encode(), "value": value}))
        writer.commit(checkpoint_id=1)
    assert rig.state() == {{KeyType.LONG: 7, KeyType.STRING: "ä", KeyType.BYTES: "ä".encode()}[key_type]: b"v"}


def test_a_handle_that_was_confirmed_is_refused(rig: LogRig, log: Log) -> None:
    """A second confirm of a handle is refused before anything is sent, and the writer goes on."""
    with Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        handle = writer.persist(1).result()
        writer.confirm(handle)
        with pytest.raises(CheckpointMismatch):
            writer.confirm(handle)
        writer.put(b"l", b"w")
        writer.commit(checkpoint_id=2)

    assert rig.state() == {b"k": b"v", b"l": b"w"}


def test_a_checkpoint_that_a_later_one_included_is_refused(rig: LogRig, log: Log) -> None:
    """A checkpoint that a later one included is refused: it has nothing to add, and the writer goes on."""
    with Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        first = writer.persist(1).result()
        writer.put(b"k", b"w")
        writer.confirm(writer.persist(2).result())
        with pytest.raises(CheckpointMismatch):
            writer.confirm(first)
        writer.commit(checkpoint_id=3)

    assert rig.state() == {b"k": b"w"}


def test_a_handle_of_another_log_is_not_a_loss(rig: LogRig, log: Log) -> None:
    """A handle of another log gets its own error, before a futile search for its chunks in this log."""
    other = LogRig("m", rig.kafka, twin_rig("m").store)
    with other.create() as elsewhere, Writer(elsewhere, "w") as writer:
        writer.put(b"k", b"v")
        handle = writer.persist(1).result()
    with Writer(log, "w") as writer:
        with pytest.raises(IdentityChanged):
            writer.adopt(handle)
        writer.commit(checkpoint_id=1)
    with Coordinator(log, "c") as coordinator:
        with pytest.raises(IdentityChanged):
            coordinator.commit([handle], checkpoint_id=1)
        coordinator.commit([], checkpoint_id=1)


def test_a_coordinator_adopts_meta_records(rig: LogRig, log: Log) -> None:
    """A handle without changes is not empty if it has meta records."""
    with Writer(log, "w") as writer:
        writer.append_meta("state", b"v1")
        handle = writer.persist(1).result()
    with rig.open() as again, Coordinator(again, "w") as coordinator:
        coordinator.commit([handle], checkpoint_id=1)
        rows = again.describe().state.meta

    assert [(row.key, row.value) for row in rows] == [("state", b"v1")]


@pytest.mark.parametrize("value", [{"text": "x" * (16 << 20)}, {"texts": [bytes(1 << 20)] * 16}])
def test_a_typed_value_that_no_chunk_holds_is_refused_at_append(value: dict[str, Any]) -> None:
    """Texts and bytes, nested ones too, are measured before Arrow sees them; the writer goes on."""
    rig = twin_rig("typed")
    with rig.create(value_schema=TEXTS) as log, Writer(log, "w") as writer:
        with pytest.raises(ValueTooLarge):
            writer.put(b"k", {"text": "", "texts": [], **value})
        writer.put(b"l", {"text": "a", "texts": [b"b"]})
        writer.commit(checkpoint_id=1)

    assert rig.state() == {b"l": {"text": "a", "texts": [b"b"]}}


def test_large_typed_values_fill_the_buffer_early() -> None:
    """The buffer is bounded by size, not by number alone: values of a megabyte are sent as they come."""
    rig = twin_rig("typed")
    settings = WriterSettings(_tuning=WriterTuning(list_bytes=1 << 10, roll_bytes=1 << 10))
    with rig.create(value_schema=TEXTS) as log, Writer(log, "w", settings=settings) as writer:
        for i in range(10):
            writer.put(b"%d" % i, {"text": "x" * 1_000, "texts": []})
            assert writer.statistics().buffered_changes < 3
        writer.commit(checkpoint_id=1)


def test_a_handle_of_an_earlier_life_is_adopted_not_confirmed(rig: LogRig, log: Log) -> None:
    """A handle of an earlier incarnation is adopted, which checks its chunks, and not confirmed, which does not."""
    with Writer(log, "w") as earlier:
        earlier.put(b"k", b"v")
        handle = earlier.persist(1).result()
    with rig.open() as again, Writer(again, "w") as writer:
        with pytest.raises(CheckpointMismatch, match="this life"):
            writer.confirm(handle)
        writer.adopt(handle)

    assert rig.state() == {b"k": b"v"}


def test_a_final_commit_closes_the_writer(rig: LogRig, log: Log) -> None:
    """A put after a final commit is refused at once; the last commit is still reported."""
    with Writer(log, "w") as writer:
        writer.put(b"k", b"v")
        offset = writer.commit(checkpoint_id=1, final=True).offset
        assert writer.life is Life.CLOSED
        assert writer.last_commit is not None
        assert writer.last_commit.offset == offset
        with pytest.raises(ClosedError):
            writer.put(b"l", b"w")

    assert rig.state() == {b"k": b"v"}
