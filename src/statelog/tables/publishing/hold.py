"""`OutputHold`: the subscription that keeps truncation from outputs that are not published yet.

Its reader is `outputs.<writer>`. A writer claims it before its first commit with outputs. The publisher moves it on,
and ends it once everything is published and the table closes. A person who ends it gives up what was not published.

Invariants:
- While a commit lists outputs that may not be published, the newest file holds at or below it. A claim that finds a
  file that holds writes the same position again: a former owner that ends its own file does not end this one.
- A hold is never moved above what is published.
- A move that fails costs a log line: the earlier file holds on. A claim that fails is the caller's error.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

from statelog.environment import Environment
from statelog.errors import StatelogError, SubscriptionEnded
from statelog.history import LedgerView
from statelog.log import Log
from statelog.reading import HeldSubscription, end_subscription
from statelog.schemas.ledger.fold import LedgerBase
from statelog.schemas.snapshot.claims import OUTPUTS, PUBLISHED, Subscription

_LOG = logging.getLogger("statelog.tables")
_READING = "outputs"


class OutputHold:
    """The subscription of one writer's outputs. Thread-safe: the table claims, and its publisher moves and ends."""

    def __init__(self, log: Log, writer: str, environment: Environment) -> None:
        self._log = log
        self._environment = environment
        self._reader = f"{OUTPUTS}{writer}"
        self._holder = f"the outputs of {writer}"
        self._lock = Lock()
        self._held: HeldSubscription | None = None
        self._newest: Subscription | None = None
        self._is_left = False
        """Whether a former owner left a file that holds."""
        self.is_claimed = False
        """Whether this process holds the subscription."""

    @property
    def id(self) -> str:
        """The id of the reading that holds; empty before a claim."""
        return self._newest.holder_id if self._newest else ""

    @property
    def base(self) -> LedgerBase | None:
        """The fold of the ledger where the newest known file holds."""
        return self._newest

    def begins_at(self, here: int) -> int | None:
        """Return the position up to which everything is published, by the newest file; None if there is none.

        `here`: the position of now, which counts if the file has ended: everything was published, or a person has given
        up the rest. Raises Corrupt, InvalidName, Unavailable.
        """
        found = self._found()
        if found is None or found.ended:
            return None if found is None else here
        self._is_left, self._newest = True, found
        return max(found.position, self._log.history.ask(lambda fold: fold.restarted) + 1)

    def claim(self) -> str:
        """Hold what the newest file held, or else the ledger from here on. Return the id of the reading. Later calls do
        nothing. Raises OffsetGone, ReaderInUse, StoreRefused, Corrupt, Unavailable.
        """
        with self._lock:
            if self.is_claimed:
                return self.id
            found, view = self._found(), self._log.history.view()
            is_over = found is None or bool(found.ended) or found.position <= view.state.restarted
            state, last = (view.state, view.place.last) if found is None or is_over else (found.state, found.anchor)
            self._newest = self._reading(found).hold(state, last, take_up=True)
            self.is_claimed = True
            return self.id

    def take_over(self) -> None:
        """Claim what a former owner left, once. Raises as `claim`."""
        if self._is_left:
            self.claim()
            self._is_left = False

    def move(self, view: LedgerView) -> None:
        """Hold the ledger from this view on: everything below was published."""
        with self._lock, _logging_failures(self._reader):
            if self._held is None or self._newest is None or view.place.position <= self._newest.position:
                return
            try:
                self._newest = self._held.hold(view.state, view.place.last, take_up=True)
            except SubscriptionEnded as error:
                _LOG.warning("%s; it begins again, because its writer still has outputs", error)
                self._newest = self._reading(self._found()).hold(view.state, view.place.last, take_up=True)

    def release(self) -> None:
        """End the subscription: everything is published. A newer owner's claim stays."""
        with self._lock, _logging_failures(self._reader):
            if self.is_claimed and self._newest is not None:
                self.is_claimed = False
                end_subscription(self._log.store, self._newest, PUBLISHED, self._environment)

    def _found(self) -> Subscription | None:
        """Return the newest file of this log; None if there is none."""
        held = self._held or self._reading(None)
        found = held.newest()
        return found if found is not None and found.identity == self._log.descriptor.identity else None

    def _reading(self, found: Subscription | None) -> HeldSubscription:
        """Return the reading that continues a file: the same one, or another behind an end."""
        is_ours = found is not None and found.holder_id.startswith(_READING)
        reading = found.holder_id if found is not None and is_ours else _READING
        if found is not None and found.ended:
            reading = f"{_READING}-{found.number}"
        make = self._environment.run
        self._held = make(HeldSubscription, self._log, self._reader, holder_id=reading, holder=self._holder)
        return self._held


@contextmanager
def _logging_failures(reader: str) -> Generator[None]:
    """Log an error of the block, which costs no more than a longer hold."""
    try:
        yield
    except StatelogError as error:
        _LOG.warning("the subscription %s could not be moved, and holds more than it needs to: %s", reader, error)
