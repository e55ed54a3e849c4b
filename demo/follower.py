"""The second query as a process that the demo starts, observes from outside, and asks to end.

Its checkpoint tells what it has read; Spark writes it in whole files. A micro-batch in `commits` is in the result, and
its place in the log is the last line of its file in `offsets`.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from demo.failure import DemoFailed
from demo.place import Place, child_environment
from demo.processes import start
from statelog.testing.process import tail

__all__ = ["Follower", "Reached"]

_END_TIMEOUT_S = 120.0


class Reached(NamedTuple):
    """The second query had all commits below a ledger position, observed at `at_s` on the monotonic clock."""

    position: int
    at_s: float


class Follower:
    """The second query. The constructor starts its process; it reads from `begin` on."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._log = place.directory / "spark-follower.log"
        command = [sys.executable, "-m", "demo.follow", place.to_json()]
        self._process = start(command, self._log, child_environment(), stdin=subprocess.PIPE)
        self._batches = 0
        self.has_begun = False
        self.reached: list[Reached] = []

    def begin(self) -> None:
        """Let the query begin to read."""
        assert self._process.stdin is not None, "it was made as a pipe"
        self.has_begun = True
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    @property
    def position(self) -> int:
        """The ledger position below which it has all commits; 0 before its first micro-batch."""
        return self.reached[-1].position if self.reached else 0

    def refresh(self) -> None:
        """Read the new micro-batches. Raises DemoFailed if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise DemoFailed(self._ended(code))
        self._read_on()

    def begin_position(self) -> int:
        """Return the position of its first state."""
        return int(self._offset(0)["beginPlace"][0])

    def finish(self) -> None:
        """Let the query read all commits so far, and end. Raises DemoFailed if it fails or is late."""
        assert self._process.stdin is not None, "it was made as a pipe"
        self._process.stdin.close()
        try:
            code = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the second query did not end within {_END_TIMEOUT_S:.0f} s: {tail(self._log)}") from None
        if code != os.EX_OK:
            raise DemoFailed(self._ended(code))
        self._read_on()

    def end(self) -> None:
        """Kill the query if it still runs, for the cleanup after a failure."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read_on(self) -> None:
        commits = self._place.followed_checkpoint / "commits"
        while (commits / str(self._batches)).exists():
            self.reached.append(Reached(int(self._offset(self._batches)["place"][0]), time.monotonic()))
            self._batches += 1

    def _offset(self, batch: int) -> Mapping[str, Any]:
        lines = (self._place.followed_checkpoint / "offsets" / str(batch)).read_text("utf-8").splitlines()
        return json.loads(lines[-1])  # type: ignore[no-any-return]  # JSON has any type; it is an object here

    def _ended(self, code: int) -> str:
        return f"the second query ended with {code}: {tail(self._log, 8)}\nSee {self._log}"
