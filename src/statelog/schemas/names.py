"""Names: the valid names of logs, writers and files, and the names that follow from a log's name.

Names become topics and paths, and they are read back from files that others may have written, so
every name passes `check_name` on the way in, whatever its source. Pure.
"""

import re
from enum import StrEnum
from typing import TypeVar

from statelog.errors import ConfigError, InvalidName

DESCRIPTOR_PATH = "descriptor.avro"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_LEDGER = ".ledger"
TRUNCATION_FOLDER = "truncation/"
_TRUNCATION = re.compile(r"truncation/(\d{20})\.avro\Z")
LOSSES_FOLDER = "losses/"
_LOSS = re.compile(r"losses/(\d{20})\.record\Z")
_MANIFEST = re.compile(r"manifests/(\d{20})\.avro\Z")
_RUN = re.compile(r"runs/([^/]+)\.parquet\Z")
_SUBSCRIPTION = re.compile(r"subscriptions/([^/]+)\.(\d{20})\.avro\Z")
_LARGEST = 2**63 - 2


def check_name(what: str, name: object) -> str:
    """Return `name`, or raise InvalidName. `what` says in the message what is being named."""
    if not isinstance(name, str) or not is_name(name):
        raise InvalidName(
            f"{what} {name!r} is not a valid name",
            hint="Use letters, digits, '.', '_' and '-', at most 128, starting with a letter or digit, without '..'",
        )
    return name


def is_name(text: str) -> bool:
    """Whether it is a valid name."""
    return _NAME.match(text) is not None and ".." not in text


COPIER = "statelog.copy"
"""The writer that nobody is: in its last commit a log that was copied says of which log, and up to where."""


def check_writer_name(name: object) -> str:
    """Return `name`, or raise InvalidName. One that statelog speaks by itself is refused, too."""
    checked = check_name("writer", name)
    if checked == COPIER:
        raise InvalidName(f"writer {name!r} is reserved", hint="Choose another name")
    return checked


def check_log_name(name: object) -> str:
    """Return `name`, or raise InvalidName. A log whose data topic could be another one's ledger is refused, too."""
    checked = check_name("log", name)
    if not is_log_name(checked):
        raise InvalidName(
            f"log {name!r} has the name of a ledger", hint=f"Choose a name that does not end in {_LEDGER}"
        )
    return checked


def is_log_name(text: str) -> bool:
    """Whether it is a valid name of a log."""
    return is_name(text) and not text.endswith(_LEDGER)


def data_topic(log: str) -> str:
    """The topic that holds a log's chunks."""
    return log


def ledger_topic(log: str) -> str:
    """The one-partition topic that holds a log's ledger."""
    return f"{log}{_LEDGER}"


def manifest_path(number: int) -> str:
    """Path of a manifest below the log's directory; numbers start at 1."""
    return f"manifests/{number:020d}.avro"


def manifest_number(path: str) -> int | None:
    """The number in a manifest's path, or None for any other path."""
    match = _MANIFEST.search(path)
    return int(match.group(1)) if match else None


def truncation_path(number: int) -> str:
    """Path of a file that says who truncates, below the log's directory; numbers start at 1."""
    return f"{TRUNCATION_FOLDER}{number:020d}.avro"


def truncation_number(path: str) -> int | None:
    """The number in the path of a file that says who truncates, or None for any other path."""
    match = _TRUNCATION.match(path)
    return int(match.group(1)) if match else None


def loss_path(number: int) -> str:
    """Path of a file that says who accepted a loss, below the log's directory; numbers start at 1."""
    return f"{LOSSES_FOLDER}{number:020d}.record"


def loss_number(path: str) -> int | None:
    """The number in the path of a file that says who accepted a loss, or None for any other path."""
    match = _LOSS.match(path)
    return int(match.group(1)) if match else None


def run_path(run_id: str) -> str:
    """Path of a run below the log's directory; `run_id` is unique and never used again."""
    return f"runs/{check_name('run', run_id)}.parquet"


def is_run_path(path: str) -> bool:
    """Whether it is one that `run_path` gives."""
    match = _RUN.match(path)
    return match is not None and is_name(match.group(1))


def schema_path(schema_id: int) -> str:
    """Path of a value schema below the log's directory; ids start at 1."""
    return f"schemas/{schema_id}.avsc"


def lease_path(lease_id: str) -> str:
    """Path of a reader's lease below the log's directory."""
    return f"leases/{check_name('lease', lease_id)}.avro"


def subscription_path(reader: str, number: int) -> str:
    """Path of a file of a reader's subscription below the log's directory; numbers start at 1."""
    return f"subscriptions/{check_name('reader', reader)}.{number:020d}.avro"


def subscription_slot(path: str) -> tuple[str, int] | None:
    """Reader and number in the path of a subscription's file, or None for any other path."""
    match = _SUBSCRIPTION.match(path)
    if match is None or not is_name(match.group(1)):
        return None
    number = int(match.group(2))
    return (match.group(1), number) if 1 <= number <= _LARGEST else None


E = TypeVar("E", bound=StrEnum)


def parse_enum(kind: type[E], name: str, value: str) -> E:
    """The member of `kind` whose text is `value`, which the caller knows as `name`. Raises ConfigError."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}", hint=f"Use one of {', '.join(kind)}") from None
