"""What docs/mkdocs_hook.py uses of mkdocs, which only `make docs` installs."""

from typing import Any, Self

class File:
    src_uri: str
    @classmethod
    def generated(cls, config: Any, src_uri: str, *, abs_src_path: str) -> Self: ...

class Files:
    def append(self, file: File) -> None: ...
