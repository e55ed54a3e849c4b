"""Asks a person to type a log's name again before something that cannot be undone."""

import click

from statelog.errors import ConfigError

__all__ = ["confirm"]


def confirm(name: str, what: str) -> None:
    """Show what would happen, and ask for the name. Raises ConfigError without an answer, or for another name."""
    try:
        typed = click.prompt(f"{what} Type its name to continue", err=True)
    except click.Abort as abort:
        if isinstance(abort.__cause__, KeyboardInterrupt) or isinstance(abort.__context__, KeyboardInterrupt):
            raise
        raise ConfigError("no answer; nothing was done", hint="In scripts, give --yes") from None
    if typed != name:
        raise ConfigError("the name does not match; nothing was done", log=name)
