"""A log on twins whose rows may have dues, and the model of its state: from key to value and due."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from tests.support.rigs.log import TwinLog, settings_for

__all__ = ["NOON_MS", "TimedLog", "TimedRow", "timed_state"]

NOON_MS = 1_800_000_000_000
"""A time of tests, in milliseconds."""
TimedRow = tuple[bytes, int | None]
"""A value, and when it is due in milliseconds; None: it has no due."""


@dataclass(slots=True)
class TimedLog(TwinLog):
    """A log on twins, and the model of its state with dues."""

    rows: dict[bytes, TimedRow] = field(default_factory=dict[bytes, TimedRow])

    def put(self, changes: Mapping[bytes, TimedRow | None], writer: str = "writer") -> None:
        """Commit changes (None deletes) as the writer's next checkpoint, and apply them to the model."""
        with self.open() as log, Writer(log, writer) as out:
            for key, row in changes.items():
                if row is None:
                    out.delete(key)
                    self.rows.pop(key, None)
                else:
                    value, due_ms = row
                    out.put(key, value, due=None if due_ms is None else due_ms / 1000)
                    self.rows[key] = row
            out.commit()

    def round(self, scratch: Path, **settings: Any) -> CompletedRound:
        """Run a round with the settings of a small materializer, and these. It truncates nothing unless they say so."""
        with self.open() as log:
            done = self.environment.run(run_round, log, settings_for(scratch, **{"keep": 99, **settings}))
        assert isinstance(done, CompletedRound)
        return done

    def some(self, rng: random.Random, *, due_share: float, most: int = 30) -> dict[bytes, TimedRow | None]:
        """Return random changes: puts, a share of them with a due, and some deletes."""
        keys = rng.sample([b"key-%03d" % number for number in range(100)], rng.randrange(1, most))
        changes = dict[bytes, TimedRow | None]()
        for key in keys:
            due_ms = NOON_MS + rng.randrange(3_600_000) if rng.random() < due_share else None
            changes[key] = None if rng.random() < 0.2 else (rng.randbytes(rng.choice((3, 2000, 20_000))), due_ms)
        return changes


def timed_state(table: pa.Table) -> dict[bytes, TimedRow]:
    """Return the state of a table with the columns key, value and due. Fail if a key comes twice."""
    keys, values = (table.column(name).to_pylist() for name in ("key", "value"))
    dues = table.column("due").cast(pa.int64()).to_pylist()
    found = dict(zip(keys, zip(values, dues, strict=True), strict=True))
    assert len(found) == table.num_rows
    return found
