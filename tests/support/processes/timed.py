"""A process of a group of workers whose timers are seen in the state: how often each one has run.

Each message arms a timer under the message's own value. The timer counts that it ran, and deletes its row.
"""

import signal
import time
import warnings
from types import FrameType
from typing import Any

from statelog.environment import Environment
from statelog.tables import Table, WorkerHooks
from tests.support.processes.group import Group
from tests.support.processes.starts import quick_start

__all__ = ["DELAY_S", "RAN", "TimedMember"]

DELAY_S = 0.3
RAN = b"ran/"
_CONTEXT = quick_start()


class TimedMember:
    """A process of the group, which comes back under its name."""

    def __init__(self, group: Group) -> None:
        self._process = _CONTEXT.Process(target=_work, args=(group,), daemon=True)
        self._process.start()

    def kill(self) -> None:
        """Send SIGKILL; return when the process is dead."""
        assert self._process.is_alive(), f"exit code {self._process.exitcode}"
        self._process.kill()
        self._process.join()

    def end(self) -> None:
        """Ask the process to stop, and wait."""
        self._process.terminate()
        self._process.join(60)
        assert self._process.exitcode == 0


def _work(group: Group) -> None:
    warnings.simplefilter("error", ResourceWarning)
    with group.worker("one", Environment(), hooks=WorkerHooks(on_due=_run)) as worker:

        def stop(_number: int, _frame: FrameType | None) -> None:
            worker.stop()

        signal.signal(signal.SIGTERM, stop)
        for message, table in worker:
            table.put(message.value() or b"", b"", due=time.time() + DELAY_S)
            worker.commit_every(group.commit_s)


def _run(table: Table[Any, Any], key: bytes, _: bytes) -> None:
    table[RAN + key] = b"%d" % (int(table.get(RAN + key, b"0")) + 1)
    del table[key]
