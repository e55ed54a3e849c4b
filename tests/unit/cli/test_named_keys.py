"""Keys, key groups and starting points are parsed as people type them."""

import os
from typing import Any

import click
import pytest
from click.testing import CliRunner

from statelog.cli.which_state import From, at_options, parse_from
from statelog.errors import ConfigError, InvalidChange
from statelog.operate.rows import BytesText, read_keys
from statelog.reading.plan import At
from statelog.recovery import AtPosition, AtTime
from statelog.schemas.key_groups import KeyType

UTF8, BASE64 = BytesText.UTF8, BytesText.BASE64


@pytest.mark.parametrize(
    ("text", "key_type", "bytes_text", "key"),
    [
        ("\u65e5", KeyType.STRING, UTF8, "\u65e5"),
        ("-12", KeyType.LONG, UTF8, -12),
        ("\u65e5", KeyType.BYTES, UTF8, "\u65e5".encode()),
        (os.fsdecode(b"\xff\x00"), KeyType.BYTES, UTF8, b"\xff\x00"),
        ("/w==", KeyType.BYTES, BASE64, b"\xff"),
    ],
)
def test_a_text_is_a_key_of_the_logs_type(text: str, key_type: KeyType, bytes_text: BytesText, key: Any) -> None:
    """A key is given as text, digits, the shell's bytes or base64, by the log's key type."""
    assert read_keys([text], key_type, bytes_text).to_pylist() == [key]


@pytest.mark.parametrize(
    ("text", "key_type", "bytes_text"),
    [
        ("1_0", KeyType.LONG, UTF8), ("", KeyType.LONG, UTF8), ("9" * 19, KeyType.LONG, UTF8),
        ("9" * 5000, KeyType.LONG, UTF8),
        ("\udcff", KeyType.STRING, UTF8), ("!", KeyType.BYTES, BASE64),
    ],
)  # fmt: skip
def test_a_text_that_is_no_key_is_refused(text: str, key_type: KeyType, bytes_text: BytesText) -> None:
    """A text that cannot be a key is refused. "Not there" would be a wrong answer."""
    with pytest.raises(InvalidChange):
        read_keys([text], key_type, bytes_text)


def test_a_beginning_is_a_word_a_position_or_a_time() -> None:
    """A bare number is a position. A number with a unit is that long ago."""
    assert parse_from("state", 0.0) is From.STATE
    assert parse_from("17", 0.0) == AtPosition(17)
    assert parse_from("2s", 10.0) == AtTime(8000)
    assert parse_from("1970-01-01T00:00:01+00:00", 0.0) == AtTime(1000)
    assert parse_from("1d", 10.0) == AtTime(0)
    with pytest.raises(ConfigError):
        parse_from("yesterday", 0.0)


@click.command()
@at_options
def shown(at: At | None) -> None:
    """Print the named state."""
    click.echo(str(at))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), "None"),
        (("--at-position", "7"), "position 7"),
        (("--at-writer", "w", "--at-checkpoint", "3"), "checkpoint 3 of w"),
        (("--at-time", "1970-01-01T00:00:01+00:00"), "time 1970-01-01T00:00:01.000+00:00"),
    ],
)
def test_a_state_is_named_by_a_position_a_checkpoint_or_a_time(options: tuple[str, ...], named: str) -> None:
    """A state is named by a position, a checkpoint or a time, as in Python's `recover`."""
    assert CliRunner().invoke(shown, options).output == f"{named}\n"


@pytest.mark.parametrize("options", [("--at-position", "7", "--at-time", "10min"), ("--at-time", "yesterday")])
def test_a_state_that_is_not_named_is_refused(options: tuple[str, ...]) -> None:
    """Two names of a state are refused, and so is a word that is no time."""
    assert isinstance(CliRunner().invoke(shown, options).exception, ConfigError)
