"""Reported errors: typed errors as text, from Spark's workers to the waiting program.

Spark passes on only the printed text of a worker's exception. So a typed error that leaves a function called by Spark
gets a note of one line: a stable token, `[statelog.Fenced]`, and message, hint and facts as JSON. `error_of` parses it,
whatever exceptions of Spark wrap it.

Invariants:
- A report shows only what the error's own text has, too: no secret is in either.
- The stack that Spark prints ends where Spark called us. The whole stack is logged to `statelog.spark` at level DEBUG.
"""

import json
import logging
import re
from contextlib import ContextDecorator
from pickle import PicklingError
from types import TracebackType
from typing import cast

from statelog import errors
from statelog.errors import Fact, StatelogError

_LOG = logging.getLogger("statelog.spark")
_TOKEN = re.compile(r"\[statelog\.(\w+)\] (?=\{)")


def error_of(exception: BaseException | None) -> StatelogError | None:
    """Return statelog's error, with its class, hint and facts, from an exception of Spark; None if there is none.

    Accepts any exception of an action, a write or a query, and `StreamingQuery.exception()`:

        >>> try:
        ...     spark.read.format("statelog").options(log="planes", root="/tmp/statelog").load()
        ... except Exception as caught:
        ...     error = error_of(caught)
        >>> type(error).__name__, error.message
        ('ConfigError', 'the option kafka.bootstrap.servers is missing')
    """
    visited: set[int] = set()
    while exception is not None and id(exception) not in visited:
        if isinstance(exception, StatelogError):
            return exception
        visited.add(id(exception))
        found = _parsed(str(exception))
        if found is not None:
            return found
        exception = exception.__cause__ or exception.__context__
    return None


def unpicklable(error: StatelogError) -> PicklingError:
    """Return the error to raise while pickling. Spark passes a PicklingError on, and would wrap any other."""
    return PicklingError(f"{type(error).__name__}: {error}\n{_report(error)}")


class reported(ContextDecorator):  # noqa: N801  # as a decorator
    """Adds reports to typed errors, around every function that Spark calls: a decorator, or in generators a `with`."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, StatelogError):
            return
        _LOG.debug("%s", error, exc_info=error)
        report = _report(error)
        if report not in getattr(error, "__notes__", ()):
            error.add_note(report)
        error.__cause__, error.__suppress_context__ = None, True
        if trace is not None and trace.tb_next is not None:
            trace.tb_next.tb_next = None


def _report(error: StatelogError) -> str:
    content = {"message": error.message, "hint": error.hint, "facts": dict(error.facts)}
    return f"[statelog.{type(error).__name__}] {json.dumps(content)}"


def _parsed(text: str) -> StatelogError | None:
    for token in _TOKEN.finditer(text):
        try:
            content, _ = json.JSONDecoder().raw_decode(text, token.end())
            found = getattr(errors, token[1], None)
            kind = found if isinstance(found, type) and issubclass(found, StatelogError) else StatelogError
            return kind(content["message"], hint=content["hint"], **cast("dict[str, Fact]", content["facts"]))
        except (ValueError, KeyError, TypeError):
            continue  # The text was truncated, or is no report.
    return None
