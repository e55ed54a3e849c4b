"""A table that no Arrow array holds, on a real broker."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from statelog.producer.writer import Writer
from statelog.reading.replay import replay
from statelog.schemas.changes.replay_plan import plan_replay
from tests.support.rigs.log import real_rig
from tests.support.services.broker import Broker

BATCHES, ROWS = 20, 256


@pytest.mark.broker
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_table_of_more_than_two_gigabytes(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A table of 2.5 GiB of values in one call, whose memory is shared here, is committed and read back."""
    values = pa.array([os.urandom(1 << 19)] * ROWS)
    batches = [
        pa.record_batch({"key": [b"%d" % (i * ROWS + row) for row in range(ROWS)], "value": values})
        for i in range(BATCHES)
    ]
    rig = real_rig(log_name, broker.bootstrap, tmp_path)
    with rig.create(partitions=2) as log:
        with Writer(log, "w") as writer:
            writer.append_batch(pa.Table.from_batches(batches))
            writer.commit(checkpoint_id=1)
            assert writer.statistics().chunk_bytes.largest < 2 << 20
        with log.replay() as ledger:
            contents = [valid.contents for valid in ledger.commits(log.ledger.end())]
        reader = log.kafka.reader(log.data_topic)
        plan = plan_replay(contents, range(2))
        chunks = replay(log, reader, plan, stall_timeout_s=60)
        assert sum(chunk.changes.num_rows for chunk in chunks) == BATCHES * ROWS
        reader.close()
