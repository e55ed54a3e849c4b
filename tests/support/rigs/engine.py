"""Engines for tests: the local one, asked to cut its work into several tasks."""

from statelog.materializer.engine.engine import EngineMaker, RoundWork
from statelog.materializer.engine.local import LocalEngine

__all__ = ["split_engine"]


def split_engine(most_tasks: int) -> EngineMaker:
    """Makes local engines that cut a fold or a merge into at most so many tasks."""

    def make(work: RoundWork) -> LocalEngine:
        return LocalEngine(work, most_tasks)

    return make
