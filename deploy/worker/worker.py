"""A worker as a service: counts the messages of a topic by their values, until SIGTERM.

Where logs are is in STATELOG_* variables and the file that STATELOG_CONFIG names. LOG is the log, TOPIC the input,
MEMBER this process's name in the group, which is the same after a restart, and DIRECTORY the place of its state.
PROBES is where kubelet asks for its health, and LISTEN where Prometheus asks for its metrics: on this machine, by TLS
with the files TLS_CERTIFICATE, TLS_KEY and TOKEN_FILE, or, with GUARDED_NETWORK, in the clear on a guarded network.
"""

import logging
import os
import signal
from pathlib import Path

import statelog
from statelog.operate import export_metrics
from statelog.tables import InputTopic

__all__ = ["main"]


def main() -> None:
    """Work until SIGTERM; the last commit is made behind it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    topic = InputTopic(os.environ["TOPIC"], {"group.instance.id": os.environ["MEMBER"]})
    where = statelog.Where.from_env()
    directory = os.environ["DIRECTORY"]
    log = os.environ["LOG"]
    tell(directory)
    with statelog.worker(log, where, topic=topic, create=True, backend="rocksdb", directory=directory) as worker:

        def stop(*_: object) -> None:
            worker.stop()

        signal.signal(signal.SIGTERM, stop)
        for message, table in worker:
            word = message.value() or b""
            table[word] = b"%d" % (int(table.get(word, b"0")) + 1)
            worker.commit_every(1.0)


def tell(directory: str) -> None:
    """Answer kubelet and Prometheus from now on; before anything is opened."""
    named = ("TLS_CERTIFICATE", "TLS_KEY", "TOKEN_FILE")
    certificate, key, token_file = (Path(os.environ[one]) if one in os.environ else None for one in named)
    export_metrics(
        directories=[directory],
        listen=os.environ.get("LISTEN"),
        probes=os.environ.get("PROBES"),
        certificate=certificate,
        key=key,
        token_file=token_file,
        guarded_network=bool(os.environ.get("GUARDED_NETWORK")),
    )


if __name__ == "__main__":
    main()
