"""What every command on a log shares: options, configuration files, output, and opening the log."""

import functools
import logging
import os
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import click

from statelog.cli.config.guard import check_found_file, check_owner
from statelog.cli.config.keys import read_names
from statelog.cli.config.merge import CliConfig, Layer, environment_layer, file_layer, flag_layer, merge
from statelog.cli.screen.output import Output
from statelog.errors import ConfigError, NotFound
from statelog.storage.log.log import Log

__all__ = ["Session", "config_layers", "connected", "read_text"]

P = ParamSpec("P")
_LOCAL_FILE = Path("statelog.toml")
_SHOWN = (logging.getLogger("statelog.storage"), logging.getLogger("statelog.recovery"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of a command: its configuration and its output."""

    config: CliConfig
    output: Output

    @contextmanager
    def open_log(self, name: str) -> Generator[Log]:
        """Open a log and close it. Warnings of ours become lines. Raises what `Log.open` raises."""
        with self.warnings_shown(), Log.open(name, **self.place(), allow_unsafe=self.config.allow_unsafe) as log:
            yield log

    def place(self) -> dict[str, Any]:
        """Where logs are, as `Log` wants it. Raises ConfigError for a root that would end with this command."""
        return {"kafka": self.config.kafka_settings(), **self.store_place()}

    def store_place(self) -> dict[str, Any]:
        """Where their directories are, without Kafka. Raises ConfigError as `place`."""
        root = self.config.root_url()
        if root.startswith("memory:"):
            hint = "Name a directory or a bucket"
            raise ConfigError("a root in memory is gone when this command ends", hint=hint, root=root)
        return {"root": root, "storage_options": self.config.storage}

    @contextmanager
    def warnings_shown(self) -> Generator[None]:
        """Warnings of the library, and what it logs of stores and recoveries, as lines of this command."""
        handler = _LineHandler(self.output.warning)
        for logger in _SHOWN:
            logger.addHandler(handler)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = self._show_warning
                yield
        finally:
            for logger in _SHOWN:
                logger.removeHandler(handler)

    def _show_warning(self, message: Warning | str, *_place: object, **_options: object) -> None:
        self.output.warning(str(message))


class _LineHandler(logging.Handler):
    """Gives every log line from a warning on to `show`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Show one line."""
        self._show(record.getMessage())


def connected(command: Callable[Concatenate[Session, P], None]) -> Callable[P, None]:
    """Give a command the options of the configuration, and a session as its first argument."""

    @click.option("--config", "config_file", metavar="FILE", help="Configuration file; default: ./statelog.toml.")
    @click.option("--bootstrap", metavar="HOST:PORT", help="Kafka brokers.")
    @click.option("--root", metavar="URL", help="URL below which logs have their directories.")
    @click.option("--kafka", "kafka", metavar="NAME=VALUE", multiple=True, help="A setting of the Kafka client.")
    @click.option("--storage", "storage", metavar="NAME=VALUE", multiple=True, help="An option of the file system.")
    @click.option(
        "--allow-unsafe", metavar="NAMES", multiple=True, help="Checks to waive: replication, min-insync, ..."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def with_session(*args: Any, **options: Any) -> None:
        session = _session(options)
        command(session, *args, **options)

    return with_session


def config_layers(file: str | None, environment: Mapping[str, str], flags: Layer) -> list[Layer]:
    """The layers of a run, weakest first. Raises NotFound for a named file that is not there, ConfigError.

    A file that was found in the working directory, not named, must be the user's own, and no secret goes where it says.
    """
    named = file or environment.get("STATELOG_CONFIG")
    found = Path(named) if named else _default_file(environment)
    known = {name: text for name, text in environment.items() if name != "STATELOG_CONFIG"}
    stronger = [environment_layer(known), flags]
    if found is None:
        return stronger
    if not named and found == _LOCAL_FILE:
        there = found.stat()
        check_owner(str(found), there.st_uid, there.st_mode, os.getuid())
    layer = file_layer(read_text(found, "configuration file"), str(found))
    if not named and found == _LOCAL_FILE:
        check_found_file(layer, stronger)
    return [layer, *stronger]


def read_text(path: Path, what: str) -> str:
    """The text of a file that the user named. Raises NotFound, ConfigError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"the {what} does not exist", file=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the {what} cannot be read", file=str(path), problem=problem) from None


def _session(options: dict[str, Any]) -> Session:
    """Take the shared options out of `options`."""
    as_json = options.pop("as_json")
    unsafe = options.pop("allow_unsafe")
    values = {name: options.pop(name) for name in ("bootstrap", "root")}
    values["allow_unsafe"] = tuple(name for text in unsafe for name in read_names(text)) if unsafe else None
    # Options of one command that are keys of the configuration, too.
    for name in [name for name in options if name.startswith("key_of_")]:
        values[name.removeprefix("key_of_").replace("__", ".")] = options.pop(name)
    flags = flag_layer(values, options.pop("kafka"), options.pop("storage"))
    layers = config_layers(options.pop("config_file"), os.environ, flags)
    return Session(config=merge(layers), output=Output(as_json=as_json))


def _default_file(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("XDG_CONFIG_HOME") or "~/.config"
    candidates = (_LOCAL_FILE, Path(home).expanduser() / "statelog" / "statelog.toml")
    return next((path for path in candidates if path.is_file()), None)
