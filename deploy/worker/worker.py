"""A worker as a service: counts the messages of a topic by their values, until SIGTERM.

Where logs are is in STATELOG_* variables and the file that STATELOG_CONFIG names. LOG is the log, TOPIC the input,
MEMBER this process's name in the group, which is the same after a restart, and DIRECTORY the place of its state.
"""

import logging
import os
import signal

import statelog
from statelog.tables import InputTopic

__all__ = ["main"]


def main() -> None:
    """Work until SIGTERM; the last commit is made behind it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    topic = InputTopic(os.environ["TOPIC"], {"group.instance.id": os.environ["MEMBER"]})
    where = statelog.Where.from_env()
    directory = os.environ["DIRECTORY"]
    log = os.environ["LOG"]
    with statelog.worker(log, where, topic=topic, create=True, backend="rocksdb", directory=directory) as worker:

        def stop(*_: object) -> None:
            worker.stop()

        signal.signal(signal.SIGTERM, stop)
        for message, table in worker:
            word = message.value() or b""
            table[word] = b"%d" % (int(table.get(word, b"0")) + 1)
            worker.commit_every(1.0)


if __name__ == "__main__":
    main()
