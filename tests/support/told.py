"""Expected log lines of stores, recoveries and tables: a test names the lines that it expects, and gets no others.

    with told("falling back"):
        recover(log).to_dict()

Invariant: a line from a warning on that no `told` took fails its test, as an unexpected Python warning does.
"""

import gc
import logging
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

__all__ = ["collected", "lines", "listen", "nothing_untold", "told"]

_LOGGERS = tuple(logging.getLogger(f"statelog.{room}") for room in ("log", "recovery", "tables"))


def listen(hear: Callable[[logging.LogRecord], None]) -> Callable[[], None]:
    """Give `hear` every line from a warning on, until the returned function is called."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = hear  # type: ignore[assignment, method-assign]  # a handler is a function with a level
    for logger in _LOGGERS:
        logger.addHandler(handler)

    def end() -> None:
        for logger in _LOGGERS:
            logger.removeHandler(handler)

    return end


_heard: list[list[str]] = []
"""The lines of every listener, the last one last."""


@contextmanager
def lines() -> Generator[list[str]]:
    """Yield the lines that are logged inside. A nested call takes the lines of the outer one."""
    texts: list[str] = []
    _heard.append(texts)
    end = listen(lambda line: texts.append(line.getMessage()) if _heard[-1] is texts else None)
    try:
        yield texts
    finally:
        end()
        _heard.pop()


@contextmanager
def told(match: str = "") -> Generator[list[str]]:
    """Expect lines, at least one of which matches; yield them."""
    with lines() as texts:
        yield texts
    assert any(re.search(match, text) for text in texts), f"no line matches {match!r}: {texts}"


@pytest.fixture(autouse=True)
def nothing_untold() -> Generator[None]:
    """Fail a test that logged a line that it did not expect."""
    with lines() as texts:
        yield
    assert texts == [], f"logged without being expected: {texts}"


@pytest.fixture
def collected() -> None:
    """Free the objects that earlier tests left, so that a test meets only warnings of its own."""
    gc.collect()
