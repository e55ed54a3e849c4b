"""Durations and sizes as people write them: "30s", "5min", "512MiB". Pure."""

import math
import re

from statelog.errors import ConfigError

__all__ = ["duration_s", "size_bytes"]

_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {
    "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def duration_s(value: object) -> float:
    """Seconds of a number (seconds already) or a text such as "30s". Raises ConfigError."""
    number, unit = _quantity(value)
    if unit not in {"", *_SECONDS}:
        raise ConfigError(f"{value!r} is not a duration", hint="Write a number and ms, s, min, h or d, such as 30s")
    return number * _SECONDS.get(unit, 1.0)


def size_bytes(value: object) -> int:
    """Bytes of a number (bytes already) or a text such as "512MiB". Raises ConfigError."""
    number, unit = _quantity(value)
    size = number * _BYTES.get(unit.lower(), 1)
    if unit.lower() not in {"", *_BYTES} or size != int(size):
        raise ConfigError(f"{value!r} is not a size", hint="Write a number and B, KiB, MiB, GiB or TiB, such as 512MiB")
    return int(size)


def _quantity(value: object) -> tuple[float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value), ""
    match = _QUANTITY.match(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"{value!r} is not a number with a unit", hint="Write it such as 30s or 512MiB")
    return float(match.group(1)), match.group(2)
