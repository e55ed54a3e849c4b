"""The part of pyarrow.csv that statelog uses."""

from collections.abc import Mapping, Sequence

from pyarrow import DataType, NativeFile, Table

class ReadOptions:
    def __init__(
        self, *, block_size: int = ..., column_names: Sequence[str] = ..., autogenerate_column_names: bool = ...
    ) -> None: ...

class ParseOptions:
    def __init__(self, *, delimiter: str = ...) -> None: ...

class ConvertOptions:
    def __init__(
        self,
        *,
        check_utf8: bool = ...,
        column_types: Mapping[str, DataType] = ...,
        null_values: Sequence[str] = ...,
        strings_can_be_null: bool = ...,
        quoted_strings_can_be_null: bool = ...,
        include_columns: Sequence[str] = ...,
    ) -> None: ...

def read_csv(
    input_file: object | NativeFile,
    *,
    read_options: ReadOptions | None = ...,
    parse_options: ParseOptions | None = ...,
    convert_options: ConvertOptions | None = ...,
) -> Table: ...
