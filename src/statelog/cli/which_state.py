"""The options with which a command names a state of a log, or a part of it, and their meaning. Pure."""

import functools
import time
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any

import click

from statelog.errors import ConfigError
from statelog.log.config_keys import duration_s
from statelog.operate.rows import BytesText
from statelog.reading import At
from statelog.recovery import AtCheckpoint, AtPosition, AtTime
from statelog.schemas.key_groups import read_ranges
from statelog.schemas.names import whole_in


class From(StrEnum):
    """The start of the printed commits, if it is neither a position nor a time."""

    NOW = "now"
    STATE = "state"
    OLDEST = "oldest"


Start = From | AtPosition | AtTime


def _bytes_text(_context: click.Context, _option: click.Parameter, text: str) -> BytesText:
    return BytesText(text)


bytes_option = click.option(
    "--bytes",
    "bytes_text",
    type=click.Choice([one.value for one in BytesText]),
    default=BytesText.UTF8.value,
    show_default=True,
    callback=_bytes_text,
    help="How bytes are written as text.",
)
due_option = click.option("--due", is_flag=True, help="Show from when a row is expired, too.")
lease_option = click.option(
    "--lease/--no-lease", default=True, show_default=True, help="Make truncation wait for this command."
)


def at_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a state, and pass that state as `at`."""

    @click.option("--at-position", type=int, metavar="N", help="The state at a ledger position.")
    @click.option("--at-writer", metavar="NAME", help="The state right after --at-checkpoint of this writer.")
    @click.option("--at-checkpoint", type=int, metavar="N", help="See --at-writer.")
    @click.option("--at-time", metavar="TIME", help="The state right before this time, or a duration ago.")
    @functools.wraps(command)
    def with_at(*args: Any, **options: Any) -> None:
        named = [options.pop(f"at_{one}") for one in ("position", "writer", "checkpoint", "time")]
        command(*args, at=_at(*named), **options)

    return with_at


def parse_key_groups(text: str | None) -> tuple[int, ...] | None:
    """Parse key groups with `read_ranges`; None means all. Raises ConfigError."""
    return None if text is None else read_ranges(text, "--key-groups")


def _at(position: int | None, writer: str | None, checkpoint: int | None, time_text: str | None) -> At | None:
    """Return the state that the options name. Raises ConfigError for contradicting options, Misuse, InvalidName."""
    if (writer is None) != (checkpoint is None):
        raise ConfigError("--at-writer and --at-checkpoint belong together", hint="Give both or neither")
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
        hint = "Write a time such as 2030-01-31T12:00, or a duration ago such as 10min"
        raise ConfigError(f"{time_text!r} is not a time", hint=hint)
    return found


def parse_from(text: str, now_s: float) -> Start:
    """Parse a start: a word, a position, a time (ISO 8601, by default in this zone), or a duration ago.

    Raises ConfigError.
    """
    if text in list(From):
        return From(text)
    if (position := whole_in(text)) is not None:
        return AtPosition(position)
    found = _time(text, now_s)
    if found is None:
        hint = "Write now, state, oldest, a position, a time such as 2030-01-31T12:00, or a duration ago such as 10min"
        raise ConfigError(f"{text!r} does not name a start", hint=hint)
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
