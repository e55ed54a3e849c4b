"""A materializer process that kills itself with SIGKILL at a named point of a round; fault tests run it with -m."""

import argparse
import os
import signal
from pathlib import Path

from statelog.materializer.round.round import run_round
from statelog.seams import Seams
from statelog.storage.log.log import Log
from tests.support.rigs.log import UNSAFE, settings_for

__all__: list[str] = []


def main() -> None:
    """One round, which may be the process' last."""
    parser = argparse.ArgumentParser()
    for name in ("log", "bootstrap", "root", "scratch", "point"):
        parser.add_argument(name)
    given = parser.parse_args()

    def crash(passed: str) -> None:
        if passed == given.point:
            os.kill(os.getpid(), signal.SIGKILL)

    kafka = {"bootstrap.servers": given.bootstrap}
    with Log.open(given.log, kafka=kafka, root=given.root, allow_unsafe=UNSAFE) as log:
        run_round(log, settings_for(Path(given.scratch)), seams=Seams(crash=crash))


if __name__ == "__main__":
    main()
