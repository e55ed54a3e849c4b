"""A JSON value that is accepted comes back equal. A refusal names its key and the part that JSON lacks."""

import datetime
import decimal
import enum
import json
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from statelog.errors import InvalidChange
from statelog.schemas.values.json_text import check_json, decode_json, encode_json


class _Colour(enum.StrEnum):
    RED = "red"


class _Pair(NamedTuple):
    a: int


@dataclass
class _Order:
    amount: int


TEXTS: list[tuple[Any, bytes]] = [
    (0, b"0"),
    (True, b"true"),
    (-0.0, b"-0.0"),
    (10**400, b"1" + b"0" * 400),
    ("", b'""'),
    ("é\n", '"é\\n"'.encode()),
    ([], b"[]"),
    ({"b": [None, 1.5], "a": {}}, b'{"b":[null,1.5],"a":{}}'),
    (_Colour.RED, b'"red"'),
    (OrderedDict(b=1, a=2), b'{"b":1,"a":2}'),
    (Counter("aab"), b'{"a":2,"b":1}'),
]


@pytest.mark.parametrize(("value", "text"), TEXTS)
def test_a_value_is_compact_text(value: Any, text: bytes) -> None:
    """A value is compact UTF-8 text in the order of its keys. It comes back equal, with the sign of a zero."""
    assert encode_json(value, b"k") == text
    found = decode_json(text)
    assert found == value
    assert not isinstance(value, float) or math.copysign(1, found) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("value", "field", "problem"),
    [
        (None, "value", "None"),
        (b"x", "value", "bytes"),
        ((1, 2), "value", "tuple"),
        ([1, (2,)], "value[1]", "tuple"),
        ({"a": _Pair(1)}, "value['a']", "_Pair"),
        ({"a": [0, {"b": math.nan}]}, "value['a'][1]['b']", "nan"),
        ([-math.inf], "value[0]", "-inf"),
        ({1: "a"}, "value[1]", "key that is int"),
        ({"a": {None: 1}}, "value['a'][None]", "key that is NoneType"),
        ({True: 1}, "value[True]", "key that is bool"),
        ({1, 2}, "value", "set"),
        ([datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)], "value[0]", "datetime"),
        (decimal.Decimal(1), "value", "Decimal"),
        (["a\ud800"], "value[0]", "surrogate"),
        ({"\ud800": 1}, "value['\\ud800']", "surrogate"),
        ([10**5000], "value[0]", "digits"),
        (_Order(1), "value", "_Order"),
    ],
)
def test_what_json_lacks_is_refused(value: object, field: str, problem: str) -> None:
    """The error has the key, the path of the part, and what is wrong with it."""
    with pytest.raises(InvalidChange, match=problem) as caught:
        encode_json(value, b"alice")
    assert (caught.value.facts["key"], caught.value.facts["field"]) == ("b'alice'", field)
    assert caught.value.hint


def test_hints_say_what_to_do() -> None:
    """Hints name deletion for None, and `asdict` for a dataclass."""
    with pytest.raises(InvalidChange, match="delete it"):
        encode_json(None, 1)
    with pytest.raises(InvalidChange, match=r"dataclasses\.asdict"):
        encode_json([_Order(1)], 1)


def test_too_many_levels_are_refused() -> None:
    """Too many levels are refused: a value that contains itself, or that Python cannot write."""
    around: list[Any] = []
    around.append({"a": around})
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (around, deep, [deep, b""]):
        with pytest.raises(InvalidChange, match=r"deeply|bytes"):
            encode_json(value, 1)


@pytest.mark.parametrize("is_dict", [True, False])
def test_a_value_has_at_most_200_levels(is_dict: bool) -> None:
    """What was taken can be read from deep inside of a program's own calls; one level more is refused at each door."""

    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = {"a": value} if is_dict else [value]
        return value

    def read_below(calls: int, text: bytes) -> object:
        return read_below(calls - 1, text) if calls else decode_json(text)

    text = encode_json(nested(200), b"k")
    assert read_below(500, text) == nested(200)
    check_json(pa.array([text]), pa.array([b"k"]))
    with pytest.raises(InvalidChange, match=r"nested too deeply.*at most 200 levels"):
        encode_json(nested(201), b"k")
    with pytest.raises(InvalidChange, match="nested too deeply"):
        check_json(pa.array([json.dumps(nested(201)).encode()]), pa.array([b"k"]))
    assert decode_json(encode_json("[" * 300, b"k")) == "[" * 300


def test_a_value_that_claims_nothing_is_refused() -> None:
    """A dict that JSON would write as another one is refused, whatever its parts."""

    class Other(dict[str, int]):
        def __eq__(self, other: object) -> bool:
            return False

        __hash__ = None

    with pytest.raises(InvalidChange, match="equal"):
        encode_json(Other(a=1), 1)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"x", b"NaN", b"-Infinity", b"1e999", b"1 2", b"[1", b"null", b'"\\ud800"', b"\xff", b"\xef\xbb\xbf1",
        "1".encode("utf-16"), b"[" * 100_000, b"1" * 5000,
    ],
    ids=lambda text: ascii(text[:9]),
)  # fmt: skip
def test_a_column_that_is_not_json_is_refused(text: bytes) -> None:
    """The error has the key of the first value that is no JSON."""
    keys = pa.array(["a", "b", "c", "d"])
    with pytest.raises(InvalidChange) as caught:
        check_json(pa.array([b"1", None, text, text], pa.binary()), keys)
    assert caught.value.facts["key"] == "'c'"


def test_a_column_of_json_is_taken_as_it_is() -> None:
    """A column of JSON is taken unchanged, with spaces, escapes and deletes."""
    texts = [b' {"a" : 1.5}\n', b'"\\u00e9\\ud83d\\ude00"', None, b"[null]", "é".join('""').encode()]
    check_json(pa.array(texts, pa.binary()), pa.array(range(5)))
