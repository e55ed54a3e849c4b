"""The part of pyarrow.json that statelog uses."""

from pyarrow import NativeFile, Schema, Table

class ReadOptions:
    def __init__(self, *, use_threads: bool = ..., block_size: int = ...) -> None: ...

class ParseOptions:
    def __init__(
        self,
        *,
        explicit_schema: Schema | None = ...,
        newlines_in_values: bool = ...,
        unexpected_field_behavior: str = ...,
    ) -> None: ...

def read_json(
    input_file: object | NativeFile, *, read_options: ReadOptions | None = ..., parse_options: ParseOptions | None = ...
) -> Table: ...
