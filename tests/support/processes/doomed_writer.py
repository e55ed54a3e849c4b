"""A writer process that kills itself with SIGKILL at a named point: run by the fault tests with `python -m`.

It copies a numbered source into the log from where the log's last commit says, commits every few changes, and at the
n-th time that it passes the named point it dies, with no chance to clean up. A handle that was persisted and not
confirmed lies in a file, as a job's own checkpoint would keep it, and the next life adopts it.
"""

import argparse
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from statelog.errors import CheckpointMismatch
from statelog.producer.writer import Writer
from statelog.schemas.ledger.handle import Handle
from statelog.seams import Seams
from statelog.storage.log.log import Log
from tests.support.rigs.log import UNSAFE

__all__ = ["NEVER", "change", "fold"]

NEVER = "never"
_CHANGES_PER_COMMIT = 40


def change(position: int) -> tuple[bytes, bytes | None]:
    """The source's change at a position: puts over 97 keys, now and then a delete."""
    key = b"key-%d" % (position * 31 % 97)
    return key, None if position % 11 == 10 else b"value-%d" % position


def fold(end: int) -> dict[bytes, bytes]:
    """The state after the changes below `end`."""
    state: dict[bytes, bytes] = {}
    for position in range(end):
        key, value = change(position)
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state


def _killer(point: str, times: int) -> Callable[[str], None]:
    left = times

    def crash(passed: str) -> None:
        nonlocal left
        if passed == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return crash


def _adopt(writer: Writer, kept: Path) -> None:
    """Commit the handle that an earlier life kept, if it still continues the log."""
    if not kept.exists():
        return
    data = kept.read_bytes()
    end, handle = int.from_bytes(data[:8], "little"), Handle.from_bytes(data[8:])
    with contextlib.suppress(CheckpointMismatch):  # It was committed before that life ended.
        writer.adopt(handle, {"position": str(end)})
    kept.unlink()


def _copy(writer: Writer, kept: Path, end: int) -> None:
    last = writer.last_commit
    position = int(last.metadata["position"]) if last else 0
    checkpoint_id = last.checkpoint.id + 1 if last else 1
    while position < end:
        stop = min(end, position + _CHANGES_PER_COMMIT)
        for i in range(position, stop):
            key, value = change(i)
            writer.delete(key) if value is None else writer.put(key, value)
        handle = writer.persist(checkpoint_id).result()
        fresh = kept.with_suffix(".new")
        fresh.write_bytes(stop.to_bytes(8, "little") + handle.to_bytes())
        fresh.replace(kept)
        writer.confirm(handle, {"position": str(stop)})
        kept.unlink()
        position, checkpoint_id = stop, checkpoint_id + 1


def main() -> None:
    """One life."""
    parser = argparse.ArgumentParser()
    for name in ("log", "bootstrap", "root", "kept", "point"):
        parser.add_argument(name)
    parser.add_argument("times", type=int)
    parser.add_argument("end", type=int)
    given = parser.parse_args()
    kafka = {"bootstrap.servers": given.bootstrap}
    with Log.open(given.log, kafka=kafka, root=given.root, allow_unsafe=UNSAFE) as log:
        writer = Writer(log, "doomed", seams=Seams(crash=_killer(given.point, given.times)))
        _adopt(writer, Path(given.kept))
        _copy(writer, Path(given.kept), given.end)
        writer.close()


if __name__ == "__main__":
    main()
