"""Environment variables that begin with STATELOG_ but are no configuration key: foreign ones, or refused. Pure.

Invariant: what is not known is refused, because a setting that is silently ignored may be a password or a waiver.
"""

import difflib
import re
from collections.abc import Iterable

from statelog.cli.config.keys import FREE_TABLES
from statelog.errors import ConfigError

__all__ = ["PREFIX", "refuse_unknown"]

PREFIX = "STATELOG_"
_FOREIGN = re.compile(
    # What Kubernetes and Compose set for services and ports of that name, and what this project's other programs read.
    r"(?:.+_)?SERVICE_(?:HOST|PORT(?:_.+)?)"
    r"|(?:.+_)?PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?"
    r"|LOG|IMAGE|(?:TEST|DEMO|BENCH)_.+"
)


def refuse_unknown(variable: str, known: Iterable[str]) -> None:
    """Raise ConfigError, with the likely name, unless the variable is another program's. Values are not looked at."""
    name = variable.removeprefix(PREFIX)
    if not _FOREIGN.fullmatch(name):
        raise ConfigError(f"unknown variable {variable}", key=variable, hint=_likely(name, known))


def _likely(name: str, known: Iterable[str]) -> str:
    for table in FREE_TABLES:
        if name.startswith(f"{table.upper()}_"):
            rest = name.removeprefix(f"{table.upper()}_")
            return f"Write two underscores between {table.upper()} and the setting: {PREFIX}{table.upper()}__{rest}"
    names = [one.removeprefix(PREFIX) for one in known]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"The nearest known one is {PREFIX}{near[0]}" if near else "docs/cli.md lists the variables; unset this one"
