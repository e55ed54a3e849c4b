"""The base of every command on a log: options, configuration files, output, and opening the log."""

import functools
import logging
import os
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import wait
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, cast

import click

from statelog.cli.output import CliOutput
from statelog.environment import begin, start_thread
from statelog.errors import ConfigError
from statelog.log import Log, Where
from statelog.log.config import Config, config_layers, flag_layer, merge
from statelog.log.config_keys import read_names
from statelog.log.where import configured_where, log_names
from statelog.materializer.control import Control, install_signal_handlers
from statelog.materializer.settings import MaterializerSettings
from statelog.schemas.snapshot.claims import SubscriptionCap
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.schemas.topic_policy import NO_RIGHTS, Rights

FILE = click.Path(path_type=Path)
P = ParamSpec("P")
_INTERVALS_BEFORE_ALARM = 6
_COMPLETION_S = 2.0
"""The time limit for reading the root when a person presses Tab."""
_SHOWN = (logging.getLogger("statelog.log"), logging.getLogger("statelog.recovery"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of a command: its configuration and its output."""

    config: Config
    output: CliOutput

    @contextmanager
    def open_log(self, name: str, rights: Rights = NO_RIGHTS) -> Generator[Log]:
        """Open and close a log; warnings become lines.

        Raises NotFound, ConfigError, UnsafeTopic, Damaged, Unavailable.
        """
        with self.warnings_shown(), Log.open(name, self.where(), rights) as log:
            yield log

    def where(self) -> Where:
        """Return the place of the logs. Raises ConfigError for a root in memory."""
        where = configured_where(self.config)
        self._root()
        return where

    def where_without_kafka(self) -> Where:
        """Return the place of the logs' directories alone. Raises ConfigError for a root in memory."""
        return Where(None, self._root(), storage_options=self.config.storage)

    def _root(self) -> str:
        root = self.config.root_url()
        if root.startswith("memory:"):
            hint = "Name a directory or a bucket"
            raise ConfigError("a root in memory is lost when this command ends", hint=hint, root=root)
        return root

    @contextmanager
    def warnings_shown(self) -> Generator[None]:
        """Print the library's warnings, and its log lines on stores and recoveries, as lines of this command."""
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


def complete_log(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the names of logs that begin with the typed text; none if the root does not answer in time."""
    given = context.params

    def names() -> list[str]:
        flags = flag_layer({"root": given.get("root")}, (), given.get("storage") or ())
        config = merge(config_layers(given.get("config_file"), os.environ, flags))
        return log_names(Session(config=config, output=CliOutput(as_json=True)).where_without_kafka())

    with redirect_stderr(StringIO()):  # Output of libraries would land in the line that the person types.
        asked = begin(start_thread, names)
        is_sound = wait([asked], _COMPLETION_S).done and asked.exception() is None
    return [name for name in asked.result() if name.startswith(begun)] if is_sound else []


log_argument = click.argument("name", shell_complete=complete_log)
"""The NAME of an existing log."""


@contextmanager
def stopped_by_signals() -> Generator[Control]:
    """Pass SIGTERM, Ctrl-C and SIGUSR1 to a command's control in the block."""
    control = Control()
    restore = install_signal_handlers(control)
    try:
        yield control
    finally:
        restore()


class _LineHandler(logging.Handler):
    """A handler that passes log lines of level WARNING and above to `show`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


def materializer_settings(config: Config, log: str = "") -> MaterializerSettings:
    """Return the configured settings of this log. A default alarm age follows a long interval. Raises ConfigError."""
    given = dict(config.of_log(log).materializer)
    for name in ("engine", "rounds", "drill_every_s"):
        given.pop(name, None)  # These are settings of the process, not of a log's rounds.
    retention = {name: given.pop(name) for name in ("keep", "min_age_s") if name in given}
    if "alarm_age_s" not in given and "interval_s" in given:
        usual = MaterializerSettings().alarm_age_s
        given["alarm_age_s"] = max(usual, _INTERVALS_BEFORE_ALARM * cast("float", given["interval_s"]))
    cap = {name: given.pop(f"subscription_{name}") for name in ("idle_s", "records") if f"subscription_{name}" in given}
    return MaterializerSettings(
        **cast("dict[str, Any]", given),
        retention=RetentionPolicy(**cast("dict[str, Any]", retention)),
        subscriptions=SubscriptionCap(**cast("dict[str, Any]", cap)),
    )


def connected(command: Callable[Concatenate[Session, P], None]) -> Callable[P, None]:
    """Give a command the options of the configuration, and pass a session as its first argument."""

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
        output, unsafe = CliOutput(as_json=options.pop("as_json")), options.pop("allow_unsafe")
        values = {name: options.pop(name) for name in ("bootstrap", "root")}
        values["allow_unsafe"] = tuple(name for text in unsafe for name in read_names(text)) if unsafe else None
        # Options of a single command that set keys of the configuration.
        for name in [name for name in options if name.startswith("key_of_")]:
            values[name.removeprefix("key_of_").replace("__", ".")] = options.pop(name)
        flags = flag_layer(values, options.pop("kafka"), options.pop("storage"))
        config = merge(config_layers(options.pop("config_file"), os.environ, flags))
        command(Session(config=config, output=output), *args, **options)

    return with_session
