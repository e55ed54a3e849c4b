"""Asking a person to type a log's name again before something that cannot be undone."""

import click

from statelog.errors import ConfigError

__all__ = ["confirm"]


def confirm(name: str, what: str) -> None:
    """Say what would happen, and ask for the name. Raises ConfigError if nobody answers or the name is another one."""
    try:
        typed = click.prompt(f"{what} Type its name to go on", err=True)
    except click.Abort as abort:
        if isinstance(abort.__cause__, KeyboardInterrupt) or isinstance(abort.__context__, KeyboardInterrupt):
            raise
        raise ConfigError("nobody answered; nothing was done", hint="In scripts, give --yes") from None
    if typed != name:
        raise ConfigError("the name that was typed is another one; nothing was done", log=name)
