"""Hints of the library as the command line says them: what is a parameter there is an option here. Pure."""

import re

__all__ = ["as_typed"]

_OPTIONS = {
    "replication_factor": "--replication-factor",
    "allow_unsafe": "--allow-unsafe",
    "key_groups": "--key-groups",
    "hash_rule": "--hash",
    "prefix_bytes": "--prefix-bytes",
    "alarm_age_s": "--alarm-age",
}
_NAMED = re.compile(rf"\b({'|'.join(_OPTIONS)})\b(?:=(\[[^]]*\]|[\w,.-]+))?")
_MADE_BY_OPENING = re.compile(r"Pass create=True(?:, or (\w))?")


def as_typed(hint: str) -> str:
    """The hint with options in place of parameters; a command never makes a log by opening it."""
    return _NAMED.sub(_option, _MADE_BY_OPENING.sub(_made, hint))


def _option(found: re.Match[str]) -> str:
    value = re.sub(r"[\[\]\"' ]", "", found[2] or "")
    return f"{_OPTIONS[found[1]]} {value}".rstrip()


def _made(found: re.Match[str]) -> str:
    return found[1].upper() if found[1] else "Make it with `statelog init`"
