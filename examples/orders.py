"""Open orders with a standby: when their owner dies, another process takes over with all commits.

    statelog dev start                          # a Kafka on 127.0.0.1:9092
    python -m examples.orders input             # puts events of orders into a topic of one partition; again for more
    python -m examples.orders                   # in two terminals: one is the owner, the other stands by
    python -m examples.orders check             # compares the open orders with those of a plain loop over the topic
    python -m examples.orders clean             # deletes topic and log

The consumer group chooses the owner: it gives the topic's one partition to one of the processes. All others have the
state nearly up to date in memory, so that a takeover reads next to nothing. Kill the owner with SIGKILL: after six
seconds, when the group has noticed, another process continues from its last commit. Stop it with SIGSTOP instead, and
wake it up later: it ends, because the group or the log reports another owner, and its late writes have no effect.
"""

import json
import random
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, closing
from threading import Event
from typing import Any

from confluent_kafka import Consumer, TopicPartition

import statelog
from examples.topic import Place, main, on_signal
from statelog.errors import Fenced
from statelog.tables import Table

__all__ = ["apply", "check", "fill", "serve", "stand_by"]

SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "customer", "type": "string"}, {"name": "cents", "type": "long"},
    {"name": "is_paid", "type": "boolean", "default": false}]}"""
ORDERS = 400
THINKING_S = 0.001
"""The time of an event, so that there is something to see and to kill."""

Order = dict[str, Any]


def apply(orders: MutableMapping[int, Order], event: dict[str, Any]) -> None:
    """Apply an event to the orders. `orders` is a table, or any other mapping."""
    order = event["order"]
    match event["event"]:
        case "placed":
            orders[order] = {"customer": event["customer"], "cents": 0, "is_paid": False}
        case "item":
            orders[order] = {**orders[order], "cents": orders[order]["cents"] + event["cents"]}
        case "paid":
            orders[order] = {**orders[order], "is_paid": True}
        case _:  # delivered
            del orders[order]


def serve(place: Place) -> None:
    """Stand by until the group assigns the partition, then process events until Ctrl-C, SIGTERM or a new owner."""
    try:
        stand_by(place)
    except Fenced:
        print("fenced: another process is the owner", flush=True)


def stand_by(place: Place) -> None:
    """Stand by, be the owner, and end. Raises Fenced if the log has a new owner before the group reports it."""
    stopped = Event()
    on_signal(stopped.set)
    consumer = Consumer(
        {
            **place.kafka,
            "group.id": place.name,
            "session.timeout.ms": 6000,  # the time until a killed owner is noticed
            "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "cooperative-sticky",  # the owner keeps its partition
            "enable.auto.commit": False,  # the place in the topic is in the table's commits
        }
    )
    with closing(consumer), statelog.standby(place.name, place.where) as standby, ExitStack() as ending:
        orders: Table[int, Order] | None = None
        progress: dict[str, Any] = {}

        def our_turn(_: Consumer, partitions: list[TopicPartition]) -> None:
            nonlocal orders, progress
            if partitions:
                orders = ending.enter_context(standby.promote())  # fences the former owner, and has all its commits
                progress = dict(orders.progress)
                consumer.incremental_assign([TopicPartition(place.topic, 0, progress.get("offset", 0))])
                print(f"owner from offset {progress.get('offset', 0)} on", flush=True)

        def lost(_: Consumer, _partitions: list[TopicPartition]) -> None:
            stopped.set()  # A former owner ends; started again, it stands by.
            if orders is not None:
                print("no longer the owner", flush=True)

        consumer.subscribe([place.topic], on_assign=our_turn, on_revoke=lost, on_lost=lost)
        while not stopped.is_set():
            message = consumer.poll(0.1)
            if orders is not None:
                if message is not None and not message.error():
                    time.sleep(THINKING_S)
                    apply(orders, json.loads(message.value() or b""))
                    progress = {"offset": (message.offset() or 0) + 1}
                orders.commit_every(0.2, progress)  # also without a message: an earlier commit may be due


def events(number: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one order."""
    yield {"order": number, "event": "placed", "customer": f"customer-{number % 17}"}
    for _ in range(random.randint(1, 3)):
        yield {"order": number, "event": "item", "cents": random.randint(1, 9999)}
    yield {"order": number, "event": "paid"}
    if random.random() < 0.5:
        yield {"order": number, "event": "delivered"}


def fill(place: Place) -> int:
    """Make the log, and put events of new orders into the topic, in order for each. Returns their number."""
    statelog.open(place.name, place.where, create=statelog.LogOptions(key_type="long", value_schema=SCHEMA)).close()
    first = time.time_ns()
    under_way = [events(number) for number in range(first, first + ORDERS)]
    happened: list[dict[str, Any]] = []
    while under_way:
        order = random.choice(under_way)
        event = next(order, None)
        if event is None:
            under_way.remove(order)
        else:
            happened.append(event)
    place.fill(((b"", json.dumps(event).encode()) for event in happened), partitions=1)
    return len(happened)


def check(place: Place) -> bool:
    """Tell whether the log has the orders that are open after all events in the topic."""
    expected: dict[int, Order] = {}
    for message in place.read():
        apply(expected, json.loads(message.value() or b""))
    with statelog.open(place.name, place.where) as log:
        found: dict[int, Order] = statelog.recover(log, barrier=True).to_dict()
    is_exact = found == expected
    print(
        f"{len(found)} orders are open, and {len(expected)} at the end: {'exact' if is_exact else 'not yet, or WRONG'}"
    )
    return is_exact


if __name__ == "__main__":
    sys.exit(main("orders", {"serve": serve, "input": fill, "check": check, "clean": Place.clean}))
