"""Reported errors: how a typed error comes from Spark's workers to the program that waits, as text, and back.

Spark hands over what a worker prints of an exception, and nothing else. So where Spark calls us, a typed error gets a
note with its report, one line: a stable token, `[statelog.Fenced]`, and message, hint and facts as JSON. `error_of`
reads it back, however many exceptions of Spark's stand around it.

Invariants:
- What a report shows is in the error's own text, too: no secret is in either.
- The stack that Spark prints ends where Spark called us; all of it is a line of `statelog.spark` at level DEBUG.
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
    """The error of statelog's that an exception of Spark's tells of, with its class, hint and facts; None if it tells
    of none.

    Takes whatever an action, a write or a query raised, and `StreamingQuery.exception()`:

        >>> try:
        ...     spark.read.format("statelog").options(log="planes", root="/tmp/statelog").load()
        ... except Exception as caught:
        ...     error = error_of(caught)
        >>> type(error).__name__, error.message
        ('ConfigError', 'the option kafka.bootstrap.servers is missing')
    """
    seen: set[int] = set()
    while exception is not None and id(exception) not in seen:
        if isinstance(exception, StatelogError):
            return exception
        seen.add(id(exception))
        found = _parsed(str(exception))
        if found is not None:
            return found
        exception = exception.__cause__ or exception.__context__
    return None


def unpicklable(error: StatelogError) -> PicklingError:
    """The error for whoever pickles in vain: Spark lets it through, and would wrap any other in one of its own."""
    return PicklingError(f"{type(error).__name__}: {error}\n{_report(error)}")


class reported(ContextDecorator):  # noqa: N801  # as a decorator
    """Around everything that Spark calls, as a decorator or in a `with`, the latter in generators."""

    def __enter__(self) -> None:
        """Nothing to do."""

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
    told = {"message": error.message, "hint": error.hint, "facts": dict(error.facts)}
    return f"[statelog.{type(error).__name__}] {json.dumps(told)}"


def _parsed(text: str) -> StatelogError | None:
    for token in _TOKEN.finditer(text):
        try:
            told, _ = json.JSONDecoder().raw_decode(text, token.end())
            found = getattr(errors, token[1], None)
            kind = found if isinstance(found, type) and issubclass(found, StatelogError) else StatelogError
            return kind(told["message"], hint=told["hint"], **cast("dict[str, Fact]", told["facts"]))
        except (ValueError, KeyError, TypeError):
            continue  # Cut off, by whoever shows only so much of a text; or nothing of ours.
    return None
