"""JSON values: what a program puts and gets, and the UTF-8 text that a log stores. Pure.

Invariants:
- A value that is taken comes back equal; any other is refused, with its key and the path of the part that JSON lacks.
- Each read decodes the text, so that nobody shares a value with the state.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, NoReturn, cast

import pyarrow as pa

from statelog.errors import InvalidChange
from statelog.schemas.ledger.place import has_utf8

_ROOT = "value"
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder()
_SCALARS = frozenset((str, int, float, bool))
_MOST_LEVELS = 200
"""So deep a value can be read from any depth of a program's own calls: Python's decoder counts both."""
_ESCAPE = b"\\u"
"""How an escape begins, which may stand for a character that has no UTF-8."""


def encode_json(value: object, key: object) -> bytes:
    """Return the text of a key's value. Raises InvalidChange for what does not come back equal."""
    if value is None:
        raise InvalidChange("a value is None", hint="To remove a key, delete it", key=_shown(key), field=_ROOT)
    try:
        text = _ENCODER.encode(value)
        is_flat = _opens(text) <= _MOST_LEVELS or _levels(value) <= _MOST_LEVELS
        if type(value) in _SCALARS or (is_flat and _DECODER.decode(text) == value):
            return text.encode()
    except (TypeError, ValueError, RecursionError):
        pass
    too_deep = _ROOT, "is nested too deeply, or contains itself", f"Give at most {_MOST_LEVELS} levels"
    try:
        is_deep = _levels(value) > _MOST_LEVELS
        found = None if is_deep else next(_faults(value, _ROOT), None)
        path, problem, hint = found or (too_deep if is_deep else (_ROOT, "does not come back equal from JSON", _HINT))
    except RecursionError:
        path, problem, hint = too_deep
    raise InvalidChange(f"a value {problem}", hint=hint, key=_shown(key), field=path)


def decode_json(data: bytes) -> Any:
    """Return the value of a text, another object each time."""
    return _DECODER.decode(data.decode())


def strict_json(data: bytes) -> Any:
    """Return the value of a text that nobody has checked. Raises ValueError, also for NaN and infinite numbers."""
    return _STRICT.decode(data.decode())


def check_json(column: pa.Array, keys: pa.Array) -> None:
    """Check that the texts of a binary column are values; null is a delete. Raises InvalidChange with the first key."""
    for row, text in enumerate(cast("list[bytes | None]", column.to_pylist())):
        if text is None:
            continue
        try:
            value = strict_json(text)
        except (ValueError, RecursionError) as error:
            hint = "Give JSON text in UTF-8, as json.dumps makes it; text itself goes in quotes"
            raise InvalidChange(
                f"a value is not JSON: {error}", hint=hint, key=_shown(keys[row].as_py()), field=_ROOT
            ) from None
        if value is None or _ESCAPE in text or text.count(b"[") + text.count(b"{") > _MOST_LEVELS:
            encode_json(value, keys[row].as_py())


def _opens(text: str) -> int:
    return text.count("[") + text.count("{")


def _levels(value: object) -> int:
    """Return how deeply lists and dicts are nested. Raises RecursionError."""
    inner: list[object] = []
    if isinstance(value, dict):
        inner = list(cast("dict[object, object]", value).values())
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    else:
        return 0
    return 1 + max(map(_levels, inner), default=0)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


_STRICT = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)

_HINT = "JSON has dicts with text keys, lists, str, int, float, bool and None"


def _faults(value: object, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the parts that JSON lacks: the path, the problem, and a hint."""
    match value:
        case dict():
            for name, item in cast("dict[object, object]", value).items():
                inner = f"{path}[{ascii(name)[:200]}]"
                if not isinstance(name, str):
                    yield inner, f"has a key that is {type(name).__name__}, not text", "Use str(key)"
                elif not has_utf8(name):
                    yield inner, "has a key without UTF-8: a lone surrogate", "Replace it"
                yield from _faults(item, inner)
        case list():
            for place, item in enumerate(cast("list[object]", value)):
                yield from _faults(item, f"{path}[{place}]")
        case _:
            yield from ((path, *one) for one in _scalar_faults(value))


def _scalar_faults(value: object) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            if not has_utf8(value):
                yield "has text without UTF-8: a lone surrogate", "Replace it, or store bytes as base64"
        case float():
            if not math.isfinite(value):
                yield f"has {float(value)}, which JSON does not have", "Store None, or text"
        case int():
            try:
                str(int(value))
            except ValueError:
                yield "has a number of more digits than Python reads", "Store it as hexadecimal text: hex(number)"
        case None:
            pass
        case _:
            hint = "Give a dict: dataclasses.asdict(value)" if is_dataclass(value) else _HINT
            yield f"has {type(value).__name__}, which JSON does not have", hint


def _shown(key: object) -> str:
    return ascii(key)[:200]
