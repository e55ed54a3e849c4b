"""`Merging`: the merges of one round, and what it names of those that went on beside the rounds before it.

Never decides which runs to merge next: `schemas.snapshot.run_ref` does. Where merges go on beside rounds, none of more
than `merge_bytes` is done in one, and none is done in both.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from statelog.materializer.background_merge import BackgroundMerge, MergedRuns
from statelog.materializer.engine import Engine, Written, tasks_for
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.tasks import TaskOutput, merge_tasks
from statelog.schemas.snapshot.run_ref import Merge, RunRef, affordable, choose_merges, in_place

Runs = tuple[RunRef, ...]


class Merging:
    """Of one round. `starts` are the first key group of each partition."""

    def __init__(self, settings: MaterializerSettings, starts: Sequence[int], beside: BackgroundMerge | None) -> None:
        self._settings = settings
        self._starts = starts
        self._beside = beside
        self._merged: MergedRuns | None = None

    @property
    def is_news(self) -> bool:
        """Whether merged runs wait for a manifest that names them."""
        return self._beside is not None and self._beside.is_over

    @contextmanager
    def taking(self, runs: Runs) -> Generator[None]:
        """Within it, what was merged beside a snapshot of these runs is the round's. Raises what that merge raised."""
        self._merged = None if self._beside is None else self._beside.take(runs)
        try:
            yield
        finally:
            if self._merged is not None:
                self._merged.close()
            self._merged = None

    def merge(self, engine: Engine, runs: Runs, delta: TaskOutput) -> tuple[Runs, int]:
        """Merge until no tier is full, or enough was merged. Returns the runs, and how many went into others."""
        merged, left_bytes = 0, self._settings.merge_bytes
        while merges := affordable(
            self._merges_of(runs), left_bytes, at_least_one=merged == 0 and self._beside is None
        ):
            left_bytes -= sum(merge.size_bytes for merge in merges)
            written = engine.write(
                [
                    task
                    for merge in merges
                    for task in merge_tasks(merge, self._starts, runs, delta, engine.tasks_for(merge.size_bytes))
                ]
            )
            gone = [run for merge in merges for run in merge.runs]
            runs = in_place(runs, gone, written.runs)
            engine.forget(gone)
            merged += len(gone)
        if self._merged is None:
            return runs, merged
        return self._merged.in_place(runs), merged + len(self._merged.merge.runs)

    def publish(self, engine: Engine, runs: Runs) -> Written:
        """Upload and read back what is local, as `Engine.publish`; its errors."""
        written = engine.publish(runs)
        if self._merged is None:
            return written
        merged = self._merged.engine.publish(runs)
        return Written(runs=(*written.runs, *merged.runs), seconds=written.seconds + merged.seconds)

    def leave(self, runs: Runs, delta: TaskOutput) -> None:
        """Of a manifest's runs, what is too large for a round is merged beside the next ones."""
        if self._beside is None or self._beside.merge is not None:
            return
        large = (merge for merge in self._merges_of(runs) if merge.size_bytes > self._settings.merge_bytes)
        if (merge := next(large, None)) is not None:
            most_tasks = tasks_for(merge.size_bytes, self._settings.threads_beside)
            self._beside.leave(merge, merge_tasks(merge, self._starts, runs, delta, most_tasks))

    def _merges_of(self, runs: Runs) -> list[Merge]:
        """Those that are due, but for what is merged beside the rounds."""
        merges = choose_merges(runs, self._settings.fanout)
        others = (self._merged.merge if self._merged else None, self._beside.merge if self._beside else None)
        busy = [run for other in others if other is not None for run in other.runs]
        return [merge for merge in merges if not any(merge.meets(run) for run in busy)]
