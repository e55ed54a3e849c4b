"""A TCP proxy between Kafka clients and one broker, which applies network faults to the request that a test names.

It reads the header of Kafka's requests and nothing more: size, API key, correlation id. So a test can say "the second
ListOffsets request from now on is reset", and exactly that one is, whatever else the client sends. It listens on
loopback; the broker must advertise its address. Threads end with `close`; nothing here outlives it.
"""

import socket
import struct
import threading
import time
from dataclasses import dataclass
from enum import Enum

from tests.support.providers.proxy import FrameProxy, Link, abort, read_frame

__all__ = ["API_KEYS", "Deed", "TcpProxy"]

API_KEYS = {
    "produce": 0, "fetch": 1, "list_offsets": 2, "metadata": 3, "find_coordinator": 10, "api_versions": 18,
    "create_topics": 19, "delete_topics": 20, "delete_records": 21, "init_producer_id": 22, "describe_configs": 32,
    "offset_commit": 8, "offset_fetch": 9, "describe_cluster": 60, "describe_topics": 3,
    "add_partitions_to_txn": 24, "add_offsets_to_txn": 25, "end_txn": 26, "txn_offset_commit": 28,
}  # fmt: skip
_HEADER = 12
_SLICE_BYTES = 7
_PIECE_BYTES = 16 << 10


class Deed(Enum):
    """The fate of a request."""

    RESET = "reset"
    """It never arrives, and its connection is reset."""
    SWALLOW = "swallow"
    """It never arrives, and its connection stays."""
    LOSE = "lose"
    """The broker processes it; a reset comes instead of the answer."""
    CUT = "cut"
    """The broker processes it; half of the answer comes, then a reset."""
    MUTE = "mute"
    """The broker processes it; the answer never comes, and the connection stays."""
    DELAY = "delay"
    """The answer comes `delay_s` later."""
    SLICE = "slice"
    """The answer comes a few bytes at a time."""


@dataclass(slots=True)
class _Rule:
    deed: Deed
    api_key: int
    at: int
    count: int
    delay_s: float


class TcpProxy(FrameProxy):
    """A proxy that listens at once, on `port`, and forwards to the broker at `upstream`, host and port."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.bytes_per_s = 0
        """How many bytes of requests pass in a second; 0: all."""
        self._rules: list[_Rule] = []
        self._deciding = threading.Lock()
        self._frozen: set[socket.socket] = set()
        super().__init__(upstream, lambda client, broker: _Connection(self, client, broker))

    def on(self, api: str, deed: Deed, *, at: int = 1, count: int = 1, delay_s: float = 0.0) -> None:
        """Do this to request number `at` of this API from now on, counted from 1, and to the `count` - 1 after it."""
        with self._deciding:
            self._rules.append(_Rule(deed, API_KEYS[api], at, count, delay_s))

    def freeze(self) -> None:
        """Let nothing more through on the open connections; new ones work. `cut_all` alone ends the freeze."""
        self._frozen = self.sockets

    def is_frozen(self, one: socket.socket) -> bool:
        """Return whether nothing more passes on this connection."""
        return one in self._frozen

    def reset(self) -> None:
        """Forget all rules, and let everything flow."""
        with self._deciding:
            self._rules.clear()
        self.bytes_per_s = 0

    def flow(self, size: int) -> None:
        """Wait until so many bytes may pass."""
        if self.bytes_per_s:
            time.sleep(size / self.bytes_per_s)

    def deed(self, api_key: int) -> _Rule | None:
        """Return the rule for a request that has just come."""
        with self._deciding:
            for rule in self._rules:
                if rule.api_key != api_key:
                    continue
                rule.at -= 1
                if rule.at <= 0 and rule.count > 0:
                    rule.count -= 1
                    return rule
        return None


class _Connection(Link):
    """One client's connection, to which the rules apply."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, broker: socket.socket) -> None:
        super().__init__(client, broker)
        self._proxy = proxy
        self._deeds: dict[int, _Rule] = {}

    def requests(self) -> bool:
        """Forward the next request, or apply its rule."""
        frame = read_frame(self.client)
        if frame is None:
            return False
        if self._proxy.is_frozen(self.client):
            return True
        rule = None
        if len(frame) >= _HEADER:
            _, api_key, _, correlation = struct.unpack(">ihhi", frame[:_HEADER])
            rule = self._proxy.deed(api_key)
            if rule is not None and rule.deed is Deed.SWALLOW:
                return True
            if rule is not None and rule.deed is Deed.RESET:
                abort(self.client)
                return False
            if rule is not None:
                self._deeds[correlation] = rule
        for at in range(0, len(frame), _PIECE_BYTES):
            piece = frame[at : at + _PIECE_BYTES]
            self._proxy.flow(len(piece))
            self.broker.sendall(piece)
        return True

    def answers(self) -> bool:
        """Forward the next answer, or apply its rule."""
        frame = read_frame(self.broker)
        if frame is None:
            return False
        if self._proxy.is_frozen(self.client):
            return True
        (correlation,) = struct.unpack(">i", frame[4:8])
        rule = self._deeds.pop(correlation, None)
        match rule.deed if rule else None:
            case Deed.MUTE:
                return True
            case Deed.LOSE | Deed.CUT:
                if rule is not None and rule.deed is Deed.CUT:
                    self.client.sendall(frame[: len(frame) // 2])
                abort(self.client)
                return False
            case Deed.SLICE:
                for at in range(0, len(frame), _SLICE_BYTES):
                    self.client.sendall(frame[at : at + _SLICE_BYTES])
                return True
            case Deed.DELAY:
                time.sleep(rule.delay_s if rule else 0.0)
            case _:
                pass
        self.client.sendall(frame)
        return True
