"""Choices: the member of an enumeration that a caller names by its text. Pure."""

from enum import StrEnum
from typing import TypeVar

from statelog.errors import ConfigError

__all__ = ["one_of"]

E = TypeVar("E", bound=StrEnum)


def one_of(kind: type[E], name: str, value: str) -> E:
    """The member of `kind` whose text is `value`, which the caller knows as `name`. Raises ConfigError."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}", hint=f"Use one of {', '.join(kind)}") from None
