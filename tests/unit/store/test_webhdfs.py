"""WebHDFS: temporary and permanent refusals of a name node."""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from statelog.store.errors import is_transient
from statelog.store.webhdfs import WebHdfs
from tests.support.services.http import Answering, serving


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
    """A starting cluster is a temporary refusal and a missing right a permanent one.

    Both have code 403 and differ in their words.
    """
    told = json.dumps({"RemoteException": {"exception": exception, "message": message}}).encode()

    class Refusing(Answering):
        def serve(self) -> None:
            self.answer(403, told)

    with serving(Refusing) as url:
        make: Any = WebHdfs  # fsspec has no types.
        files = make("127.0.0.1", port=urlsplit(url).port, skip_instance_cache=True)
        with pytest.raises(OSError, match=message[:20]) as raised:
            files.info("/orders")
    assert is_transient(raised.value) is is_momentary
