"""`PageViews`: the logs below a root, each read while its page is open.

Owns the Kafka client, which all logs share, and the threads. A view is the report of `describe_log`, as the command
prints it, and the latest commits. Writes nothing, and holds no lease and no subscription.

Invariants:
- A log that hangs or is damaged does not affect the page of another log: each log has one read at a time.
- A log is read only on request. A request waits for a bounded time, and gets the latest view with its age and the
  recent failures, also while a new read hangs.
- Setting the system clock neither hastens nor delays a read.
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
"""The time for each read of all logs of a page together, so that a hundred logs do not fill a core."""
_THREADS = 16
_LATEST = 10
_RATE_OVER_S = 60.0
_MOST_TIMES = 100_000
_HISTORY_ROWS = 50
_SETTINGS = RecoverySettings(holder="statelog serve", lease=False)
_LOG = logging.getLogger("statelog.web")
_MOST_FAILURES = 10
_SHARE = 4.0
"""The least pause after a read, as a multiple of its duration."""

T = TypeVar("T")
SettingsOf = Callable[[str], MaterializerSettings]
"""Returns the materializer's settings for a log, for its truncation bounds and restore budget. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """A failed read, for people: the error's kind, message and hint; `times` in a row, the last one at `at_s`."""

    kind: str
    message: str
    hint: str
    at_s: float
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest(Generic[T]):
    """The latest value, None before the first.

    `at_s`: the time of its request, in seconds since 1970. `is_failing`: a later read failed.
    `failures`: recent failures, newest first. `waiting_s`: the duration of a read under way; 0 if there is none.
    """

    value: T | None = None
    at_s: float = 0.0
    is_failing: bool = False
    failures: tuple[ReadFailure, ...] = ()
    waiting_s: float = 0.0


class Fresh(Generic[T]):
    """A cached value that is read again on request. Thread-safe. Errors of `make` become failures."""

    def __init__(self, make: Callable[[], T], executor: Executor) -> None:
        self._make = make
        self._executor = executor
        self._clock = current_environment().clock
        self._wall_clock = current_environment().wall_clock
        self._lock = threading.Lock()
        self._latest: Latest[T] = Latest()
        self._under_way: Future[None] | None = None
        self._began_s = 0.0
        self._ended_s: float | None = None

    def get(self, *, wait_s: float, most_age_s: float) -> Latest[T]:
        """Return the value, read again if it is older than `most_age_s`; the old one if a read exceeds `wait_s`."""
        with self._lock:
            if self._under_way is None and self._is_due(most_age_s):
                self._began_s = self._clock()
                self._under_way = self._executor.submit(self._run)
            under_way = self._under_way
        if under_way is not None:
            wait([under_way], wait_s)
        with self._lock:
            waiting_s = self._clock() - self._began_s if self._under_way else 0.0
            return replace(self._latest, waiting_s=waiting_s)

    def _is_due(self, most_age_s: float) -> bool:
        if self._ended_s is None:
            return True
        took_s = self._ended_s - self._began_s
        return self._clock() >= self._ended_s + max(most_age_s, _SHARE * took_s)

    def _run(self) -> None:
        at_s = self._wall_clock()
        latest = self._latest
        try:
            latest = Latest(value=self._make(), at_s=at_s, failures=latest.failures)
        except StatelogError as error:
            latest = _failed(latest, ReadFailure(type(error).__name__, error_text(error), error.hint or "", at_s))
        except Exception as error:  # noqa: BLE001 - a defect is shown on the page, and logged with its trace
            _LOG.exception("reading a log for its page failed by a defect")
            latest = _failed(latest, ReadFailure(type(error).__name__, str(error), "", at_s))
        finally:
            with self._lock:
                self._latest, self._under_way = latest, None
                self._ended_s = self._clock()


def _failed(latest: Latest[T], failure: ReadFailure) -> Latest[T]:
    """Add a failure; one that equals the last increments its count."""
    earlier = latest.failures
    if earlier and (earlier[0].kind, earlier[0].message) == (failure.kind, failure.message):
        failure, earlier = replace(failure, times=earlier[0].times + 1), earlier[1:]
    return replace(latest, is_failing=True, failures=(failure, *earlier)[:_MOST_FAILURES])


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """A log at one moment: the report of `describe`, the latest commits (newest first), their rate, the budget."""

    report: Report
    commits: tuple[CommitFacts, ...]
    commits_per_s: float
    restore_budget_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """One key: its values by key group, and its history if requested."""

    lookup: Lookup
    history: KeyHistory | None


class PageViews(Closing):
    """The views of all logs below a root. Thread-safe. Close it, or use it in a `with` block."""

    def __init__(self, where: Where, settings_of: SettingsOf) -> None:
        self._shared = ExitStack()
        self._where = self._shared.enter_context(one_client(where))
        self._settings_of = settings_of
        self._environment = current_environment()
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="statelog-page")
        self._lock = threading.Lock()
        self._logs: dict[str, Fresh[LogView]] = {}
        self._names = Fresh(lambda: log_names(self._where), self._executor)

    @property
    def root(self) -> str:
        """The URL of the root, for people."""
        return opened_store("any", self._where).url.rpartition("/")[0]

    def names(self, wait_s: float) -> Latest[list[str]]:
        """Return the names of all directories that may be logs."""
        return self._names.get(wait_s=wait_s, most_age_s=_FRESH_S)

    def log(self, name: str, wait_s: float, total: int = 1) -> Latest[LogView]:
        """Return a log's view. `name` is or was one of `names`. The more logs in `total`, the older it may be."""
        with self._lock:
            if name not in self._logs:
                watched = _Watched(lambda: Log.open(name, self._where), lambda: self._settings_of(name))
                self._logs[name] = Fresh(partial(self._environment.run, watched.read), self._executor)
            fresh = self._logs[name]
        return fresh.get(wait_s=wait_s, most_age_s=max(_FRESH_S, _EACH_S * total))

    def key(self, name: str, text: str, bytes_text: BytesText, group: int | None, *, with_history: bool) -> KeyView:
        """Look up a key, and read its history if requested.

        Raises NotFound, InvalidChange, ConfigError, Damaged, Unavailable.
        """
        with Log.open(name, self._where) as log:
            key: pa.Array = read_keys([text], log.descriptor.key_type, bytes_text)
            groups = groups_of(key, group, log.descriptor)
            found = look_up(log, key, groups, settings=_SETTINGS)
            history = history_of(log, key, groups, most=_HISTORY_ROWS, settings=_SETTINGS) if with_history else None
        return KeyView(lookup=found, history=history)

    def close(self) -> None:
        """Disconnect from the cluster; reads under way end with it."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._shared.close()


class _Watched:
    """One log, opened at the first read, and again after a failed one, because it may be another log by then."""

    def __init__(self, open_log: Callable[[], Log], settings: Callable[[], MaterializerSettings]) -> None:
        self._open = open_log
        self._settings = settings
        self._log: Log | None = None
        self._recent: _Recent | None = None

    def read(self) -> LogView:
        settings, now_s = self._settings(), current_environment().wall_clock
        with undone_by_errors(self._release):
            log = self._log = self._log or self._open()
            report = describe_log(log, settings, now_s())
            recent = self._recent = self._recent or _Recent(log)
            try:
                recent.read()
            except Damaged:  # Perhaps only below the newest snapshot, after a truncation meanwhile.
                recent = self._recent = _Recent(log, newest=True)
                recent.read()
        return LogView(
            report=report,
            commits=tuple(reversed(recent.latest)),
            commits_per_s=recent.rate(now_s()),
            restore_budget_s=settings.restore_budget_s,
        )

    def _release(self) -> None:
        log, self._recent, self._log = self._log, None, None
        if log is not None:
            log.close()


class _Recent:
    """The latest commits of a log, and their times. `newest`: only commits behind the newest snapshot."""

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
        """Return the commits per second over the last minute."""
        while self._times_s and self._times_s[0] < now_s - _RATE_OVER_S:
            self._times_s.popleft()
        full = len(self._times_s) == _MOST_TIMES
        return len(self._times_s) / (max(1.0, now_s - self._times_s[0]) if full else _RATE_OVER_S)


def _behind_some(log: Log) -> Manifest | None:
    """Return the newest snapshot with enough commits behind it to show, or the oldest snapshot.

    Right after a round there is no commit behind the newest one. Raises IdentityChanged, StoreUnavailable.
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


def is_no_log(latest: Latest[LogView]) -> bool:
    """Tell whether the name belongs to another directory than a log's."""
    return latest.value is None and bool(latest.failures) and latest.failures[0].kind == NotFound.__name__
