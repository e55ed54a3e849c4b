"""The files and the environment that a configuration is read from, as layers.

Invariant: a file that nobody named is the user's own, and no secret goes where one of the working directory says.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from statelog.errors import ConfigError, NotFound
from statelog.storage.config.guard import check_found_file, check_owner
from statelog.storage.config.merge import Layer, environment_layer, file_layer

__all__ = ["config_layers", "named_layers", "read_text"]

_LOCAL_FILE = Path("statelog.toml")
_NAMED = "STATELOG_CONFIG"


def config_layers(file: str | None, environment: Mapping[str, str], flags: Layer) -> list[Layer]:
    """The layers of a run, weakest first. Raises NotFound for a named file that is not there, ConfigError.

    A file that was found in the working directory, not named, must be the user's own, and no secret goes where it says.
    """
    named = file or environment.get(_NAMED)
    found = Path(named) if named else _default_file(environment)
    stronger = [_environment_layer(environment), flags]
    if found is None:
        return stronger
    if not named and found == _LOCAL_FILE:
        there = found.stat()
        check_owner(str(found), there.st_uid, there.st_mode, os.getuid())
    layer = file_layer(read_text(found, "configuration file"), str(found))
    if not named and found == _LOCAL_FILE:
        check_found_file(layer, stronger)
    return [layer, *stronger]


def named_layers(environment: Mapping[str, str]) -> list[Layer]:
    """The environment, over the file that it names: no other is looked for. Raises NotFound, ConfigError."""
    named = environment.get(_NAMED)
    files = [file_layer(read_text(Path(named), "configuration file"), named)] if named else []
    return [*files, _environment_layer(environment)]


def _environment_layer(environment: Mapping[str, str]) -> Layer:
    return environment_layer({name: text for name, text in environment.items() if name != _NAMED})


def _default_file(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("XDG_CONFIG_HOME") or "~/.config"
    candidates = (_LOCAL_FILE, Path(home).expanduser() / "statelog" / "statelog.toml")
    return next((path for path in candidates if path.is_file()), None)


def read_text(path: Path, what: str) -> str:
    """The text of a file that the user named. Raises NotFound, ConfigError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"the {what} does not exist", file=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the {what} cannot be read", file=str(path), problem=problem) from None
