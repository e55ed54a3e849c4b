"""What stores, recoveries and tables log: facts that a test expects, and none that it does not.

    with told("falling back"):
        recover(log).to_dict()

Invariant: a line from a warning on that no `told` took fails its test, as an unexpected Python warning does.
"""

import gc
import logging
import re
from collections.abc import Generator
from contextlib import contextmanager

import pytest

__all__ = ["LOGGERS", "collected", "lines", "nothing_untold", "told"]

LOGGERS = tuple(logging.getLogger(f"statelog.{room}") for room in ("storage", "recovery", "tables"))


class _Lines(logging.Handler):
    """Keeps the texts of lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one, for whoever listens last."""
        if _listening[-1] is self:
            self.texts.append(record.getMessage())


_listening: list[_Lines] = []


@contextmanager
def lines() -> Generator[list[str]]:
    """The lines that are logged inside. Inside another one, that one does not hear them."""
    handler = _Lines()
    _listening.append(handler)
    for logger in LOGGERS:
        logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        for logger in LOGGERS:
            logger.removeHandler(handler)
        _listening.remove(handler)


@contextmanager
def told(match: str = "") -> Generator[list[str]]:
    """Expect lines, at least one of which matches; they are those that are yielded."""
    with lines() as texts:
        yield texts
    assert any(re.search(match, text) for text in texts), f"nothing about {match!r} was told: {texts}"


@pytest.fixture(autouse=True)
def nothing_untold() -> Generator[None]:
    """Fails a test that was told what it did not expect."""
    with lines() as texts:
        yield
    assert texts == [], f"told without being expected: {texts}"


@pytest.fixture
def collected() -> None:
    """What earlier tests left to be freed, and to be warned of, is freed now: a story hears of nothing but its own."""
    gc.collect()
