"""One recovery worker, in a process of its own: `python -m demo.recover_half PLACE START END FILE`.

Restores the key groups from START to END (exclusive) into a Parquet file, and prints its statistics as one JSON object.
"""

import json
import sys
from dataclasses import asdict

from demo.place import Place
from statelog.recovery.recover import recover

__all__ = ["main"]


def main(place: Place, start: int, end: int, file: str) -> None:
    """Recover the newest state of these key groups."""
    with place.open() as log:
        recovery = recover(log, key_groups=range(start, end))
        recovery.to_parquet(file)
        print(json.dumps({**asdict(recovery.statistics()), "warnings": list(recovery.warnings)}))


if __name__ == "__main__":
    main(Place.from_json(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
