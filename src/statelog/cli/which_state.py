"""Which state of a log, or which part of it, a command is asked for: the options, the keys, and what they say. Pure."""

import base64
import binascii
import functools
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from statelog.cli.state_rows import BytesText
from statelog.errors import ConfigError, InvalidChange
from statelog.reading.plan import At
from statelog.recovery import AtCheckpoint, AtPosition, AtTime
from statelog.schemas.key_groups import KeyType, key_bytes
from statelog.storage.config_keys import duration_s


class From(StrEnum):
    """Where commits are printed from, if it is neither a position nor a time."""

    NOW = "now"
    STATE = "state"
    OLDEST = "oldest"


Start = From | AtPosition | AtTime
_NUMBER = re.compile(r"[+-]?[0-9]+")


def _bytes_text(_context: click.Context, _option: click.Parameter, text: str) -> BytesText:
    return BytesText(text)


bytes_option = click.option(
    "--bytes",
    "bytes_text",
    type=click.Choice([one.value for one in BytesText]),
    default=BytesText.UTF8.value,
    show_default=True,
    callback=_bytes_text,
    help="How text holds bytes.",
)
lease_option = click.option(
    "--lease/--no-lease", default=True, show_default=True, help="Make truncation wait for this command."
)


def at_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a state, and that state as `at`."""

    @click.option("--at-position", type=int, metavar="N", help="The state at a ledger position.")
    @click.option("--at-writer", metavar="NAME", help="The state right after --at-checkpoint of this writer.")
    @click.option("--at-checkpoint", type=int, metavar="N", help="See --at-writer.")
    @click.option("--at-time", metavar="TIME", help="The state right before this time, or so long ago.")
    @functools.wraps(command)
    def with_at(
        *args: Any,
        at_position: int | None,
        at_writer: str | None,
        at_checkpoint: int | None,
        at_time: str | None,
        **options: Any,
    ) -> None:
        command(*args, at=_at(at_position, at_writer, at_checkpoint, at_time), **options)

    return with_at


def parse_key_groups(text: str | None) -> tuple[int, ...] | None:
    """Numbers and ranges: "0-63,70" are 0 to 63 and 70; "0:64" are 0 to 63, half-open. None means all.

    Raises ConfigError.
    """
    if text is None:
        return None
    found: set[int] = set()
    for part in (one.strip() for one in text.split(",")):
        first, mark, last = part.partition("-") if "-" in part else part.partition(":")
        if not first.isdecimal() or (mark and not last.isdecimal()):
            raise ConfigError(f"{text!r} does not name key groups", hint="Write numbers and ranges, such as 0-63,70")
        end = int(last) + (mark == "-") if mark else int(first) + 1
        if end <= int(first):
            raise ConfigError(f"the range {part!r} is empty", hint="Write the smaller number first")
        found.update(range(int(first), end))
    return tuple(sorted(found))


def _at(position: int | None, writer: str | None, checkpoint: int | None, time_text: str | None) -> At | None:
    """Which state. Raises ConfigError for options that contradict each other, Misuse, InvalidName."""
    if (writer is None) != (checkpoint is None):
        raise ConfigError("--at-writer and --at-checkpoint belong together", hint="Give both, or none")
    given = {"--at-position": position, "--at-writer": writer, "--at-time": time_text}
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} exclude each other", hint="Give one of them")
    if writer is not None and checkpoint is not None:
        return AtCheckpoint(writer, checkpoint)
    if time_text is None:
        return None if position is None else AtPosition(position)
    found = _time(time_text, time.time())
    if found is None:
        raise ConfigError(f"{time_text!r} is no time", hint="Write 2030-01-31T12:00, or 10min: that long ago")
    return found


def parse_from(text: str, now_s: float) -> Start:
    """Where to begin: a word, a ledger position, a time (ISO 8601, this machine's zone if it names none), or how long
    ago. Raises ConfigError.
    """
    if text in list(From):
        return From(text)
    if text.isdecimal():
        return AtPosition(int(text))
    found = _time(text, now_s)
    if found is None:
        hint = "Write now, state, oldest, a position, a time such as 2030-01-31T12:00, or 10min: that long ago"
        raise ConfigError(f"{text!r} does not say where to begin", hint=hint)
    return found


def _time(text: str, now_s: float) -> AtTime | None:
    try:
        moment_s = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        try:
            moment_s = now_s - duration_s(text)
        except ConfigError:
            return None
    return AtTime(max(0, int(moment_s * 1000)))


def read_keys(texts: Sequence[str], key_type: KeyType, bytes_text: BytesText) -> pa.Array:
    """The keys as a column, in their order. Bytes are UTF-8, or whatever bytes the shell gave; or base64.

    Raises InvalidChange for a text that is no such key.
    """
    keys = [_read_key(text, key_type, bytes_text) for text in texts]
    for key in keys:
        key_bytes(key, key_type)  # Which refuses what no key can be.
    return pa.array(keys, key_type.arrow_type)


def rows_of(table: pa.Table, keys: pa.Array) -> pa.Table:
    """The rows of these keys, in the table's order."""
    return table.filter(pc.is_in(table.column("key"), value_set=keys))


def _read_key(text: str, key_type: KeyType, bytes_text: BytesText) -> Any:
    match key_type:
        case KeyType.STRING:
            return text
        case KeyType.LONG if _NUMBER.fullmatch(text):
            return int(text)
        case KeyType.LONG:
            raise InvalidChange("this log has numbers as keys", key=text, hint="Write digits, negative ones behind --")
        case KeyType.BYTES if bytes_text is BytesText.BASE64:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise InvalidChange("a key is not base64", key=text, hint="Check --bytes") from None
        case KeyType.BYTES:
            return os.fsencode(text)
