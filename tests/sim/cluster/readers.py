"""Those who read on a cluster: readers that recover over and over, and a follower that keeps the state warm."""

import random
import time

from statelog.errors import NotFound, Unavailable
from statelog.recovery import AtPosition, Cursor, Portion, recover
from statelog.recovery.run_opener import CacheSettings
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.changes.changes import DELETE
from statelog.storage.log.log import Log
from tests.sim.cluster.part import PAUSE_S, Part
from tests.sim.cluster.story import State, owner_of

__all__ = ["follow", "read"]


def read(part: Part) -> None:
    """A reader of the newest state on one open log, now and then of a moment ago; every other one has a cache."""
    chance = random.Random(f"{part.name} {part.life}")
    cache = CacheSettings(directory=part.stage.directory / "cache")
    settings = RecoverySettings(cache=cache) if part.name.endswith("1") else RecoverySettings()
    past = 0
    with part.open() as log:
        while not part.stage.is_over:
            try:
                past = _read_newest(part, log, settings)
                if chance.random() < 0.2:
                    time.sleep(PAUSE_S)
                    _read_at(part, log, settings, past)
            except Unavailable as error:
                part.failed(error)
            else:
                time.sleep(PAUSE_S)


def _read_newest(part: Part, log: Log, settings: RecoverySettings) -> int:
    """Everything that anybody was told of before is in it. Returns its position."""
    begun_at, floor = time.monotonic(), part.stage.board.acknowledged()
    recovery = recover(log, at_least=floor, settings=settings)
    state = State(recovery.to_dict().items())
    part.journal.note("read", begun_at=begun_at, floor=floor, position=recovery.position, digest=state.digest)
    return recovery.position


def _read_at(part: Part, log: Log, settings: RecoverySettings, position: int) -> None:
    """A state of a moment ago, if it is still retained."""
    try:
        state = State(recover(log, at=AtPosition(position), settings=settings).to_dict().items())
    except NotFound:
        return
    part.journal.note("revisited", position=position, digest=state.digest)


class _Follower:
    """A state that is kept warm, and a sharp eye for marks that come twice."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._state = State()
        self._known: set[bytes] = set()
        self._fresh: list[bytes] = []
        self.cursor: Cursor | None = None

    def begin_anew(self) -> None:
        """The log does not hold what would be resumed any more."""
        self._state, self.cursor = State(), None
        self._known.clear()
        self._fresh.clear()

    def apply(self, portion: Portion) -> None:
        """Apply a portion; at the state of a position, note it."""
        columns = (portion.changes.column(name).to_pylist() for name in ("op", "key", "value"))
        for op, key, value in zip(*columns, strict=True):
            self._state.change(key, None if op == DELETE else value)
            if key.startswith(owner_of(key).encode() + b"/c"):
                self._fresh.append(key)
        self.cursor = portion.cursor
        if portion.cursor.is_complete:
            doubled = [key.decode() for key in self._fresh if key in self._known]
            self._known.update(self._fresh)
            self._fresh.clear()
            self._part.journal.note(
                "followed", position=portion.cursor.position, digest=self._state.digest, doubled=doubled
            )

    def resumed(self) -> None:
        """A commit that was applied in part is applied again from its first change."""
        if self.cursor is not None and self.cursor.applied.has_state:
            self._fresh.clear()


def follow(part: Part) -> None:
    """A follower: resumes after Unavailable, and begins anew where the log tells it to."""
    follower = _Follower(part)
    with part.open() as log:
        while not part.stage.is_over:
            follower.resumed()
            try:
                with recover(log, resume=follower.cursor).follow(poll_s=0.1) as stream:
                    while not part.stage.is_over and not stream.has_ended:
                        portion = stream.take(timeout_s=0.5)
                        if portion is not None:
                            follower.apply(portion)
            except Unavailable as error:
                part.failed(error)
            except NotFound as error:
                if follower.cursor is None:
                    raise
                part.failed(error)
                follower.begin_anew()
