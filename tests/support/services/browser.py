"""A headless Chromium that opens a page of a folder, and reports what a script in that page found.

The page is served on loopback, from the folder and from memory. Its script posts its findings to `/found`, as JSON;
that ends the browser. So nothing has to guess how long a page takes.
"""

import json
import os
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.services.http import Answering, serving

__all__ = ["WHERE_TO_HAVE_IT", "chromium", "look"]

WHERE_TO_HAVE_IT = "Chromium cannot be had here: apt-get install chromium, or name one in STATELOG_TEST_CHROMIUM"


def chromium() -> str | None:
    """Return the browser, if this machine has one."""
    named = os.environ.get("STATELOG_TEST_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if (path := shutil.which(name))), None)


class _Handler(Answering, SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, page: str, found: "Queue[Any]", **kwargs: Any) -> None:
        self._page, self._found = page, found
        super().__init__(*args, **kwargs)

    def serve(self) -> None:
        """Serve the page, its findings, or a file."""
        if self.command == "POST":
            self._found.put(json.loads(self.body()))
            self.answer(204)
        elif self.path == "/look":
            self.answer(200, self._page.encode(), {"Content-Type": "text/html; charset=utf-8"})
        else:
            SimpleHTTPRequestHandler.do_GET(self)


def look(browser: str, folder: Path, page: str, *, width: int, timeout_s: float = 240) -> Any:
    """Return what the script of `page` posted, in a window of that width on the origin that serves `folder`."""
    found: Queue[Any] = Queue()
    handler = partial(_Handler, directory=str(folder), page=page, found=found)
    with serving(handler) as url, TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # As root Chromium has no sandbox, and refuses to run without this.
        with subprocess.Popen(
            [browser, *options, f"--window-size={width},900", "--remote-debugging-port=0", f"{url}/look"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                return found.get(timeout=timeout_s)
            except Empty:
                raise AssertionError(f"the page reported nothing within {timeout_s:g} s") from None
            finally:
                process.terminate()
                process.wait(timeout=60)
