"""Transaction markers on a real broker: the one way to make offsets that hold no record.

statelog writes no transactions; others may, and a reader must step over what they leave behind.
"""

import uuid

from confluent_kafka import KafkaError, Message, Producer

__all__ = ["write_marker"]


def write_marker(bootstrap: str, topic: str, partition: int) -> int:
    """Write one record in a transaction of its own; returns the offset that the marker behind it takes up."""
    offsets: list[int] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() or 0)

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"in a transaction", partition=partition, on_delivery=note)
    producer.flush(60)
    producer.commit_transaction(60)
    producer.close()
    return offsets[0] + 1
