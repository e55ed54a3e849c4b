"""Commit metadata: what a commit carries for its caller, above all the place where the source resumes.

A flat mapping from names to text, whole numbers, fractions and booleans. What was committed comes back with its type,
from the ledger as from a snapshot.

Invariant: metadata that passed `check_metadata` can be encoded, and decodes to an equal mapping of the same types.
"""

import math
from collections.abc import Mapping
from typing import cast

from statelog.errors import InvalidMetadata

__all__ = ["Metadata", "check_metadata", "has_utf8"]

Metadata = Mapping[str, str | int | float | bool]
"""What a commit says of itself, by name: a source position, above all."""


def check_metadata(metadata: object) -> None:
    """Raise InvalidMetadata unless it is Metadata: whole numbers of 64 bits, finite fractions, text that has UTF-8."""
    if not isinstance(metadata, Mapping):
        raise InvalidMetadata(f"commit metadata is a mapping, and not {type(metadata).__name__}")
    for name, value in cast("Mapping[object, object]", metadata).items():
        if not (isinstance(name, str) and has_utf8(name)):
            raise InvalidMetadata(f"the names of commit metadata are text, and {name!r} is not", key=repr(name))
        if not _is_taken(value):
            raise InvalidMetadata(f"commit metadata {name!r} cannot hold {value!r}", key=name)


def _is_taken(value: object) -> bool:
    match value:
        case bool():
            return True
        case int():
            return -(1 << 63) <= value < 1 << 63
        case float():
            return math.isfinite(value)
        case str():
            return has_utf8(value)
        case _:
            return False


def has_utf8(text: str) -> bool:
    """Whether the text can be encoded, which a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
