"""Quantities for people, on screens and in log lines."""

import json
import math

from statelog.formatting import as_json, show_bytes, show_count, show_duration


def test_quantities_are_shown_for_people() -> None:
    """Sizes and durations are shown in the unit that suits them, counts with commas."""
    assert [show_bytes(size) for size in (5, 2048, 3 << 30)] == ["5 B", "2.0 KiB", "3.0 GiB"]
    assert show_count(1234567.2) == "1,234,567"
    assert [show_duration(one) for one in (0.0, 0.00043, 0.0042)] == ["0 ms", "0.43 ms", "4.2 ms"]
    assert [show_duration(one) for one in (0.0123, 61.04, 125, 7260)] == ["12 ms", "61.0 s", "2 min 5 s", "2 h 1 min"]


def test_json_moves_no_terminal() -> None:
    """Characters that JSON accepts but a terminal obeys are escaped, and read back unchanged. Letters stay."""
    value = {"key": "\x1b[2J\x7f\x9b2J\x85", "value": "é\u3000\U0001f600"}
    assert json.loads(as_json(value)) == value
    assert not {chr(code) for code in (*range(32), *range(127, 160))} & set(as_json(value))
    assert "é\u3000\U0001f600" in as_json(value)


def test_numbers_that_json_lacks_are_texts() -> None:
    """NaN and infinity are written as text at any depth, so that any JSON reader reads every line.

    The rest is unchanged.
    """

    def no_json(text: str) -> None:
        raise AssertionError(text)

    value = {"x": math.nan, "list": [math.inf, (-math.inf, 1.5, "a", None, True)], "fine": {"n": 1}}
    assert json.loads(as_json(value), parse_constant=no_json) == {
        "x": "NaN",
        "list": ["Infinity", ["-Infinity", 1.5, "a", None, True]],
        "fine": {"n": 1},
    }
