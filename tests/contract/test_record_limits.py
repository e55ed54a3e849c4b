"""Logs whose topics allow smaller records than 16 MiB, as rented clusters do: 1 MiB and 8 MiB, on twin and real broker.

The broker is the judge: it refuses a record above its topic's `max.message.bytes`, and no commit follows.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statelog.errors import InvalidMetadata, UnsafeTopic, ValueTooLarge
from statelog.log import Log, making, topics
from statelog.materializer import CompletedRound, run_round
from statelog.producer import Writer, WriterSettings
from statelog.producer.settings import WriterTuning
from statelog.schemas.topic_policy import TopicRole, topic_config
from tests.support.rigs.log import LogRig, settings_for
from tests.support.rigs.table import TableRig

MIB = 1 << 20
OVERHEAD = 2 + 1 + 4 + 4  # key group, op, and an offset each for key and value
COLUMNS = [{"name": f"f{i}", "type": "string"} for i in range(400)]
WIDE = {"type": "record", "name": "W", "fields": COLUMNS}


@pytest.fixture(params=[1, 8], ids=lambda mib: f"{mib}MiB")
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield the limit of new topics: Kafka's default is 12 bytes more than 1 MiB."""
    allowed = int(request.param) * MIB

    def with_small_records(role: TopicRole, replication_factor: int) -> dict[str, str]:
        return {**topic_config(role, replication_factor), "max.message.bytes": str(allowed + 12)}

    monkeypatch.setattr(topics, "topic_config", with_small_records)
    yield allowed


def largest(limit: int) -> int:
    """Return the largest value under a key of one byte."""
    return limit * 15 // 16 - OVERHEAD - 1


def test_a_log_keeps_to_what_its_topics_allow(limit: int, rig: LogRig, tmp_path: Path) -> None:
    """A log keeps to its topics' limit: chunks of many changes and of one, meta records and metadata of a commit.

    All of them may be as large as the limit.
    """
    wanted = {b"%d" % number: os.urandom(3000) for number in range(4000)} | {b"l": os.urandom(largest(limit))}
    with rig.create() as log:
        assert log.descriptor.record_bytes_max == limit
        with Writer(log, "w", settings=WriterSettings(_tuning=WriterTuning(chunk_bytes=8 * MIB))) as writer:
            for key, value in wanted.items():
                writer.put(key, value)
            writer.append_meta("meta", os.urandom(limit // 2 - 4))
            writer.commit({"offset": "x" * (limit * 3 // 8)})
            assert limit // 2 < writer.statistics().chunk_bytes.largest <= limit
    assert rig.state() == wanted
    with rig.open() as log:
        assert isinstance(run_round(log, settings_for(tmp_path)), CompletedRound)
        assert log.describe().state.meta[0].value
    assert rig.state() == wanted


def test_what_is_larger_is_refused_before_it_is_sent(limit: int, rig: LogRig) -> None:
    """A larger record is refused before it is sent, with the limit and the setting's name.

    The writer goes on, whichever way the change came in.
    """
    with rig.create() as log, Writer(log, "w") as writer:
        for size in (largest(limit) + 1, 20 * MIB):
            with pytest.raises(ValueTooLarge, match="larger than a chunk") as caught:
                writer.put(b"k", bytes(size))
            assert caught.value.facts["max_bytes"] == limit * 15 // 16
            assert "max.message.bytes" in caught.value.hint
        with pytest.raises(ValueTooLarge) as meta:
            writer.append_meta("m", bytes(limit // 2 + 1))
        assert "max.message.bytes" in meta.value.hint
        writer.put(b"k", b"v")
        handle = writer.persist(1).result()
        with pytest.raises(ValueTooLarge, match="ledger record") as commit:
            writer.confirm(handle, {"offset": "x" * limit})
        assert commit.value.facts["max_bytes"] == limit * 15 // 16
        assert "max.message.bytes" in commit.value.hint
        writer.confirm(handle, {"offset": 1})
    assert rig.state() == {b"k": b"v"}


def test_a_table_keeps_to_it(limit: int, rig: LogRig) -> None:
    """A table refuses larger values and progress where they come in, and goes on."""
    progress = min(limit // 4, MIB) // 4
    with TableRig(rig, None).open() as table:
        with pytest.raises(ValueTooLarge):
            table[b"k"] = bytes(largest(limit) + 1)
        table[b"k"] = os.urandom(largest(limit))
        with pytest.raises(InvalidMetadata, match="progress is too large"):
            table.commit({"at": "x" * progress})
        table.commit({"at": "x" * (progress - 2)})
        table[b"l"] = b"v"
        table.commit({"at": "é" * (progress - 2)})
    assert rig.state().keys() == {b"k", b"l"}


NOTES = {
    "type": "record",
    "name": "N",
    "fields": [
        {"name": "text", "type": "string"},
        {"name": "texts", "type": {"type": "array", "items": "string"}},
        {"name": "wide", "type": {"type": "array", "items": ["null", {**WIDE, "fields": COLUMNS[:40]}]}},
    ],
}
NOTE: dict[str, Any] = {"text": "", "texts": [], "wide": []}


@pytest.mark.parametrize(
    ("field", "item", "item_bytes"), [("text", "\U0001f600", 4), ("texts", [""], 4), ("wide", [None], 160)]
)
def test_typed_values_are_refused_where_they_come_in(
    limit: int, rig: LogRig, field: str, item: Any, item_bytes: int
) -> None:
    """Typed values are refused by their size in the log, not by characters: accepted ones can be committed."""
    with TableRig(rig, None).open(value_schema=json.dumps(NOTES)) as table:
        with pytest.raises(ValueTooLarge):
            table[b"k"] = {**NOTE, field: item * (limit // item_bytes)}
        table[b"k"] = {**NOTE, field: item * (limit // 2 // item_bytes)}
        table.commit({"n": 1})


def test_wide_values_leave_room_for_their_columns(limit: int, rig: LogRig) -> None:
    """Wide values leave room for their columns, each of which takes some bytes in Arrow: accepted values are sent."""
    with rig.create(value_schema=json.dumps(WIDE)) as log, Writer(log, "w") as writer:
        fields = {f"f{i}": "" for i in range(400)}
        size = limit
        while True:
            try:
                writer.put(b"k", {**fields, "f7": "y" * size})
                break
            except ValueTooLarge as error:
                size -= int(str(error.facts["size_bytes"])) - int(str(error.facts["max_bytes"]))
        writer.commit()
        assert size > limit * 7 // 8
        assert limit * 7 // 8 < writer.statistics().chunk_bytes.largest <= limit


def test_a_topic_may_come_to_allow_more_but_not_less(limit: int, rig: LogRig) -> None:
    """A topic may come to allow more, which changes nothing for the log, but not less.

    Less is refused at every open, with the present and the required value.
    """
    rig.create().close()
    for topic in (rig.name, f"{rig.name}.ledger"):
        rig.set_topic_config(topic, {"max.message.bytes": str(limit - 1)})
        with pytest.raises(UnsafeTopic, match=rf"max\.message\.bytes is {limit - 1} and must be at least {limit}"):
            rig.open()
        rig.set_topic_config(topic, {"max.message.bytes": str(20 * MIB)})
    with rig.open() as log, Writer(log, "w") as writer:
        assert log.descriptor.record_bytes_max == limit
        with pytest.raises(ValueTooLarge):
            writer.put(b"k", bytes(limit))


def test_a_topic_that_allows_less_than_a_mebibyte(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that allows less than a mebibyte gets no log."""

    def tiny_records(*_: object) -> dict[str, str]:
        return {"retention.ms": "-1", "max.message.bytes": "1000000"}

    monkeypatch.setattr(topics, "topic_config", tiny_records)
    with pytest.raises(UnsafeTopic, match="must be at least 1048576") as caught:
        rig.create()
    assert "max.message.bytes is 1000000" in caught.value.message


def test_a_create_that_died_keeps_its_limit(limit: int, rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A create that died keeps its limit: the next run finishes that log, though the topics allow more by now."""
    with monkeypatch.context() as dying:
        dying.setattr(making, "mark_ledger", _die)
        with pytest.raises(KeyboardInterrupt):
            rig.create()
    rig.set_topic_config(rig.name, {"max.message.bytes": str(20 * MIB)})
    rig.set_topic_config(f"{rig.name}.ledger", {"max.message.bytes": str(20 * MIB)})
    with rig.create() as log:
        assert log.descriptor.record_bytes_max == limit
    with rig.open() as log:
        assert isinstance(log, Log)


def _die(*_: object) -> None:
    raise KeyboardInterrupt
