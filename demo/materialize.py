"""The materializer daemon: `statelog materialize` in a process of its own, with short intervals.

Its configuration is a file in the demo's directory, so that the user's own configuration has no effect.
"""

import json
import os
import signal
import subprocess
import sys

from demo.failure import DemoFailed
from demo.place import ALLOW_UNSAFE, Place, child_environment
from demo.processes import start
from statelog.testing.process import tail

__all__ = ["MaterializerDaemon"]

_INTERVAL_S = 5
_STOP_TIMEOUT_S = 60.0


class MaterializerDaemon:
    """One daemon. The constructor starts it."""

    def __init__(self, place: Place) -> None:
        self._log = place.directory / "materializer.log"
        config = place.directory / "statelog.toml"
        config.write_text(_configuration(place), encoding="utf-8")
        # Equivalent to the console script `statelog`, which may not be installed.
        command = [sys.executable, "-c", "from statelog.cli import main; main()"]
        command += ["materialize", place.log, "--config", str(config)]
        self._process = start(command, self._log, _without_settings(child_environment()), stdin=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise DemoFailed if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise DemoFailed(f"the materializer ended with {code}: {tail(self._log)}\nSee {self._log}")

    def stop(self) -> None:
        """Stop the daemon by SIGTERM after its current round. Raises DemoFailed if it fails or is late."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the materializer did not end within {_STOP_TIMEOUT_S:.0f} s of SIGTERM") from None
        if code != os.EX_OK:
            raise DemoFailed(f"the materializer ended with {code} after SIGTERM: {tail(self._log)}\nSee {self._log}")

    def end(self) -> None:
        """Kill the daemon if it still runs, for the cleanup after a failure."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _configuration(place: Place) -> str:
    """Return the configuration as TOML; JSON's strings and lists of strings are TOML's, too."""
    return "\n".join(
        [
            f"bootstrap = {json.dumps(place.bootstrap)}",
            f"root = {json.dumps(place.root)}",
            f"allow_unsafe = {json.dumps(list(ALLOW_UNSAFE))}",
            "",
            "[materializer]",
            f"interval_s = {_INTERVAL_S}",
            "min_age_s = 1",
            "keep = 2",
            f"scratch = {json.dumps(str(place.directory))}",
            "",
        ]
    )


def _without_settings(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("STATELOG_")}
