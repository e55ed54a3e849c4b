from collections.abc import Iterator, Mapping
from typing import ClassVar

from fsspec.spec import AbstractFileSystem

# What requests answers with, as far as it is used.
class Response:
    status_code: int
    reason: str
    headers: Mapping[str, str]
    content: bytes
    def json(self) -> object: ...
    def iter_content(self, chunk_size: int) -> Iterator[bytes]: ...

class Session:
    def request(self, method: str, url: str, **kwargs: object) -> Response: ...

class WebHDFS(AbstractFileSystem):
    tempdir: ClassVar[str]
    url: str
    pars: dict[str, str]
    session: Session
    def _apply_proxy(self, location: str) -> str: ...
