"""Reads a value schema from the file that the user named."""

from pathlib import Path

from statelog.errors import ConfigError

__all__ = ["avsc_text"]


def avsc_text(path: Path) -> str:
    """The text of the file. Raises ConfigError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError("the value schema cannot be read", file=str(path), problem=problem) from None
