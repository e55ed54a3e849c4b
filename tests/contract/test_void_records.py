"""Records of the data topic that no commit lists are void, whatever their bytes: on the twins and on a real broker."""

import time
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.kafka.port import Delivery, OffsetRange
from statelog.log import Log
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.schemas.changes.changes import PUT
from statelog.schemas.changes.chunk import decode_head, encode_chunk
from statelog.schemas.ledger.place import Place
from tests.support.rigs.log import LogRig, settings_for
from tests.support.samples.chunks import rows_batch

SMALL = WriterSettings(_tuning=WriterTuning(roll_rows=4, roll_bytes=300, chunk_bytes=300))
TIMEOUT_S = 60.0


def test_records_that_no_commit_lists_are_void(rig: LogRig, tmp_path: Path) -> None:
    """Junk with our magic, a newer version, and forged or repeated chunks of the change set being written are void.

    The commit is acknowledged, and recoveries and rounds read what its writer wrote.
    """
    model = {b"key-%d" % i: b"honest" * 20 for i in range(24)}
    pairs = list(model.items())
    with rig.create(partitions=1, key_groups=2) as log:
        _send(log, b"SLCK", b"SLCK")
        with Writer(log, "w", settings=SMALL) as writer:
            for key, value in pairs[:12]:
                writer.put(key, value)
            _send(log, *_junk(_sent_chunk(log)))
            for key, value in pairs[12:]:
                writer.put(key, value)
            writer.commit(checkpoint_id=1)
    assert rig.state() == model
    with rig.open() as log:
        assert recover(log).to_dict() == model
        assert isinstance(Environment(wall_clock=time.time).run(run_round, log, settings_for(tmp_path)), CompletedRound)
        assert recover(log).to_dict() == model


def test_an_adopted_handle_is_verified_past_junk(rig: LogRig) -> None:
    """A handle that another incarnation persisted is adopted, although strangers wrote between its chunks."""
    with rig.create(partitions=1, key_groups=2) as log:
        with pytest.warns(UserWarning, match="uncommitted"), Writer(log, "w", settings=SMALL) as writer:
            for i in range(8):
                writer.put(b"a%d" % i, bytes(100))
            _send(log, *_junk(_sent_chunk(log)))
            for i in range(8):
                writer.put(b"b%d" % i, bytes(100))
            handle = writer.persist(1).result()
        with Writer(log, "w") as later:
            later.adopt(handle)
    assert len(rig.state()) == 16


def _junk(chunk: bytes) -> list[bytes]:
    """Return records that anybody with access to the topic can make of a chunk of a change set being written."""
    found = decode_head(chunk)
    assert found is not None
    head = found[0]
    batch = rows_batch([(head.first_key_group, PUT, b"key-0", b"forged")])
    seal: dict[str, Any] = {
        "witness": Place(1 << 40),
        "key": b"not the log's",
        "key_groups": [head.first_key_group],
        "body": memoryview(batch.serialize()),
    }  # The position to which a ledger reached, by their claim.
    forged = [
        encode_chunk(epoch=head.epoch, nonce=head.nonce, sqn=head.sqn, index=i, value_schema_id=0, **seal).value
        for i in (head.index + 1, head.index + 2, 0)
    ]
    newer = b"SLCK\x03" + bytes(40)
    return [b"", b"hello", b"SLCK", b"SLCK\1" + bytes(11) + b"x" * 50, newer, chunk[:-1], chunk, *forged]


def _sent_chunk(log: Log) -> bytes:
    """Return the newest chunk in the topic, once there is one."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        reader = log.kafka.reader(log.data_topic)
        try:
            ends = {0: OffsetRange(0, log.data_offsets()[0].end)}
            values = [record.value for record in reader.read(ends, stall_timeout_s=TIMEOUT_S)]
        finally:
            reader.close()
        chunks = [value for value in values if len(value) > 100]
        if chunks:
            return chunks[-1]
    raise AssertionError("no chunk was sent")


def _send(log: Log, *values: bytes) -> None:
    """Write a stranger's records to the data topic."""
    producer = log.kafka.producer()
    reports: list[Delivery] = []
    try:
        for value in values:
            assert producer.send(log.data_topic, 0, value, reports.append)
        deadline = time.monotonic() + TIMEOUT_S
        while len(reports) < len(values) and time.monotonic() < deadline:
            producer.poll(0.1)
    finally:
        producer.close()
    assert [report.status.value for report in reports] == ["ok"] * len(values)
