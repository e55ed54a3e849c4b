"""Requests to a cluster: an admin client made at first use, and replaced when it looks in the wrong place.

Owns which admin client is asked, one at a time, and the rules when it is replaced:

- It goes on asking a broker that it once took for the controller or the leader, dead or alive. So a client that gave
  answers before and then gives none in a quarter of the time is replaced by a new one, which gets all of the time.
- It gives up what it asked a broker that it then hears is none of the cluster's. The next one is asked at once, as
  long as there is time.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from statelog.storage.kafka.admin_client import DROPPED, LOST, AdminClient, Leaders, Request
from statelog.storage.kafka.config import ClientConfig
from statelog.storage.kafka.native import Refused
from statelog.storage.kafka.process import ProcessGuard

__all__ = ["AdminSession"]

_FIRST_SHARE = 4
_UNSENT = "waiting for controller"


class AdminSession:
    """Asks the brokers through one admin client at a time. Thread-safe; refuses work in a fork."""

    def __init__(self, config: ClientConfig, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._clock = clock
        self._guard = ProcessGuard("Kafka client")
        self._making = threading.Lock()
        self._current: AdminClient | None = None

    @property
    def guard(self) -> ProcessGuard:
        """Who may use it."""
        return self._guard

    def ask(
        self, request: Request, limit_s: float | None = None, *, twice: bool = True, leaders: Leaders | None = None
    ) -> list[dict[Any, Any]]:
        """The answers of all mappings, within `limit_s` seconds (None: the session's own) once a client is connected.

        `leaders` are those that the request goes to, if it does. `twice` False asks again only what was surely not
        sent. Raises Refused with the first refusal, once every answer is there; and as soon as the brokers refuse a
        client that never got an answer for what it is.
        """
        limit_s = self._timeout_s if limit_s is None else max(limit_s, 0.001)
        until_s = self._clock() + limit_s
        is_first = True
        while True:
            client = self._client()
            is_doubted = is_first and client.is_proven
            try:
                return client.ask(request, limit_s / _FIRST_SHARE if is_doubted else limit_s, leaders)
            except Refused as refused:
                if refused.name not in (LOST if is_doubted else DROPPED):
                    raise
                self._drop(client)
                is_late = not is_doubted and self._clock() >= until_s
                if is_late or (not twice and _UNSENT not in refused.text):
                    raise
            is_first = False

    def drop(self) -> None:
        """Give the client up: the next question makes a new one. Threads that are asking it keep it until they end."""
        with self._making:
            self._let_go()

    def close(self) -> None:
        """Release the client. Idempotent."""
        self._guard.close()
        self._current = None

    def _drop(self, client: AdminClient) -> None:
        """Give this one up; another thread may have done so before."""
        with self._making:
            if client is self._current:
                self._let_go()

    def _let_go(self) -> None:
        if self._current is not None:
            self._guard.drop()  # Else each one would stay behind, with its threads and its connections.
            self._current = None

    def _client(self) -> AdminClient:
        self._guard.check()  # Before the lock: a fork may have copied it while another thread had it.
        with self._making:
            if self._current is None:
                client = AdminClient(self._config, self._clock)
                self._guard.hold(client.native)
                self._current = client
            return self._current
