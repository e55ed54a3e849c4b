"""`PageLooks`: the logs below a root, each looked at while somebody has its page open.

Owns the Kafka client, which all logs share, and the threads. A look is `describe_log`, which the command prints, too,
and the commits that came since the last one. Writes nothing, and holds nothing: no lease, no subscription.

Invariants:
- A log that hangs, or that is damaged, takes nothing from the page of another one: each has one look at a time.
- A look is made only while somebody asks. Who asks waits for a bounded time, and gets the last one with its age, also
  while a new one hangs; what went wrong is kept beside it.
- A clock that is set anew neither hastens nor delays a look.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa

from statelog.closing import Closing, undone_by_errors
from statelog.environment import current_environment
from statelog.errors import CorruptManifest, Damaged, NotFound, StatelogError
from statelog.log import Log, Where
from statelog.log.where import log_names, one_client, opened_store
from statelog.materializer import MaterializerSettings
from statelog.operate.description import describe_log
from statelog.operate.finding import error_text
from statelog.operate.lookup import KeyHistory, Lookup, groups_of, history_of, look_up
from statelog.operate.report import Report
from statelog.operate.rows import BytesText, read_keys
from statelog.reading import CommitFacts, commit_facts, commits_behind
from statelog.recovery import RecoverySettings
from statelog.schemas.ledger.fold import Folded
from statelog.schemas.snapshot.manifest import Manifest

_FRESH_S = 2.0
_EACH_S = 0.5
"""All logs of a page together are one look in so many seconds, so that a hundred logs do not fill a core."""
_THREADS = 16
_LATEST = 10
_RATE_OVER_S = 60.0
_MOST_TIMES = 100_000
_HISTORY_ROWS = 50
_SETTINGS = RecoverySettings(holder="statelog serve", lease=False)
_LOG = logging.getLogger("statelog.web")
_MOST_FAILURES = 10
_SHARE = 4.0
"""A value that takes a second to make is made once in so many seconds at most: looking is not what a machine is for."""

T = TypeVar("T")
SettingsOf = Callable[[str], MaterializerSettings]
"""The materializer's settings for a log, which say what holds truncation back, and what a restore may take. Raises
ConfigError.
"""


@dataclass(frozen=True, slots=True)
class LookFailure:
    """What went wrong, for people: its kind, what it says, what to do; so many `times` in a row, the last at `at_s`."""

    kind: str
    message: str
    hint: str
    at_s: float
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen(Generic[T]):
    """The last value, None before the first, and when it was asked for (seconds since 1970); whether a later one
    failed, and what failed lately, the newest first. `waiting_s`: for how long a new one has been under way, 0 if none.
    """

    value: T | None = None
    at_s: float = 0.0
    is_failing: bool = False
    failures: tuple[LookFailure, ...] = ()
    waiting_s: float = 0.0


class Fresh(Generic[T]):
    """Thread-safe. What `make` raises is kept as a failure."""

    def __init__(self, make: Callable[[], T], executor: Executor) -> None:
        self._make = make
        self._executor = executor
        self._clock = current_environment().clock
        self._wall_clock = current_environment().wall_clock
        self._lock = threading.Lock()
        self._seen: Seen[T] = Seen()
        self._under_way: Future[None] | None = None
        self._began_s = 0.0
        self._ended_s: float | None = None

    def get(self, *, wait_s: float, most_age_s: float) -> Seen[T]:
        """The value, made anew if it is older than `most_age_s`; the last one if that takes longer than `wait_s`."""
        with self._lock:
            if self._under_way is None and self._is_due(most_age_s):
                self._began_s = self._clock()
                self._under_way = self._executor.submit(self._run)
            under_way = self._under_way
        if under_way is not None:
            wait([under_way], wait_s)
        with self._lock:
            waiting_s = self._clock() - self._began_s if self._under_way else 0.0
            return replace(self._seen, waiting_s=waiting_s)

    def _is_due(self, most_age_s: float) -> bool:
        if self._ended_s is None:
            return True
        took_s = self._ended_s - self._began_s
        return self._clock() >= self._ended_s + max(most_age_s, _SHARE * took_s)

    def _run(self) -> None:
        at_s = self._wall_clock()
        seen = self._seen
        try:
            seen = Seen(value=self._make(), at_s=at_s, failures=seen.failures)
        except StatelogError as error:
            seen = _failed(seen, LookFailure(type(error).__name__, error_text(error), error.hint or "", at_s))
        except Exception as error:  # noqa: BLE001 - a defect is shown on the page, and logged with its trace
            _LOG.exception("a look failed for a reason that is no error of ours")
            seen = _failed(seen, LookFailure(type(error).__name__, str(error), "", at_s))
        finally:
            with self._lock:
                self._seen, self._under_way = seen, None
                self._ended_s = self._clock()


def _failed(seen: Seen[T], failure: LookFailure) -> Seen[T]:
    """With one failure more; one that is the same as the last counts it."""
    earlier = seen.failures
    if earlier and (earlier[0].kind, earlier[0].message) == (failure.kind, failure.message):
        failure, earlier = replace(failure, times=earlier[0].times + 1), earlier[1:]
    return replace(seen, is_failing=True, failures=(failure, *earlier)[:_MOST_FAILURES])


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLook:
    """A log at one moment: what `describe` says of it, its latest commits, the newest first, and their rate; and what a
    restore may take.
    """

    report: Report
    commits: tuple[CommitFacts, ...]
    commits_per_s: float
    restore_budget_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLook:
    """One key: its values, by key group, and what became of it, if that was asked."""

    looked: Lookup
    history: KeyHistory | None


class PageLooks(Closing):
    """Thread-safe. Close it, or use it in a `with` block."""

    def __init__(self, where: Where, settings_of: SettingsOf) -> None:
        self._shared = ExitStack()
        self._where = self._shared.enter_context(one_client(where))
        self._settings_of = settings_of
        self._environment = current_environment()
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="statelog-look")
        self._lock = threading.Lock()
        self._logs: dict[str, Fresh[LogLook]] = {}
        self._names = Fresh(lambda: log_names(self._where), self._executor)

    @property
    def root(self) -> str:
        """Where the logs are, for people."""
        return opened_store("any", self._where).url.rpartition("/")[0]

    def names(self, wait_s: float) -> Seen[list[str]]:
        """The names of all that may be a log."""
        return self._names.get(wait_s=wait_s, most_age_s=_FRESH_S)

    def log(self, name: str, wait_s: float, beside: int = 1) -> Seen[LogLook]:
        """A log. Its name is one of `names`, or was. The more logs are looked at `beside` it, the older it may be."""
        with self._lock:
            if name not in self._logs:
                watched = _Watched(lambda: Log.open(name, self._where), lambda: self._settings_of(name))
                self._logs[name] = Fresh(partial(self._environment.run, watched.look), self._executor)
            fresh = self._logs[name]
        return fresh.get(wait_s=wait_s, most_age_s=max(_FRESH_S, _EACH_S * beside))

    def key(self, name: str, text: str, bytes_text: BytesText, group: int | None, *, with_history: bool) -> KeyLook:
        """Look a key up, and read its history if asked. Raises NotFound, InvalidChange, ConfigError, Damaged,
        Unavailable.
        """
        with Log.open(name, self._where) as log:
            key: pa.Array = read_keys([text], log.descriptor.key_type, bytes_text)
            groups = groups_of(key, group, log.descriptor)
            looked = look_up(log, key, groups, settings=_SETTINGS)
            history = history_of(log, key, groups, most=_HISTORY_ROWS, settings=_SETTINGS) if with_history else None
        return KeyLook(looked=looked, history=history)

    def close(self) -> None:
        """Let go of the cluster; looks that are under way end with it."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._shared.close()


class _Watched:
    """One log, opened at the first look, and again after one that failed: it may be another one by then."""

    def __init__(self, open_log: Callable[[], Log], settings: Callable[[], MaterializerSettings]) -> None:
        self._open = open_log
        self._settings = settings
        self._log: Log | None = None
        self._recent: _Recent | None = None

    def look(self) -> LogLook:
        settings, now_s = self._settings(), current_environment().wall_clock
        with undone_by_errors(self._let_go):
            log = self._log = self._log or self._open()
            report = describe_log(log, settings, now_s())
            recent = self._recent = self._recent or _Recent(log)
            try:
                recent.read()
            except Damaged:  # Perhaps only below the newest snapshot, where a truncation may have overtaken it.
                recent = self._recent = _Recent(log, newest=True)
                recent.read()
        return LogLook(
            report=report,
            commits=tuple(reversed(recent.latest)),
            commits_per_s=recent.rate(now_s()),
            restore_budget_s=settings.restore_budget_s,
        )

    def _let_go(self) -> None:
        log, self._recent, self._log = self._log, None, None
        if log is not None:
            log.close()


class _Recent:
    """The latest commits of a log, and when they came. `newest`: not those below the newest snapshot."""

    def __init__(self, log: Log, *, newest: bool = False) -> None:
        self._log = log
        self._partitions = range(log.descriptor.partitions)
        base = log.manifests.newest() if newest else _behind_some(log)
        self._folded = Folded(base.state, base.place) if base else Folded()
        self.latest: deque[CommitFacts] = deque(maxlen=_LATEST)
        self._times_s: deque[float] = deque(maxlen=_MOST_TIMES)

    def read(self) -> None:
        self._log.history.read_to(self._log.history.end())
        commits, self._folded = commits_behind(self._log, self._folded)
        for found in commits:
            self.latest.append(commit_facts(found, self._partitions))
            if found.timestamp_ms >= 0:
                self._times_s.append(found.timestamp_ms / 1000)

    def rate(self, now_s: float) -> float:
        """Commits a second, over the last minute."""
        while self._times_s and self._times_s[0] < now_s - _RATE_OVER_S:
            self._times_s.popleft()
        full = len(self._times_s) == _MOST_TIMES
        return len(self._times_s) / (max(1.0, now_s - self._times_s[0]) if full else _RATE_OVER_S)


def _behind_some(log: Log) -> Manifest | None:
    """Return the newest snapshot behind which enough commits lie to be shown, or the oldest one: right after a round
    there are none behind the newest. Raises IdentityChanged, StoreUnavailable.
    """
    found = newest = log.manifests.newest()
    for number in reversed(log.manifests.numbers()[:-1]):
        if found is None or newest is None or newest.position - found.position >= _LATEST:
            break
        with suppress(CorruptManifest):
            earlier = log.manifests.find(number)
            if earlier is None or earlier.identity != newest.identity:
                break
            found = earlier
    return found


def is_no_log(seen: Seen[LogLook]) -> bool:
    """Whether what has the name is no log: a directory of somebody else's."""
    return seen.value is None and bool(seen.failures) and seen.failures[0].kind == NotFound.__name__
