"""Keys, key groups and beginnings as a person types them."""

import os
from typing import Any

import pytest

from statelog.cli.state_rows import BytesText
from statelog.cli.which_state import From, parse_from, read_keys
from statelog.errors import ConfigError, InvalidChange
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
    """Text, digits, bytes as the shell gave them, or base64."""
    assert read_keys([text], key_type, bytes_text).to_pylist() == [key]


@pytest.mark.parametrize(
    ("text", "key_type", "bytes_text"),
    [
        ("1_0", KeyType.LONG, UTF8), ("", KeyType.LONG, UTF8), ("9" * 19, KeyType.LONG, UTF8),
        ("\udcff", KeyType.STRING, UTF8), ("!", KeyType.BYTES, BASE64),
    ],
)  # fmt: skip
def test_a_text_that_is_no_key_is_refused(text: str, key_type: KeyType, bytes_text: BytesText) -> None:
    """To say "not there" would be a wrong answer."""
    with pytest.raises(InvalidChange):
        read_keys([text], key_type, bytes_text)


def test_a_beginning_is_a_word_a_position_or_a_time() -> None:
    """A bare number is a position; with a unit it is that long ago."""
    assert parse_from("state", 0.0) is From.STATE
    assert parse_from("17", 0.0) == AtPosition(17)
    assert parse_from("2s", 10.0) == AtTime(8000)
    assert parse_from("1970-01-01T00:00:01+00:00", 0.0) == AtTime(1000)
    assert parse_from("1d", 10.0) == AtTime(0)
    with pytest.raises(ConfigError):
        parse_from("yesterday", 0.0)
