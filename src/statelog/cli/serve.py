"""`statelog serve`: a page that shows logs, read only."""

import click

from statelog.cli.listening import listen_options
from statelog.cli.materialize import materializer_settings
from statelog.cli.session import Session, connected, stopped_by_signals
from statelog.errors import ConfigError
from statelog.materializer.control import Control
from statelog.operate.listening import Listening

_FOREVER_S = 3600.0
_HELP = """Serve a page that shows the logs below the root: topics, snapshots, commits, readers, keys. It only reads.

This machine alone is answered, unless a certificate and a token are given. Ctrl-C and SIGTERM end it."""


@click.command("serve", help=_HELP)
@listen_options("127.0.0.1:9401", "Where to listen.")
@connected
def command(session: Session, listening: Listening) -> None:
    """Serve the page."""
    try:
        from statelog.web.app import page_app
        from statelog.web.looks import Looks
        from statelog.web.server import serve
    except ImportError as error:
        raise ConfigError("the page needs starlette, uvicorn and jinja2", hint="pip install 'statelog[web]'") from error
    with stopped_by_signals() as control, Looks(session.where(), materializer_settings(session.config)) as looks:
        serve(
            page_app(looks, listening),
            listening,
            lambda: _wait(control),
            told=lambda url: session.output.line(f"serving {url}"),
        )


def _wait(control: Control) -> None:
    while not control.wait(_FOREVER_S):
        pass
