"""A principal with WRITE on the data topic and no other right: its records, by Kafka's own client, stop nobody.

They are records of zeros, packed by each codec. docs/security.md has their cost in memory and time for a reader.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.support.rigs.attacked import everybody_goes_on, tables_go_on
from tests.support.rigs.log import LogRig, ports_closed, real_rig
from tests.support.services.secure_broker import SecureBroker, topic

pytestmark = [pytest.mark.broker, pytest.mark.timeout(3600)]

STRANGER = "stranger"
MB = 1_000_000
_TIMEOUT_S = 300.0
SIZES = [
    pytest.param("gzip", 40 * MB, id="gzip-40-MB"),
    *(pytest.param(codec, 120 * MB, id=f"{codec}-120-MB") for codec in ("snappy", "lz4", "zstd")),
    pytest.param("snappy", 250 * MB, id="snappy-250-MB", marks=pytest.mark.soak),
    *(pytest.param(codec, 990 * MB, id=f"{codec}-990-MB", marks=pytest.mark.soak) for codec in ("gzip", "lz4", "zstd")),
]
"""The client sends no more than 1 GB at once. Snappy packs 21 to 1, so that no more of it fits into a record."""


@pytest.fixture(scope="module")
def secured(secure_node: SecureBroker) -> SecureBroker:
    """Return a broker that grants nothing by itself."""
    return secure_node.serve({STRANGER: "a password"})


@pytest.fixture
def rig(secured: SecureBroker, log_name: str, tmp_path: Path) -> Iterator[LogRig]:
    """Yield a log to whose data topic the stranger may write."""
    secured.grant(STRANGER, topic(log_name, "WRITE"))
    with ports_closed(real_rig(log_name, secured.plain, tmp_path / "root")) as made:
        yield made


def _attack(broker: SecureBroker, name: str, codec: str, size_bytes: int) -> None:
    """Write one record of zeros."""
    told: list[KafkaError | None] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        told.append(error)

    settings = {"compression.type": codec, "message.max.bytes": "1000000000", "queue.buffering.max.kbytes": "2000000"}
    producer = Producer({**broker.client(STRANGER), **settings})
    producer.produce(name, bytes(size_bytes), partition=0, on_delivery=note)
    producer.flush(_TIMEOUT_S)
    assert told == [None]


@pytest.mark.parametrize(("codec", "size_bytes"), SIZES)
def test_who_may_write_data_stops_nobody(
    secured: SecureBroker, rig: LogRig, codec: str, size_bytes: int, tmp_path: Path
) -> None:
    """Writers, rounds, recoveries, a follower and readers of changes go on past a stranger's records."""
    everybody_goes_on(rig, partial(_attack, secured, rig.name, codec, size_bytes), tmp_path)


def test_who_may_write_data_stops_no_table(secured: SecureBroker, rig: LogRig) -> None:
    """A table opens past a record that the client does not unpack."""
    tables_go_on(rig, partial(_attack, secured, rig.name, "zstd", 120 * MB))
