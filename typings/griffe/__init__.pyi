"""What docs/griffe_tables.py uses of griffe, which only `make docs` installs."""

from typing import Any

class Docstring:
    value: str

class Object:
    docstring: Docstring | None

class Extension:
    def on_instance(self, *, obj: Object, **kwargs: Any) -> None: ...
