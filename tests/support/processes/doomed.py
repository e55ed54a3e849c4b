"""Parts that kill themselves with SIGKILL at the n-th pass of a named point, without any cleanup.

A `writer_life` copies `COPIED` into a log, from the position that the log's last commit names. It writes a persisted
and unconfirmed handle to a file, as a job's checkpoint would, and the next incarnation adopts it. A `table_life`
processes the same, and checks the state that it opens against the fold of the input. If the state differs, it ends with
the exit code 3.
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import statelog
from statelog.environment import Environment
from statelog.errors import CheckpointMismatch
from statelog.log import Log, Where
from statelog.materializer.merging import BackgroundMerge
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round, run_round
from statelog.producer.settings import WriterSettings
from statelog.producer.writer import Writer
from statelog.schemas.ledger.handle import Handle
from statelog.tables import TableSettings
from statelog.tables.setup import TableTuning
from tests.sim.judge import InputJudge
from tests.sim.source import COPIED
from tests.support.rigs.log import UNSAFE, LogRig, settings_for, where_at
from tests.support.samples.folds import put_all
from tests.support.waiting import wait_for

__all__ = [
    "LATE_S",
    "MERGED",
    "NEVER",
    "dues_of",
    "merging_life",
    "position_of",
    "round_life",
    "sender_life",
    "table_life",
    "writer_life",
]

MERGED = 20
"""The commits of a `merging_life`, together with the ones before it."""
NEVER = "never"
LATE_S = 4_000_000_000
"""A time in the next century."""
_WRONG = 3
_CHANGES_PER_COMMIT, _MESSAGES_PER_COMMIT = 40, 20


def _killer(point: str, times: int = 1) -> Callable[[str], None]:
    left = times

    def crash(passed: str) -> None:
        nonlocal left
        left -= passed == point
        if left == 0 and passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return crash


def round_life(log: str, bootstrap: str, root: str, options: str, scratch: str, point: str) -> None:
    """Run one round, which may be the last one of the process. `options` are the storage options, as JSON."""
    kafka, store = {"bootstrap.servers": bootstrap}, json.loads(options)
    with Log.open(log, where_at(kafka, root, storage_options=store)) as opened:
        Environment(crash=_killer(point)).run(run_round, opened, settings_for(Path(scratch)))


def merging_life(log: str, bootstrap: str, root: str, scratch: str, point: str, times: str, first: str) -> None:
    """Alternate commits and rounds while a thread merges concurrently; then run a last round."""
    settings = settings_for(Path(scratch), fanout=2, merge_bytes=1)
    environment = Environment(crash=_killer(point, int(times)))
    with Log.open(log, where_at(bootstrap, root)) as opened:
        beside = environment.run(BackgroundMerge, opened, settings, ring=lambda: None)
        for number in range(int(first), MERGED):
            with Writer(opened, "w") as writer:
                writer.put(b"k%d" % (number % 3), b"%d" % number)
                writer.commit(checkpoint_id=number)
            assert isinstance(environment.run(Round, opened, settings, beside=beside).run(), CompletedRound)
            beside.begin()
        if beside.merge is not None:
            wait_for(lambda: beside.is_over)
            assert isinstance(environment.run(Round, opened, settings, beside=beside).run(), CompletedRound)
        beside.close()


def dues_of(end: int) -> dict[bytes, float]:
    """Return the dues of `COPIED` below `end`, in seconds: two of three puts have one, in the next century."""
    found: dict[bytes, float | None] = {}
    for offset in range(end):
        key, value = COPIED.change(offset)
        found[key] = None if value is None or offset % 3 == 0 else LATE_S + offset
    return {key: due_s for key, due_s in found.items() if due_s is not None}


def table_life(
    log: str,
    bootstrap: str,
    root: str,
    local: str,
    point: str,
    times: str,
    end: str,
    loading: str = "first",
    dues: str = "",
) -> None:
    """Run one incarnation of a table, in RocksDB if it is given a directory; with `dues`, some rows expire."""
    where = Where({"bootstrap.servers": bootstrap}, root, allow_unsafe=UNSAFE)
    kept: dict[str, Any] = {} if local == NEVER else {"backend": "rocksdb", "directory": Path(local)}
    settings = TableSettings(loading=loading, _tuning=TableTuning(commits_under_way_max=3))
    with Environment(crash=_killer(point, int(times))).run(
        lambda: statelog.table(log, where, settings=settings, **kept)
    ) as opened:
        try:
            position = InputJudge(COPIED.fold, "position").check(opened)
            found = {key: due.timestamp() for key in opened if (due := opened.due(key))}
            assert found == (dues_of(position) if dues else {})
        except AssertionError as error:
            raise SystemExit(_WRONG) from error
        for now in range(position, int(end)):
            key, value = COPIED.change(now)
            if dues and value is not None and now % 3:
                opened.put(key, value, due=LATE_S + now)
            else:
                put_all(opened, [(key, value)])
            if now % _MESSAGES_PER_COMMIT == _MESSAGES_PER_COMMIT - 1:
                opened.commit_async({"position": now + 1})
            else:
                opened.commit_every(0.5, {"position": now + 1})


def position_of(rig: LogRig) -> int:
    """Return the progress of the table that its log names."""
    with rig.open() as log:
        last = log.commits().get("table")
    return int(last.metadata["position"]) if last else 0


def writer_life(log: str, bootstrap: str, root: str, kept: str, point: str, times: str, end: str) -> None:
    """Run one incarnation of a writer."""
    with Log.open(log, where_at(bootstrap, root)) as opened:
        made = Environment(crash=_killer(point, int(times))).run(Writer, opened, "doomed")
        _adopt(made, Path(kept))
        _copy(made, Path(kept), int(end))
        made.close()


def sender_life(
    log: str, bootstrap: str, root: str, target: str, inline_bytes: str, point: str, times: str, end: str
) -> None:
    """Run one incarnation of a writer that sends a message, and counts it, with each commit."""
    settings = WriterSettings(inline_bytes=int(inline_bytes))
    with Log.open(log, where_at(bootstrap, root)) as opened:
        writer = Environment(crash=_killer(point, int(times))).run(Writer, opened, "sender", settings=settings)
        last = writer.last_commit
        for number in range(int(last.metadata["count"]) if last else 0, int(end)):
            writer.put(b"count", b"%d" % (number + 1))
            writer.send(target, b"%d" % number)
            writer.commit({"count": number + 1})
        writer.close()


def _adopt(writer: Writer, kept: Path) -> None:
    """Commit the handle that an earlier incarnation stored, if it still continues the log."""
    if not kept.exists():
        return
    data = kept.read_bytes()
    end, handle = int.from_bytes(data[:8], "little"), Handle.from_bytes(data[8:])
    with contextlib.suppress(CheckpointMismatch):  # The earlier incarnation had committed it before it ended.
        writer.adopt(handle, {"position": str(end)})
    kept.unlink()


def _copy(writer: Writer, kept: Path, end: int) -> None:
    last = writer.last_commit
    position = int(last.metadata["position"]) if last else 0
    checkpoint_id = last.checkpoint.id + 1 if last else 1
    while position < end:
        stop = min(end, position + _CHANGES_PER_COMMIT)
        put_all(writer, map(COPIED.change, range(position, stop)))
        handle = writer.persist(checkpoint_id).result()
        fresh = kept.with_suffix(".new")
        fresh.write_bytes(stop.to_bytes(8, "little") + handle.to_bytes())
        fresh.replace(kept)
        writer.confirm(handle, {"position": str(stop)})
        kept.unlink()
        position, checkpoint_id = stop, checkpoint_id + 1
