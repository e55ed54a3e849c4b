"""`Holdings`: the tables of the partitions that the group gave this process: opened, committed, given up.

    assigned    noted; opened beside the loop, several at once, each placed at its progress: openings.py
    revoked     committed, all at once, and closed, before the group may give them to another; what is being opened, too
    lost        closed without a commit: another may have them already
    failed      closed, and opened again by and by: roster.py

Invariants:
- In a call of the group nothing begins to open, and no client of the group is used.
- Tables open in other threads, and are used, hooks included, in the worker's: in the order of their partitions.
- A partition is read only while its table is open, from the place that the table's progress names.
- What is committed was read from the topic that the progress names: the cluster says so once the last of it was read.
- What no commit holds is dropped with its table, and read again by whoever opens the next one.
- What is published to the group is history, for tools that look at its lag; nothing waits for it, or reads it back.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial

from statelog.errors import BrokerUnavailable, Unavailable
from statelog.tables.working.openings import Openings
from statelog.tables.working.roster import Roster, Vacancy, passes
from statelog.tables.working.tenure import Tenure
from statelog.tables.working.workplace import Hook, Workplace

__all__ = ["Holdings"]

_LOG = logging.getLogger("statelog.tables")
_PUBLISH_S = 1.0
_LAST_COMMITS = 2
"""What `on_commit` changes behind the last commit of a partition is committed, too."""


class Holdings:
    """Of one worker; it is the listener of its own member of the group, which `close` leaves."""

    def __init__(self, workplace: Workplace) -> None:
        self.tenures: dict[int, Tenure] = {}
        self._workplace = workplace
        self._clock = workplace.environment.clock
        self._reserves = workplace.reserves
        self._hooks = workplace.hooks
        self._roster = Roster()
        self._openings = Openings(workplace.start_opening)
        self._stopped: set[int] = set()
        self._publish_s = -math.inf
        self._published: dict[int, int] = {}
        self.member = workplace.join(self, lambda text: _LOG.info("input %s: %s", workplace.topic, text))
        self._reserves.decided()  # To have nothing: not every group says so.

    # ---- what the group decides

    def assigned(self, partitions: Sequence[int]) -> None:
        """Note them."""
        if partitions:
            _LOG.info("partitions %s of %s are this worker's", list(partitions), self._workplace.topic)
        self._reserves.decided()
        self._roster.assigned(partitions)

    def revoked(self, partitions: Sequence[int]) -> None:
        """Commit what is processed of them, and close their tables."""
        _LOG.info("partitions %s of %s are given up", list(partitions), self._workplace.topic)
        self._reserves.decided()
        self._roster.gone(partitions)
        self._workplace.environment.crash("revoked")
        with ExitStack() as ending:
            ending.callback(self._openings.drop, partitions)
            self._give_up(self._taken(partitions), commits=True)
        self._workplace.environment.crash("given-up")

    def lost(self, partitions: Sequence[int]) -> None:
        """Close their tables: what a commit of them would say is another's to say."""
        _LOG.warning("partitions %s of %s were lost to the group", list(partitions), self._workplace.topic)
        self._reserves.decided()
        self._roster.gone(partitions)
        with ExitStack() as ending:
            ending.callback(self._openings.drop, partitions)
            self._give_up(self._taken(partitions), commits=False)

    def refused(self, partition: int, reason: str) -> None:
        """Its place is not there: to open it again says what was lost."""
        _LOG.warning("the place of partition %d of %s is refused: %s", partition, self._workplace.topic, reason)
        for tenure in self._taken([partition]):
            self._drop([tenure])
            self._stopped.add(partition)
            error = BrokerUnavailable(f"the place in the input is refused: {reason}", partition=partition)
            self._roster.failed(partition, error, self._clock())

    def ended(self, partition: int, end_offset: int) -> None:
        """What lies between its last record and this end is no record to process: marks of transactions, and what they
        took back. It has to count, or it would be missed once it is gone.
        """
        tenure = self.tenures.get(partition)
        if tenure is not None:
            tenure.processed(end_offset)

    # ---- between two polls

    def serve(self) -> bool:
        """Begin to open the table that is due, and take the next one that is open, if any; whether there may be more.
        Raises what is not to be tried again.
        """
        if self._stopped:
            self.member.stop(sorted(self._stopped))
            self._stopped.clear()
        vacancy = self._roster.due(self._clock(), self._openings.partitions) if self._openings.has_room else None
        if vacancy is not None:
            self._begin(vacancy)
        elif not self.is_opening:
            self._reserves.keep(self._is_held)  # Which nobody promotes meanwhile.
        opened = self._openings.over()
        if opened is not None:
            self._take(opened)
        return vacancy is not None or opened is not None

    def tick(self) -> None:
        """Let those tick whose time it is."""
        if self._hooks.on_tick is None:
            return
        now_s = self._clock()
        for tenure in list(self.tenures.values()):
            if now_s >= tenure.tick_s:
                tenure.tick_s = now_s + self._hooks.tick_s
                _call(self._hooks.on_tick, tenure)

    def _is_held(self, partition: int) -> bool:
        return partition in self.tenures or self._roster.has(partition)

    @property
    def is_opening(self) -> bool:
        """Whether a table is being opened."""
        return bool(self._openings.partitions)

    def _begin(self, vacancy: Vacancy) -> None:
        partition = vacancy.partition
        if vacancy.asks:
            if not self.member.is_current(partition, vacancy.offset):
                self._roster.unconfirmed(partition, self._clock())
                return
            self._roster.confirmed(partition)
        if vacancy.beside:
            _LOG.warning(
                "another process has the directory of partition %d, stopped perhaps: it opens beside it", partition
            )
        self._openings.begin(partition, partial(self._opened, partition, vacancy.beside))

    def _take(self, partition: int) -> None:
        """A table is open, or did not open."""
        tenure: Tenure | None = None
        try:
            tenure = self._openings.take(partition)
            self.member.read_from({partition: tenure.next_offset})
            self.tenures[partition] = tenure
        except BaseException as error:
            if tenure is not None:
                self._drop([tenure])
            if not isinstance(error, Exception):
                raise
            self._roster.failed(partition, error, self._clock())
            _LOG.warning("the table of partition %d did not open, and is tried again: %s", partition, error)
            return
        self._roster.opened(partition)
        tenure.tick_s = self._clock() + self._hooks.tick_s
        _call(self._hooks.on_open, tenure)
        tenure.is_told = True

    def _opened(self, partition: int, beside: bool) -> Tenure:
        """The table of a partition, and where to read on. In another thread than the worker's."""
        place = self._workplace
        source = place.input()
        source.check_covered(place.key_groups)
        promoted = self._reserves.promote(partition)
        table = place.open_table(partition, beside) if promoted is None else promoted
        with ExitStack() as failing:
            failing.callback(table.__exit__, RuntimeError, None, None)
            last = table.last_commit
            progress = None if last is None else last.metadata
            offset = source.start_offset(
                progress, partition, place.available(partition), place.start, accepts_loss=place.accepts_input_loss
            )
            tenure = Tenure(partition, table, source, offset)
            if progress is None or progress["offset"] != offset:
                if progress is not None:
                    _LOG.warning(
                        "input was lost, which is accepted: partition %d of %s goes on from %d, and was at %s",
                        partition, place.topic, offset, progress["offset"],
                    )  # fmt: skip
                tenure.send(always=True)
                tenure.wait()  # The place that was chosen is one that no later life chooses otherwise.
                tenure.has_committed()
            place.environment.crash("table-placed")
            failing.pop_all()
        return tenure

    # ---- commits

    @property
    def is_waiting(self) -> bool:
        """Whether a commit is under way."""
        return any(tenure.is_waiting for tenure in self.tenures.values())

    def send(self) -> None:
        """Commit what is new in each table, and wait for nothing but room."""
        tenures = list(self.tenures.values())
        if self._is_same_input(tenures):
            for tenure in tenures:
                self._try(tenure, tenure.send)

    def _is_same_input(self, tenures: Sequence[Tenure]) -> bool:
        """Whether what is new in them was read from the topic that they name; no if nobody says. Raises
        IdentityChanged, NotFound, and ConfigError if it has grown.
        """
        if not any(tenure.has_news for tenure in tenures):
            return True
        try:
            now = self._workplace.input()
        except Unavailable as error:
            _LOG.warning("nothing is committed as long as the input %s is not there: %s", self._workplace.topic, error)
            return False
        for tenure in tenures:
            tenure.check_input(now)
        return True

    def step(self) -> None:
        """Take what has come in of the commits that are under way."""
        for tenure in list(self.tenures.values()):
            if tenure.is_waiting:
                self._try(tenure, tenure.step)
        self._tell(list(self.tenures.values()))

    def wait(self) -> None:
        """Wait for all commits that are under way."""
        for tenure in list(self.tenures.values()):
            self._try(tenure, tenure.wait)
        self._tell(list(self.tenures.values()))

    def _try(self, tenure: Tenure, work: Callable[[], None]) -> None:
        """Work on a table that may fail: then it is dropped, and opened again later."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the roster knows which of them come out
            offset = tenure.committed_offset
            self._drop([tenure])
            self._stopped.add(tenure.partition)
            self._roster.failed(tenure.partition, error, self._clock(), offset)
            _LOG.warning("the table of partition %d ended, and is opened again: %s", tenure.partition, error)

    def _tell(self, tenures: Sequence[Tenure], *, ends: bool = False) -> None:
        """Tell whom it concerns of the commits that have become history since."""
        for tenure in tenures:
            if tenure.has_committed():
                self._roster.committed(tenure.partition)
                _call(self._hooks.on_commit, tenure)
        now_s = self._clock()
        if ends or now_s >= self._publish_s:
            self._publish_s = now_s + _PUBLISH_S
            places = {one.partition: one.committed_offset for one in tenures}
            if places.items() - self._published.items():
                self.member.publish(places)
                self._published.update(places)

    # ---- giving up

    def close(self, *, commits: bool, but: int | None = None) -> None:
        """Commit what is processed, unless `commits` is False, and of all but one partition; close; leave the group."""
        with ExitStack() as ending:
            ending.callback(self._reserves.close)
            ending.callback(self.member.close)
            ending.callback(self._openings.drop, self._openings.partitions)
            unsettled = self._taken([] if but is None else [but])
            ending.callback(self._give_up, unsettled, commits=commits, sends=False)
            self._give_up(self._taken(list(self.tenures)), commits=commits)

    def _taken(self, partitions: Iterable[int]) -> list[Tenure]:
        return [self.tenures.pop(one) for one in partitions if one in self.tenures]

    def _drop(self, tenures: Sequence[Tenure]) -> None:
        with ExitStack() as dropping:
            for tenure in tenures:
                self.tenures.pop(tenure.partition, None)
                dropping.callback(self._end, tenure, tenure.abandon)

    def _end(self, tenure: Tenure, close: Callable[[], object]) -> None:
        """Close a table, which may have hooked something up."""
        with ExitStack() as ending:
            ending.callback(close)
            if tenure.is_told:
                tenure.is_told = False
                _call(self._hooks.on_close, tenure)

    def _give_up(self, tenures: Sequence[Tenure], *, commits: bool, sends: bool = True) -> None:
        """Close these tables, with their last commits under way together. Raises, once all are closed, what is for a
        person; who was fenced, or does not know, has lost nothing that its successor does not read again.
        """
        if not commits:
            self._drop(tenures)
            return
        with ExitStack() as closing:
            for tenure in tenures:
                closing.callback(self._end, tenure, partial(_quietly, tenure, tenure.table.close))
            if sends and not self._is_same_input(tenures):
                sends = False
            left = tenures
            for turn in range(_LAST_COMMITS):
                sent = [tenure for tenure in left if not sends or _quietly(tenure, tenure.send)]
                left = [tenure for tenure in sent if _quietly(tenure, tenure.wait)]
                self._tell(left, ends=turn + 1 == _LAST_COMMITS)


def _call(hook: Hook | None, tenure: Tenure) -> None:
    if hook is not None:
        hook(tenure.partition, tenure.table)


def _quietly(tenure: Tenure, work: Callable[[], object]) -> bool:
    """Whether that went well. Raises what is for a person."""
    try:
        work()
    except Exception as error:
        if not passes(error):
            raise
        _LOG.warning("partition %d was given up without its last commit: %s", tenure.partition, error)
        return False
    return True
