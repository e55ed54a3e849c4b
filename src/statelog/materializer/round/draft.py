"""The runs of the next manifest: written to the scratch directory, uploaded only if the manifest names them.

Invariants:
- Every run gets a name that was never used before.
- A run of a draft lies either in the store already or as a finished local file, never in both.
- Writing stops between two tables once the round was given up: `go_on` raises.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from statelog.schemas.names import run_path
from statelog.schemas.snapshot.manifest import RunRef
from statelog.schemas.snapshot.runs import RunFile, RunMetadata
from statelog.schemas.values.schema import ValueSchema
from statelog.seams import NewNonce
from statelog.storage.local.disk import DiskHook, no_faults
from statelog.storage.log.log import Log
from statelog.storage.runs.read import LocalRun, RunReader, read_back
from statelog.storage.runs.write import RunWriter, WrittenRun, upload_run

__all__ = ["Draft"]


class Draft:
    """The list of runs, oldest first, that the next manifest will name. `schema` is the newest value schema."""

    def __init__(
        self,
        log: Log,
        schema: ValueSchema,
        scratch: Path,
        new_nonce: NewNonce,
        runs: Sequence[RunRef],
        go_on: Callable[[], None],
        disk: DiskHook = no_faults,
    ) -> None:
        self.runs = list(runs)
        self.schema = schema
        self._log = log
        self._scratch = scratch
        self._new_nonce = new_nonce
        self._go_on = go_on
        self._disk = disk
        self._local: dict[str, WrittenRun] = {}

    def write(self, tables: Iterable[pa.Table], start_position: int, end_position: int, level: int) -> RunRef:
        """Write sorted changes, whose values have the newest schema, as a new local run. It is not in `runs` yet."""
        run_id = self._new_nonce().hex()
        label = RunMetadata(
            log=self._log.name,
            first_position=start_position,
            end_position=end_position,
            value_schema_id=self.schema.id,
        )
        local = self._scratch / f"{run_id}.parquet"
        with RunWriter(local, self._log.change_schema(self.schema.id), label, disk=self._disk) as writer:
            for table in tables:
                self._go_on()
                writer.append(table)
            written = writer.finish()
        path = run_path(run_id)
        self._local[path] = written
        return RunRef.of(
            RunFile(
                path=path, size_bytes=written.size_bytes, rows=written.rows, sha256=written.sha256, index=written.index
            ),
            start_position=start_position,
            end_position=end_position,
            level=level,
            value_schema_id=self.schema.id,
        )

    def replace(self, merged: slice, run: RunRef) -> None:
        """Put `run` in the place of those that it was merged from."""
        for old in self.runs[merged]:
            written = self._local.pop(old.path, None)
            if written is not None:
                written.local.unlink()
        self.runs[merged] = [run]

    def open(self, run: RunRef) -> RunReader:
        """A reader of one of `runs`, wherever it lies. Raises CorruptRun, NotFound, StoreUnavailable."""
        written = self._local.get(run.path)
        return RunReader(LocalRun(written.local) if written else self._log.store, run.file)

    def upload(self) -> list[RunRef]:
        """Upload every local run. Returns them. Raises StoreUnavailable, StorageFull."""
        uploaded = [run for run in self.runs if run.path in self._local]
        for run in uploaded:
            self._go_on()
            upload_run(self._log.store, self._local.pop(run.path), _run_id(run.path))
        return uploaded

    def read_back(self, uploaded: Iterable[RunRef]) -> None:
        """Read uploaded runs once, every byte. Raises CorruptRun, NotFound, StoreUnavailable."""
        for run in uploaded:
            self._go_on()
            read_back(self._log.store, run.file)


def _run_id(path: str) -> str:
    return path.removeprefix("runs/").removesuffix(".parquet")
