"""Appends many equal records to one partition, to fill offsets of the ledger or the data topic.

Invariant: it returns only if every record is surely there; nothing is sent twice.
"""

import time
from collections.abc import Callable

from statelog.errors import OutcomeUnknown
from statelog.storage.kafka import Delivery, DeliveryStatus, Producer
from statelog.storage.ledger_client import STALL_TIMEOUT_S

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

    Waits for as long as they flow. Raises OutcomeUnknown if one of them may be missing: the producer must not be used
    again.
    """
    stall_s = min(producer.delivery_timeout_s, STALL_TIMEOUT_S) + _GRACE_S
    reports: list[Delivery] = []
    sent, heard, deadline_s = 0, 0, clock() + stall_s
    while len(reports) < count and clock() < deadline_s:
        while sent < count and producer.send(topic, partition, value, reports.append):
            sent += 1
        producer.poll(0.2)
        if len(reports) > heard:
            heard, deadline_s = len(reports), clock() + stall_s
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
