"""A headless Chromium that opens a page of a folder, and tells what a script in that page found.

The page is served on loopback, from the folder and from memory. Its script posts what it found to `/found`, as JSON;
that ends the browser. So nothing waits for a guess of how long a page takes.
"""

import json
import os
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["WHERE_TO_HAVE_IT", "chromium", "look"]

WHERE_TO_HAVE_IT = "Chromium cannot be had here: apt-get install chromium, or name one in STATELOG_TEST_CHROMIUM"


def chromium() -> str | None:
    """The browser, if this machine has one."""
    named = os.environ.get("STATELOG_TEST_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if (path := shutil.which(name))), None)


class _Server(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, page: str, found: "Queue[Any]", **kwargs: Any) -> None:
        self._page, self._found = page, found
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        if self.path != "/look":
            super().do_GET()
            return
        body = self._page.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self._found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's name of it
        """Nothing."""


def look(browser: str, folder: Path, page: str, *, width: int, timeout_s: float = 240) -> Any:
    """What the script of `page` posted, seen in a window of that width on the origin that serves `folder`."""
    found: Queue[Any] = Queue()
    handler = partial(_Server, directory=str(folder), page=page, found=found)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, TemporaryDirectory() as profile:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium has none for root, and refuses without this.
        address = f"http://127.0.0.1:{server.server_port}/look"
        with subprocess.Popen(
            [browser, *options, f"--window-size={width},900", "--remote-debugging-port=0", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                return found.get(timeout=timeout_s)
            except Empty:
                raise AssertionError(f"the page told nothing within {timeout_s:g} s") from None
            finally:
                process.terminate()
                process.wait(timeout=60)
                server.shutdown()
                serving.join()
