"""An S3 service for the tests: a container of `versity/versitygw:v1.8.0`, on one port of this machine.

It runs in two ways: as an S3 store should be, and without the metadata that its conditional writes are decided on. The
latter is a real store that answers 200 to the second create of the same object.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, cast

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy

__all__ = ["S3_IMAGE", "SECRET_KEY", "S3Service", "open_s3", "read_models_once"]

S3_IMAGE = "versity/versitygw:v1.8.0"
_PORT = 7070
_BUCKET = "statelog-test"
_ACCESS_KEY = "statelog-test-key"
SECRET_KEY = "statelog-test-canary-secret"
_START_TIMEOUT_S = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Service:
    """A running service with one empty bucket. `options` are s3fs's."""

    bucket: str
    endpoint: str
    options: dict[str, object]


def open_s3(stack: ExitStack, *, honours_conditions: bool = True) -> S3Service:
    """Start a service; `stack` ends it. Raises docker's errors if it does not start."""
    read_models_once()
    container = stack.enter_context(_container(honours_conditions))
    endpoint = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(_PORT)}"
    options: dict[str, object] = {"key": _ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": endpoint}
    return S3Service(bucket=_BUCKET, endpoint=endpoint, options=options)


def _container(honours_conditions: bool) -> DockerContainer:
    # A directory of the top level is a bucket. Metadata lives in file attributes. The gateway's other choice is side
    # files, which change apart from the data: a reader of a file being replaced could see a wrong checksum.
    gateway = f"versitygw --health /health posix {'' if honours_conditions else '--nometa'} /gateway"
    script = f"mkdir -p /gateway/{_BUCKET} && exec {gateway}"
    container = (
        DockerContainer(S3_IMAGE)
        .with_kwargs(entrypoint=["sh", "-c", script])
        .with_env("ROOT_ACCESS_KEY", _ACCESS_KEY)
        .with_env("ROOT_SECRET_KEY", SECRET_KEY)
        .waiting_for(HttpWaitStrategy(_PORT, "/health").with_startup_timeout(_START_TIMEOUT_S))
    )
    # A pair instead of a port number names the address to bind to; the annotation leaves it out.
    cast("dict[str, object]", container.ports)[f"{_PORT}/tcp"] = ("127.0.0.1",)
    return container


@cache
def read_models_once() -> None:
    """Share what botocore reads of its own files between the sessions of this process, as the clients of a session do.

    It costs 0.2 s of CPU, mostly for JSON, and s3fs has a session for each store that a test opens.
    """
    loader: Any = import_module("botocore.loaders").Loader
    begin, known = loader.__init__, dict[object, object]()

    def begun(self: Any, *given: object, **named: object) -> None:
        begin(self, *given, **named)
        self._cache = known

    loader.__init__ = begun
