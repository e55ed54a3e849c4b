"""`Finding`: the result of one check of a doctor: severity, what was found, why it matters, what to do. Pure.

Shared by the doctors of clusters and of logs. Invariant: a finding that is not OK says why it matters.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

from statelog.errors import AlreadyExists, Damaged, Fact, Misuse, NotFound, StatelogError, Unsafe

_BROKER_REASON = re.compile(r"[A-Z]")
"""The first character of a broker's reason for refusing a record. The client's own reasons begin with `_`."""


class Severity(StrEnum):
    """The severity of a finding, from best to worst."""

    OK = "ok"
    NOTE = "note"
    """Good to know; no action is needed."""
    REFUSED = "refused"
    """A person has to set, grant, waive or do something first."""
    UNAVAILABLE = "unavailable"
    """No answer; a later attempt may get one."""
    DAMAGED = "damaged"
    """Stored data is missing or changed."""


class Explained(StrEnum):
    """A check, by its name in the documents; `why` names the consequence of a failure."""

    why: str

    def __new__(cls, name: str, why: str) -> Self:
        """Make a member whose value is its name."""
        member = str.__new__(cls, name)
        member._value_, member.why = name, why
        return member


class Verdict(NamedTuple):
    """The meaning of an answer, in the terms of `Finding`."""

    severity: Severity
    found: str
    hint: str = ""
    facts: Mapping[str, Fact] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check, by its `name` in the documents: `found` for people, `facts` for programs.

    `why` names the consequence, `hint` the remedy; both are empty if all is well.
    """

    name: str
    severity: Severity
    found: str
    facts: Mapping[str, Fact] = field(default_factory=dict[str, Fact])
    why: str = ""
    hint: str = ""

    @classmethod
    def of(cls, asked: Explained, verdict: Verdict | None) -> "Finding":
        """Return the finding of a check. `verdict` None: it was skipped, because of another check's result."""
        if verdict is None:
            why = "Skipped, because of the result of another check"
            return cls(name=asked.value, severity=Severity.NOTE, found="not asked", why=why)
        severity, found, hint, facts = verdict
        why = "" if severity is Severity.OK else asked.why
        return cls(name=asked.value, severity=severity, found=found, facts=facts, why=why, hint=hint)


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the worst severity; OK without findings."""
    return max((one.severity for one in findings), key=list(Severity).index, default=Severity.OK)


def severity_of(error: StatelogError) -> Severity:
    """Return the severity of a check that ended with this error."""
    match error:
        case Damaged():
            return Severity.DAMAGED
        case Misuse() | Unsafe() | NotFound() | AlreadyExists():
            return Severity.REFUSED
        case _:
            is_refused = _BROKER_REASON.match(str(error.facts.get("reason", "")))
            return Severity.REFUSED if is_refused else Severity.UNAVAILABLE


_HINTS = {
    Severity.UNAVAILABLE: "Check that it is reachable, and run the doctor again",
    Severity.DAMAGED: "Restore it from a copy; for data that cannot be restored, see docs/protocol-losses.md",
}
"""Hints for errors that carry none."""


def error_verdict(error: StatelogError) -> Verdict:
    """Return the verdict on a check that ended with this error."""
    severity = severity_of(error)
    return Verdict(severity, error_text(error), error.hint or _HINTS.get(severity, ""), error.facts)


def error_text(error: StatelogError) -> str:
    """Return an error's message with its facts."""
    facts = ", ".join(f"{name}={value}" for name, value in error.facts.items())
    return f"{error.message} ({facts})" if facts else error.message
