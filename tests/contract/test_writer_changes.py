"""Changes on their way in, on twin and broker: refusals at append, order, types of keys and values."""

from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

from statelog.errors import (
    InvalidChange,
    KeyGroupMismatch,
    ValueTooLarge,
)
from statelog.log import Log
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType, key_group_of
from tests.support.rigs.log import LogRig, key_in

POINT = """{"type": "record", "name": "Point", "fields": [
    {"name": "x", "type": "long"}, {"name": "label", "type": ["null", "string"], "default": null}]}"""


def test_a_foreign_partition_is_refused_at_append(log: Log) -> None:
    """A change for a partition that the writer did not open is refused at append and not buffered."""
    with Writer(log, "w", partitions=[0]) as writer:
        with pytest.raises(KeyGroupMismatch):
            writer.put(key_in(log, 1), b"v")
        with pytest.raises(KeyGroupMismatch):
            writer.append_batch(pa.table({"key": [key_in(log, 1)], "value": [b"v"]}))
        writer.put(key_in(log, 0), b"v")
        writer.commit(checkpoint_id=1)


@pytest.mark.parametrize(
    ("key", "value"), [("text", b"v"), (1, b"v"), (b"k", "text"), (b"k", None), (None, b"v"), (bytearray(b"k"), b"v")]
)
def test_wrong_types_are_refused_at_append(log: Log, key: Any, value: Any) -> None:
    """A key or value of another type is refused by the call that brings it, and the writer goes on."""
    with Writer(log, "w") as writer:
        with pytest.raises(InvalidChange):
            writer.put(key, value)
        writer.commit(checkpoint_id=1)


def test_a_value_above_the_limit_is_refused_at_append(rig: LogRig, log: Log) -> None:
    """A value that no chunk could hold is refused, one below the limit arrives, and nothing else is lost."""
    with Writer(log, "w") as writer:
        writer.put(b"before", b"1")
        with pytest.raises(ValueTooLarge):
            writer.put(b"k", bytes(16 << 20))
        with pytest.raises(ValueTooLarge):
            writer.append_batch(pa.table({"key": [b"k"], "value": [bytes(16 << 20)]}))
        writer.put(b"large", bytes(9 << 20))
        writer.commit(checkpoint_id=1)

    state = rig.state()

    assert state[b"before"] == b"1"
    assert len(state[b"large"]) == 9 << 20


def test_batches_and_single_changes_keep_their_order(rig: LogRig, log: Log) -> None:
    """A batch between puts overwrites earlier changes and is overwritten by later ones."""
    with Writer(log, "w") as writer:
        writer.put(b"a", b"first")
        writer.put(b"b", b"first")
        writer.append_batch(
            pa.table({"key": [b"a", b"b", b"c"], "op": ["put", "delete", "put"], "value": [b"batch", None, b"batch"]})
        )
        writer.put(b"c", b"last")
        writer.append_batch(pa.table({"key": [b"d", b"a"], "value": [b"x", None]}))
        writer.commit(checkpoint_id=1)

    assert rig.state() == {b"c": b"last", b"d": b"x"}


def test_many_chunks_and_back_pressure(rig: LogRig, log: Log) -> None:
    """With tiny chunks and hardly any room in flight every change still arrives, in order."""
    settings = WriterSettings(
        in_flight_bytes_max=1024,
        _tuning=WriterTuning(roll_rows=50, list_bytes=1 << 10, roll_bytes=1 << 11, chunk_bytes=256),
    )
    expected = {}
    with Writer(log, "w", settings=settings) as writer:
        for i in range(3_000):
            key, value = b"k%d" % (i % 70), b"v%d" % i
            writer.put(key, value)
            expected[key] = value
        writer.commit(checkpoint_id=1)

    assert rig.state() == expected


@pytest.mark.parametrize("list_bytes", [1, 1 << 21])
def test_puts_of_every_size_keep_their_order(rig: LogRig, log: Log, list_bytes: int) -> None:
    """Puts of every size keep their order, small ones in the lists and large ones by themselves: the last put of a key
    counts.

    A refused put in between leaves no key or value behind for the next one.
    """
    sizes = [0, 1, (1 << 20) - 5, 1 << 20, 3, (1 << 20) - 4, 2, 600_000, 600_000, 600_000, 4]
    with Writer(log, "w", settings=WriterSettings(_tuning=WriterTuning(list_bytes=list_bytes))) as writer:
        for i, size in enumerate(sizes):
            for key in (b"same", b"k%03d" % i):
                writer.put(key, bytes([i]) * size)
            for wrong_key, wrong_value in (("text", b"v"), (b"k", "text"), (7, b"v")):
                with pytest.raises(InvalidChange):
                    writer.put(wrong_key, wrong_value)
        writer.commit()
        assert writer.statistics().changes == 2 * len(sizes)

    expected = {b"k%03d" % i: bytes([i]) * size for i, size in enumerate(sizes)}
    assert rig.state() == {**expected, b"same": expected[b"k%03d" % (len(sizes) - 1)]}


def test_string_and_long_keys(rig: LogRig) -> None:
    """Keys of the log's type come back as that type, negative longs and non-ASCII text included."""
    with rig.create(key_type=KeyType.LONG) as log, Writer(log, "w") as writer:
        for key in (0, -1, 1 << 62, -(1 << 63), (1 << 63) - 1):
            writer.put(key, b"%d" % key)
        with pytest.raises(InvalidChange):
            writer.put(1 << 63, b"v")
        with pytest.raises(InvalidChange):
            writer.put(True, b"v")
        writer.commit(checkpoint_id=1)

    assert rig.state() == {key: b"%d" % key for key in (0, -1, 1 << 62, -(1 << 63), (1 << 63) - 1)}


def test_typed_values(rig: LogRig) -> None:
    """Values by an Avro schema come back as their fields, from mappings and from columns."""
    with rig.create(key_type=KeyType.STRING, value_schema=POINT) as log, Writer(log, "w") as writer:
        writer.put("a", {"x": 1, "label": "é"})
        writer.put("b", {"x": 2})
        writer.append_batch(
            pa.table({"key": ["c", "a"], "op": [0, 1], "x": [3, None], "label": pa.array([None, None], pa.string())})
        )
        writer.commit(checkpoint_id=1)

    assert rig.state() == {"b": {"x": 2, "label": None}, "c": {"x": 3, "label": None}}


def test_a_typed_value_that_does_not_fit_loses_nothing_silently(rig: LogRig) -> None:
    """A typed value with a wrong field is refused, at the latest at the persist; no commit lacks it silently."""
    with rig.create(value_schema=POINT) as log:
        writer = Writer(log, "w")
        writer.put(b"a", {"x": 1})
        writer.put(b"b", {"x": "no number"})
        with pytest.raises(InvalidChange):
            writer.commit(checkpoint_id=1)
        writer.close()

    assert rig.state() == {}


def test_key_groups_named_by_the_caller(rig: LogRig) -> None:
    """Where the caller names key groups they decide, and the same key may live in two of them."""
    with rig.create(hash_rule=HashRule.CALLER) as log, Writer(log, "w") as writer:
        writer.append(0, b"k", b"in 0")
        writer.append(15, b"k2", b"in 15")
        with pytest.raises(KeyGroupMismatch):
            writer.append(16, b"k", b"v")
        writer.append_batch(pa.table({"key": [b"m"], "value": [b"batch"], "key_group": pa.array([3], pa.int32())}))
        with pytest.raises(KeyGroupMismatch):
            writer.append_batch(pa.table({"key": [b"m"], "value": [b"batch"]}))
        with pytest.raises(InvalidChange, match="nulls"):
            writer.append_batch(pa.table({"key": [b"m"], "value": [b"b"], "key_group": pa.array([None], pa.int32())}))
        writer.commit(checkpoint_id=1)

    assert rig.state() == {b"k": b"in 0", b"k2": b"in 15", b"m": b"batch"}


def test_a_named_key_group_must_be_that_of_the_prefix(rig: LogRig) -> None:
    """A named key group must be the prefix's, one by one and in a batch: the whole key's own is refused."""
    with rig.create(hash_rule="crc32-prefix", prefix_bytes=2) as log, Writer(log, "w") as writer:
        own, of_whole = key_group_of(b"ab", KeyType.BYTES, 16), key_group_of(b"abc", KeyType.BYTES, 16)
        assert own != of_whole
        for group in (own, of_whole):
            changes = pa.table({"key": [b"abc"], "value": [b"2"], "key_group": pa.array([group], pa.uint16())})
            with nullcontext() if group == own else pytest.raises(KeyGroupMismatch):
                writer.append(group, b"abd", b"1") if group == own else writer.append(group, b"abc", b"1")
            with nullcontext() if group == own else pytest.raises(KeyGroupMismatch):
                writer.append_batch(changes)
        writer.put(b"a", b"3")
        writer.commit(checkpoint_id=1)
        assert recover(log, key_groups=[own]).to_dict() == {b"abc": b"2", b"abd": b"1"}
        assert recover(log).to_dict() == {b"abc": b"2", b"abd": b"1", b"a": b"3"}


def test_a_named_key_group_must_be_the_keys_own(log: Log) -> None:
    """In a hashed log a wrong key group is refused, and the right one accepted."""
    own = key_group_of(b"k", log.descriptor.key_type, log.descriptor.key_groups)
    with Writer(log, "w") as writer:
        with pytest.raises(KeyGroupMismatch):
            writer.append((own + 1) % 16, b"k", b"v")
        writer.append(own, b"k", b"v")
        writer.commit(checkpoint_id=1)
