"""The only broker of a cluster, just started, answers before it knows of any broker, itself included."""

import socket
import struct
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from threading import Thread

from statelog.errors import BrokerUnavailable
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from tests.support.processes.parts import output

_METADATA, _API_VERSIONS = 3, 18
_HOST = b"127.0.0.1"


class _Broker:
    """A broker that speaks enough of the protocol to describe its cluster: Metadata of version 12."""

    def __init__(self, server: socket.socket) -> None:
        self.port: int = server.getsockname()[1]
        self.is_early = False
        self._server = server

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                Thread(target=self._answer, args=(self._server.accept()[0],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as questions:
            while size := questions.read(4):
                question = questions.read(int.from_bytes(size, "big"))
                key, _, number = struct.unpack_from(">hhi", question)
                answer = struct.pack(">i", number) + (self._versions() if key == _API_VERSIONS else self._metadata())
                connection.sendall(struct.pack(">i", len(answer)) + answer)

    def _versions(self) -> bytes:
        ranges = [(_METADATA, 0, 12), (_API_VERSIONS, 0, 3)]
        return (
            struct.pack(">hb", 0, len(ranges) + 1) + b"".join(struct.pack(">hhhx", *one) for one in ranges) + bytes(5)
        )

    def _metadata(self) -> bytes:
        itself = struct.pack(">ib", 1, len(_HOST) + 1) + _HOST + struct.pack(">i2x", self.port)
        brokers, controller = (b"\x01", -1) if self.is_early else (b"\x02" + itself, 1)
        return bytes(5) + brokers + b"\x03me" + struct.pack(">ibx", controller, 1)


@contextmanager
def _broker() -> Generator[_Broker]:
    with socket.create_server((_HOST.decode(), 0)) as server:
        broker = _Broker(server)
        Thread(target=broker.serve, daemon=True).start()
        yield broker


def ask() -> None:
    """Ask for the cluster's id before, during and after a restart, and print the outcomes."""
    with _broker() as broker:
        config = client_config({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
        with closing(ConfluentKafka(config, request_timeout_s=1.0)) as kafka:
            for is_early in (False, True, False):
                broker.is_early = is_early
                try:
                    sys.stdout.write(f"{kafka.cluster_id()} ")
                except BrokerUnavailable:
                    sys.stdout.write("away ")


def test_the_process_lives_on() -> None:
    """A broker that does not know itself yet is away. librdkafka's own question would end the process with SIGABRT."""
    assert output(ask) == "me away me "
