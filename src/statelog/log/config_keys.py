"""The keys of a configuration and their values; durations and sizes as people write them: "30s", "512MiB". Pure."""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from statelog.errors import ConfigError
from statelog.schemas.names import whole_in

MATERIALIZER = "materializer"
LOGS = "logs"
"""The table of tables with the settings of one log each."""
ENGINES = ("local", "spark")
"""Where a round's work may run: in this process, or on Spark."""
_FLAGS = {
    "failures_tolerated": "--failures",
    "restore_budget_s": "--restore-within",
}
FREE_TABLES = ("kafka", "storage")
"""Tables whose keys belong to librdkafka and to fsspec."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `read` makes the value from a file's (typed) or the environment's (text), or raises ConfigError."""

    name: str
    read: Callable[[object], object]
    table: str = ""

    @property
    def path(self) -> str:
        """Its unique name, also in messages: table, dot and name."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"STATELOG_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command-line option: the name without its unit."""
        return _FLAGS.get(self.name, f"--{self.name.replace('_', '-').removesuffix('-s').removesuffix('-bytes')}")


def setting_text(value: object) -> str:
    """Return a scalar as text for Kafka's client: true and false in lower case. Raises ConfigError."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError("it is neither text nor a number nor true or false")


def read_names(value: object) -> tuple[str, ...]:
    """Read names: a list, or text with commas between them. Raises ConfigError."""
    if not isinstance(value, str | list | tuple):
        raise ConfigError("it is not a list of names")
    parts = value.split(",") if isinstance(value, str) else cast("Sequence[object]", value)
    return tuple(_text(part) for part in parts if part != "")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError("it is empty or not text")
    return value.strip()


def _whole(value: object) -> int:
    if isinstance(value, str) and (found := whole_in(value.strip())) is not None:
        return found
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ConfigError("it is not a whole number of 0 or more")


def _engine(value: object) -> str:
    if value not in ENGINES:
        raise ConfigError(f"it is not one of {', '.join(ENGINES)}")
    return str(value)


def _path(value: object) -> Path:
    try:
        return Path(_text(value)).expanduser()
    except RuntimeError:
        raise ConfigError("it names a home directory that is not known", hint="Write the whole path") from None


# ---- quantities


_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {
    "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def duration_s(value: object) -> float:
    """Return the seconds of a number (of seconds) or a text such as "30s". Raises ConfigError."""
    number, unit = _quantity(value)
    seconds = number * _SECONDS.get(unit, 1.0)
    if unit not in {"", *_SECONDS} or seconds == math.inf:
        raise ConfigError(f"{value!r} is not a duration", hint="Write a number and ms, s, min, h or d, such as 30s")
    return seconds


def size_bytes(value: object) -> int:
    """Return the bytes of a number (of bytes) or a text such as "512MiB". Raises ConfigError."""
    number, unit = _quantity(value)
    size = number * _BYTES.get(unit.lower(), 1)
    if unit.lower() not in {"", *_BYTES} or size == math.inf or size != int(size):
        raise ConfigError(f"{value!r} is not a size", hint="Write a number and B, KiB, MiB, GiB or TiB, such as 512MiB")
    return int(size)


def _quantity(value: object) -> tuple[float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max:
        return float(value), ""
    match = _QUANTITY.match(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"{value!r} is not a number with a unit", hint="Write it such as 30s or 512MiB")
    return float(match.group(1)), match.group(2)


# ---- all keys


_READERS = {"s": duration_s, "bytes": size_bytes, "engine": _engine, "scratch": _path}
"""How to read a setting of the materializer, by the last word of its name, mostly its unit. Others are numbers."""
_SETTINGS = (
    "interval_s", "budget_bytes", "failures_tolerated", "keep", "min_age_s", "engine", "fanout", "threads",
    "fold_bytes", "scratch", "subscription_idle_s", "subscription_records", "alarm_age_s", "hang_s", "round_timeout_s",
    "restore_budget_s", "rounds", "drill_every_s",
)  # fmt: skip
_ALL = (
    Key("bootstrap", _text),
    Key("root", _text),
    Key("allow_unsafe", read_names),
    Key("replication_factor", _whole),
    *(Key(name, _READERS.get(name.rpartition("_")[2], _whole), MATERIALIZER) for name in _SETTINGS),
)
KEYS: Mapping[str, Key] = {key.path: key for key in _ALL}
"""Every key except those of the free tables, by its path."""
