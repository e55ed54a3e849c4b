"""Logs whose topics were deleted or recreated, and logs that release 0.1 moved to new topics after that."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import xxhash

from statelog.log import Log
from statelog.log.loss import append_restarts
from statelog.log.producers import append_all
from statelog.log.topics import identity_shown
from statelog.materializer.round import run_round
from statelog.schemas.ledger.records import VOID_VALUE, Restart, encode
from statelog.schemas.snapshot.manifest import Anchor, next_manifest, restarted_state
from statelog.store.files import ManifestChain, descriptor_of
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import TwinLog, settings_for

__all__ = ["BOTH", "KEPT", "anew", "gone", "made", "move"]

KEPT = 5
"""The number of commits in the snapshot; the later ones are lost with the ledger."""
BOTH = ("log", "log.ledger")


def made(tmp_path: Path) -> TwinLog:
    """Return a log with a snapshot, and with commits behind it that are not part of the model."""
    twin = TwinLog()
    for i in range(KEPT):
        twin.write({b"k%d" % i: b"v"})
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    kept = dict(twin.model)
    for i in range(4):
        twin.write({b"lost%d" % i: b"v"})
    twin.model = kept
    return twin


def gone(*topics: str) -> Callable[[TwinLog], None]:
    """Return a function that deletes these topics."""

    def strike(twin: TwinLog) -> None:
        for topic in topics:
            MemoryKafka(cluster=twin.cluster).delete_topic(topic)

    return strike


def anew(*topics: str, records: int = 0) -> Callable[[TwinLog], None]:
    """Return a function that deletes these topics, makes them again, and writes to them."""

    def strike(twin: TwinLog) -> None:
        for topic in topics:
            twin.cluster.recreate_topic(topic)
            write_all(MemoryKafka(cluster=twin.cluster), topic, 0, [b"somebody's"] * records)

    return strike


def move(twin: TwinLog, *topics: str) -> None:
    """Lose these topics, the ledger among them, and move the log as `accept-loss --ledger` of release 0.1 did.

    It filled new topics up to the newest snapshot's positions, and put a manifest that names them.
    """
    anew(*topics)(twin)
    kafka, store = MemoryKafka(cluster=twin.cluster), MemoryStore(twin.disk, "log")
    first, identity = descriptor_of(store, "log"), identity_shown(kafka, "log")
    base = ManifestChain(store, first).newest_of_any()
    assert base is not None
    assert identity is not None
    if "log" in topics:
        with closing(kafka.producer()) as producer:
            for partition, end in base.next_offsets.items():
                append_all(producer, "log", partition, VOID_VALUE, end)
    log = Log(first.at(identity), kafka, store)
    record = Restart(digest=first.digest, position=1, reason="somebody deleted the topics", operator="ann")
    last = append_restarts(log, record, base.position + 50)  # Above all offsets that a chunk's witness names.
    kept = [one for one in base.anchors if one.topic == "data" and "log" not in topics]
    manifest = next_manifest(
        base,
        nonce=os.urandom(16),
        identity=identity,
        state=restarted_state(base.state, last),
        anchors=[*kept, Anchor("ledger", 0, last, xxhash.xxh3_64_intdigest(encode(record)))],
        runs=base.runs,
        created_s=twin.clock(),
    )
    assert log.manifests.put(manifest)
