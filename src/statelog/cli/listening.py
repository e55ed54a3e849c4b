"""The options of a command that listens, and what they say.

Owns the names of the options. Invariant: what may not be listened on is refused before the command does anything.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from statelog.operate.listening import listening_at

_FILE = click.Path(path_type=Path)
_GIVEN = {"tls_certificate": "certificate", "tls_key": "key", "token_file": "token_file"}


def listen_options(default: str | None, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a server of ours, and where it listens as `listening`: None if it does not."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option("--listen", metavar="HOST:PORT", default=default, show_default=True, help=text)
        @click.option(
            "--tls-certificate", type=_FILE, metavar="FILE", help="For TLS: a certificate and its chain, PEM."
        )
        @click.option("--tls-key", type=_FILE, metavar="FILE", help="The key of the certificate, PEM, no password.")
        @click.option("--token-file", type=_FILE, metavar="FILE", help="What clients have to show is in this file.")
        @functools.wraps(command)
        def listening(*args: Any, listen: str | None, **options: Any) -> None:
            given = {key: options.pop(name) for name, key in _GIVEN.items()}
            found = None if listen is None else listening_at(listen, **given)
            command(*args, listening=found, **options)

        return listening

    return decorate
