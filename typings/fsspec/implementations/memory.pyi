from typing import ClassVar

from fsspec.spec import AbstractFileSystem

class MemoryFileSystem(AbstractFileSystem):
    store: ClassVar[dict[str, object]]
    pseudo_dirs: ClassVar[list[str]]
