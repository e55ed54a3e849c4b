"""`Finding`: one thing that a doctor looked at: how bad it is, what was found, why it matters, what to do. Pure.

Shared by whatever is looked at: a cluster, a log. Invariant: one that is not OK says why it matters.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

from statelog.errors import AlreadyExists, Damaged, Fact, Misuse, NotFound, StatelogError, Unsafe

_BROKERS_NO = re.compile(r"[A-Z]")
"""How the reason begins if a broker refused a record. The client's own begin with `_`."""


class Severity(StrEnum):
    """How bad a finding is, from the best to the worst."""

    OK = "ok"
    NOTE = "note"
    """Good to know; nothing has to be done."""
    REFUSED = "refused"
    """Somebody has to set, grant, waive or do something first."""
    UNAVAILABLE = "unavailable"
    """No answer: it may be there at another time."""
    DAMAGED = "damaged"
    """What was stored is not what is there."""


class Explained(StrEnum):
    """What is looked at, by the name that documents give it; `why` says what follows where it is not as it should."""

    why: str

    def __new__(cls, name: str, why: str) -> Self:
        """A member: its name is its value."""
        member = str.__new__(cls, name)
        member._value_, member.why = name, why
        return member


class Verdict(NamedTuple):
    """What an answer means, in the words of `Finding`."""

    severity: Severity
    found: str
    hint: str = ""
    facts: Mapping[str, Fact] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was looked at, by the `name` that documents give it, and what came of it.

    `found` is for people, `facts` are for programs; `why` says what follows, and `hint` what to do. Both are empty
    where all is well.
    """

    name: str
    severity: Severity
    found: str
    facts: Mapping[str, Fact] = field(default_factory=dict[str, Fact])
    why: str = ""
    hint: str = ""

    @classmethod
    def of(cls, asked: Explained, verdict: Verdict | None) -> "Finding":
        """The finding of what was asked; None: it was not, because of what another one says."""
        if verdict is None:
            why = "Nobody knows before it is asked"
            return cls(name=asked.value, severity=Severity.NOTE, found="not asked", why=why)
        severity, found, hint, facts = verdict
        why = "" if severity is Severity.OK else asked.why
        return cls(name=asked.value, severity=severity, found=found, facts=facts, why=why, hint=hint)


def worst(findings: Iterable[Finding]) -> Severity:
    """The severity of the worst; OK if there is none."""
    return max((one.severity for one in findings), key=list(Severity).index, default=Severity.OK)


def severity_of(error: StatelogError) -> Severity:
    """How bad it is that a question ended with this error."""
    match error:
        case Damaged():
            return Severity.DAMAGED
        case Misuse() | Unsafe() | NotFound() | AlreadyExists():
            return Severity.REFUSED
        case _:
            is_refused = _BROKERS_NO.match(str(error.facts.get("reason", "")))
            return Severity.REFUSED if is_refused else Severity.UNAVAILABLE


_HINTS = {
    Severity.UNAVAILABLE: "Look at it, and ask again",
    Severity.DAMAGED: "Restore it from a copy; what cannot be restored: docs/protocol-losses.md",
}
"""For errors that say nothing themselves."""


def error_verdict(error: StatelogError) -> Verdict:
    """What it means that a question ended with this error."""
    severity = severity_of(error)
    return Verdict(severity, error_text(error), error.hint or _HINTS.get(severity, ""), error.facts)


def error_text(error: StatelogError) -> str:
    """What an error says, with its facts."""
    facts = ", ".join(f"{name}={value}" for name, value in error.facts.items())
    return f"{error.message} ({facts})" if facts else error.message
