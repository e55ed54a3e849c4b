"""Names: the valid names of logs, writers and files, and the names that follow from a log's name. Pure.

Names become topics and paths, and are read back from files of other authors. So every name passes `check_name`,
whatever its source.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from numbers import Integral
from operator import index
from typing import NamedTuple, TypeVar

from statelog.errors import ConfigError, InvalidName

DESCRIPTOR_PATH = "descriptor.avro"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_LEDGER = ".ledger"
_SUBSCRIPTION = re.compile(r"subscriptions/([^/]+)\.(\d{20})\.avro\Z")
_LARGEST = 2**63 - 2
_MOST_DIGITS = 99


def check_name(what: str, name: object) -> str:
    """Return `name`, or raise InvalidName. `what` is the kind of name, for the message."""
    if not isinstance(name, str) or not is_name(name):
        hint = "Use letters, digits, '.', '_' and '-', at most 128, starting with a letter or digit, without '..'"
        raise InvalidName(f"{what} {name!r} is not a valid name", hint=hint)
    return name


def is_name(text: str) -> bool:
    """Return whether the text is a valid name."""
    return _NAME.match(text) is not None and ".." not in text


COPIER = "statelog.copy"
"""A reserved writer name: its last commit in a copied log names the origin and the place."""


SENDER = "statelog.outputs"
"""The meta record of a writer that has ever sent messages: the id of the reading that publishes them."""


def check_writer_name(name: object) -> str:
    """Return `name`, or raise InvalidName. The reserved name is refused, too."""
    checked = check_name("writer", name)
    if checked == COPIER:
        raise InvalidName(f"writer {name!r} is reserved", hint="Choose another name")
    return checked


def check_log_name(name: object) -> str:
    """Return `name`, or raise InvalidName. A name that could be another log's ledger topic is refused, too."""
    checked = check_name("log", name)
    if not is_log_name(checked):
        raise InvalidName(
            f"log {name!r} has the name of a ledger", hint=f"Choose a name that does not end in {_LEDGER}"
        )
    return checked


def is_log_name(text: str) -> bool:
    """Return whether the text is a valid name of a log."""
    return is_name(text) and not text.endswith(_LEDGER)


def data_topic(log: str) -> str:
    """Return the topic that holds a log's chunks."""
    return log


def ledger_topic(log: str) -> str:
    """Return the one-partition topic that holds a log's ledger."""
    return f"{log}{_LEDGER}"


class Numbered(NamedTuple):
    """Numbered files in a folder of the log's directory, from 1 on.

    `digits` is the width of the number in the name; 0: without padding.
    """

    folder: str
    ending: str
    digits: int = 20

    def path(self, number: int) -> str:
        """Return the path of a file below the log's directory."""
        return f"{self.folder}{number:0{self.digits}d}{self.ending}"

    def number(self, path: str) -> int | None:
        """Return the number in the path of such a file, or None for any other path."""
        digits = path.removeprefix(self.folder).removesuffix(self.ending)
        is_one = path == f"{self.folder}{digits}{self.ending}" and digits.isascii() and digits.isdecimal()
        return int(digits) if is_one and len(digits) == (self.digits or len(digits)) else None


MANIFESTS = Numbered("manifests/", ".avro")
TRUNCATIONS = Numbered("truncation/", ".avro")
"""Files that say who truncates: the materializer or Kafka."""
LOSSES = Numbered("losses/", ".record")
"""Files that record accepted losses."""
SCHEMAS = Numbered("schemas/", ".avsc", digits=0)


def run_path(run_id: str) -> str:
    """Return the path of a run below the log's directory. `run_id` is unique and never used again."""
    return f"runs/{check_name('run', run_id)}.parquet"


def is_run_path(path: str) -> bool:
    """Return whether it is a path that `run_path` gives."""
    name = path.removeprefix("runs/").removesuffix(".parquet")
    return is_name(name) and path == f"runs/{name}.parquet"


def lease_path(lease_id: str) -> str:
    """Return the path of a reader's lease below the log's directory."""
    return f"leases/{check_name('lease', lease_id)}.avro"


def subscription_path(reader: str, number: int) -> str:
    """Return the path of a file of a reader's subscription below the log's directory. Numbers start at 1."""
    return f"subscriptions/{check_name('reader', reader)}.{number:020d}.avro"


def subscription_slot(path: str) -> tuple[str, int] | None:
    """Return reader and number in the path of a subscription's file, or None for any other path."""
    match = _SUBSCRIPTION.match(path)
    if match is None or not is_name(match.group(1)):
        return None
    number = int(match.group(2))
    return (match.group(1), number) if 1 <= number <= _LARGEST else None


def check_kind(name: str, value: object, *kinds: type, example: str) -> None:
    """Raise ConfigError if the argument called `name` is of none of these kinds.

    The message leaves the value out, because it may hold a password.
    """
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(f"{name} is of type {type(value).__name__}, and not {wanted}", hint=f"Give {example}")


S = TypeVar("S")


def settings_or(given: S | None, usual: S) -> S:
    """Return the given `settings`, or the usual ones for None. Raises ConfigError for any other kind."""
    settings, kind = usual if given is None else given, type(usual)
    check_kind("settings", settings, kind, example=f"{kind.__name__}(...)")
    return settings


def check_whole(name: str, value: object, least: int) -> None:
    """Raise ConfigError unless the argument called `name` is a whole number of at least `least`."""
    if not isinstance(value, Integral) or int(value) < least:
        raise ConfigError(f"{name} is {value!r}", hint=f"Give a whole number, {least} or more")


def whole_in(text: str) -> int | None:
    """Parse a whole number of decimal digits; None for any other text, and for more than 99 digits."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def whole_numbers(name: str, given: Iterable[int], *, example: str) -> tuple[int, ...]:
    """Return the distinct numbers of the argument called `name`, ascending. Raises ConfigError for anything else."""
    check_kind(name, given, Iterable, example=example)
    try:
        return tuple(sorted({index(one) for one in given}))
    except TypeError:
        raise ConfigError(f"{name} has an item that is no whole number", hint=f"Give {example}") from None


E = TypeVar("E", bound=StrEnum)


def parse_enum(kind: type[E], name: str, value: str) -> E:
    """Return the member of `kind` whose text is `value`, the argument called `name`. Raises ConfigError."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}", hint=f"Use one of {', '.join(kind)}") from None
