"""A fleet: worker processes that count events on a real broker, each on its share of the partitions, and readers.

Workers follow docs/key-groups.md and count the events of tests.sim.plays.rescale. They stop when they have come to
an end, when they are told that somebody took over, or when they are killed.
"""

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from statelog.errors import Fenced
from statelog.producer.writer import Writer
from statelog.reading.plan import AtPosition
from statelog.recovery.recover import recover
from statelog.schemas.key_groups import share
from statelog.schemas.ledger.state import LastCommit
from tests.sim.plays.rescale import count
from tests.support.processes.starts import quick_start
from tests.support.rigs.log import LogRig, real_rig

__all__ = ["Ending", "Place", "WorkerProcess", "furthest", "restore"]

_EVENTS_PER_COMMIT = 5
_CONTEXT = quick_start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the log is."""

    log: str
    bootstrap: str
    root: Path

    def rig(self) -> LogRig:
        """The log, for this process."""
        return real_rig(self.log, self.bootstrap, self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a worker ended that was not killed: fenced or not, and the positions that it was told to be committed."""

    fenced: bool
    told: Mapping[int, int]


def furthest(commits: Mapping[str, LastCommit]) -> Counter[int]:
    """The position of every partition: the furthest that any writer committed."""
    found: Counter[int] = Counter()
    for commit in commits.values():
        found |= Counter({int(partition): int(position) for partition, position in commit.metadata.items()})
    return found


class WorkerProcess:
    """A worker in a process of its own."""

    def __init__(self, place: Place, worker: int, workers: int, end: int) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_work, args=(place, worker, workers, end, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self._pid = self._process.pid

    def began_at(self) -> dict[int, int]:
        """Its partitions and the positions where it begins, once it is open."""
        positions: dict[int, int] = self._pipe.recv()
        return positions

    def ending(self) -> Ending:
        """How it ended, once it has."""
        ending: Ending = self._pipe.recv()
        self._process.join()
        return ending

    def stop(self) -> None:
        """SIGSTOP: it stands still where it is."""
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self._process.kill()
        self._process.join()


def _work(place: Place, worker: int, workers: int, end: int, pipe: Connection) -> None:
    with place.rig().open() as log:
        partitions = share(log.descriptor.partitions, worker=worker, workers=workers)
        writer = Writer(log, f"job-{worker}", partitions=partitions)
        recovery = recover(log, key_groups=log.descriptor.key_groups_in(partitions))
        state: dict[bytes, bytes] = recovery.to_dict()
        positions = furthest(recovery.commits)
        told = {partition: positions[partition] for partition in partitions}
        pipe.send(told)
        try:
            while min(positions[partition] for partition in partitions) < end:
                _count_some(writer, state, positions)
                told = {partition: positions[partition] for partition in partitions}
        except Fenced:
            pipe.send(Ending(fenced=True, told=told))
        else:
            pipe.send(Ending(fenced=False, told=told))
        writer.close()


def _count_some(writer: Writer, state: dict[bytes, bytes], positions: Counter[int]) -> None:
    changed: set[bytes] = set()
    for partition in writer.grant.partitions:
        stop = positions[partition] + _EVENTS_PER_COMMIT
        changed |= count(state, partition, positions[partition], stop)
        positions[partition] = stop
    for key in changed:
        writer.put(key, state[key]) if key in state else writer.delete(key)
    last = writer.last_commit
    metadata = {str(partition): str(position) for partition, position in positions.items()}
    writer.commit(last.checkpoint.id + 1 if last else 1, metadata)


def restore(place: Place, key_groups: Sequence[range], position: int) -> list[dict[bytes, bytes]]:
    """The state at a ledger position, each part restored by a process of its own."""
    readers = [_CONTEXT.Pipe(duplex=False) for _ in key_groups]
    for part, (_, theirs) in zip(key_groups, readers, strict=True):
        _CONTEXT.Process(target=_read, args=(place, part, position, theirs), daemon=True).start()
        theirs.close()
    return [ours.recv() for ours, _ in readers]


def _read(place: Place, key_groups: range, position: int, pipe: Connection) -> None:
    with place.rig().open() as log:
        pipe.send(recover(log, key_groups=key_groups, at=AtPosition(position)).to_dict())
