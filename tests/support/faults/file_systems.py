"""File systems that behave as real ones do in the one respect that a test is about."""

import uuid

from fsspec.implementations.memory import MemoryFileSystem

__all__ = ["CarelessFileSystem", "unique_directory"]


class CarelessFileSystem(MemoryFileSystem):
    """A store that takes a conditional write and ignores the condition, as some S3 gateways do."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> object:
        """Write in any case."""
        return super().pipe_file(path, value, mode="overwrite", **kwargs)


def unique_directory() -> str:
    """A directory of the process's one memory file system that no other test uses."""
    return f"/{uuid.uuid4().hex}"
