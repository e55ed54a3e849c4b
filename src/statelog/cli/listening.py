"""The options of a command that listens, and what they say.

Owns the names of the options. Invariant: what may not be listened on is refused before the command does anything.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from statelog.operate.listening import Listening, listening_at

_FILE = click.Path(path_type=Path)


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
        def listening(
            *args: Any,
            listen: str | None,
            tls_certificate: Path | None,
            tls_key: Path | None,
            token_file: Path | None,
            **options: Any,
        ) -> None:
            found: Listening | None = None
            if listen is not None:
                found = listening_at(listen, certificate=tls_certificate, key=tls_key, token_file=token_file)
            command(*args, listening=found, **options)

        return listening

    return decorate
