"""WebHDFS: which refusals of a name node are for the moment, and which are for good."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from statelog.storage.store.errors import is_transient
from statelog.storage.store.webhdfs import WebHdfs


@pytest.mark.parametrize(
    ("exception", "message", "is_momentary"),
    [
        ("IOException", "Failed to find datanode, suggest to check cluster health. excludeDatanodes=null", True),
        ("StandbyException", "Operation category READ is not supported in state standby", True),
        ("AccessControlException", "Permission denied: user=nobody, access=WRITE", False),
    ],
)
def test_a_name_node_without_data_nodes_refuses_for_the_moment(
    exception: str, message: str, is_momentary: bool
) -> None:
    """It says 403 to all of these; only the words tell a right that is missing from a cluster that starts."""
    told = json.dumps({"RemoteException": {"exception": exception, "message": message}}).encode()

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            self.send_response(403)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.handle_request, daemon=True).start()
        make: Any = WebHdfs  # fsspec has no types.
        files = make("127.0.0.1", port=server.server_port, skip_instance_cache=True)
        with pytest.raises(OSError, match=message[:20]) as raised:
            files.info("/orders")
    assert is_transient(raised.value) is is_momentary
