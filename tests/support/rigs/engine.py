"""Engines for tests: the local one, set to cut its work into several tasks."""

from statelog.materializer.engine import EngineMaker, LocalEngine
from statelog.materializer.work import RoundWork

__all__ = ["SplitEngine", "split_engine"]


class SplitEngine(LocalEngine):
    """An engine that cuts a fold or a merge into at most so many tasks, whatever their size."""

    def __init__(self, work: RoundWork, most_tasks: int) -> None:
        super().__init__(work)
        self._most_tasks = most_tasks

    def tasks_for(self, size_bytes: int) -> int:  # Whatever their size.
        """Return the most tasks that are allowed."""
        return self._most_tasks


def split_engine(most_tasks: int) -> EngineMaker:
    """Return a maker of such engines."""
    return lambda work: SplitEngine(work, most_tasks)
