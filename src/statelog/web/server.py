"""Serves the page until it is told to stop.

Owns the socket and the server's thread. Invariants: an address that cannot be had is an error, and nothing is served;
a stop ends pages that are live, too.
"""

import threading
import time
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from statelog.errors import Unavailable
from statelog.operate.listening import Listening

_GRACE_S = 2
_POLL_S = 0.02


def serve(app: Starlette, listening: Listening, wait: Callable[[], object], *, told: Callable[[str], object]) -> None:
    """Serve until `wait` returns; `told` gets the URL once pages are answered. Raises ConfigError."""
    listening.context()  # Refused here, with what to do, and not by the server.
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
    )
    server = uvicorn.Server(config)
    with listening.bound() as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="statelog-serve", daemon=True)
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise Unavailable("the server ended before it began")
                time.sleep(_POLL_S)
            port = bound.getsockname()[1]
            told(Listening(host=listening.host, port=port, certificate=listening.certificate).url)
            wait()
        finally:
            app.state.is_ending = True  # Which ends the pages that are live.
            server.should_exit = True
            thread.join(_GRACE_S * 2)
