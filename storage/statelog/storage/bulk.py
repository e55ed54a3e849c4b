"""Many equal records for one partition: what takes offsets, in the ledger or in the data topic.

Invariant: it returns only if every record is surely there; nothing is sent twice.
"""

import time
from collections.abc import Callable

from statelog.schemas.errors import OutcomeUnknown
from statelog.storage.kafka import Delivery, DeliveryStatus, Producer

__all__ = ["append_all"]

_GRACE_S = 5.0  # beyond the client's own delivery timeout, so that a report is never missed by a hair


def append_all(
    producer: Producer,
    topic: str,
    partition: int,
    value: bytes,
    count: int,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[int]:
    """Append `value` `count` times, as many in flight as the client takes; returns the offsets.

    Raises OutcomeUnknown if one of them may be missing: the producer must not be used again.
    """
    reports: list[Delivery] = []
    sent, heard, deadline_s = 0, 0, clock() + producer.delivery_timeout_s + _GRACE_S
    while len(reports) < count and clock() < deadline_s:
        while sent < count and producer.send(topic, partition, value, reports.append):
            sent += 1
        producer.poll(0.2)
        if len(reports) > heard:  # Records that flow are not given up.
            heard, deadline_s = len(reports), clock() + producer.delivery_timeout_s + _GRACE_S
    failed = [report for report in reports if report.status is not DeliveryStatus.OK]
    if failed or len(reports) < count:
        raise OutcomeUnknown(
            "whether all void records are there is not known",
            topic=topic,
            partition=partition,
            reason=failed[0].reason if failed else "no delivery report",
            hint="Try again: what is there already does no harm",
        )
    return [report.offset for report in reports]
