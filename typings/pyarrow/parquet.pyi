"""The Parquet functions that statelog uses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from pyarrow import NativeFile, RecordBatch, Schema, Table

class Statistics:
    has_min_max: bool
    min: Any
    max: Any
    null_count: int | None

class ColumnChunkMetaData:
    path_in_schema: str
    compression: str
    encodings: tuple[str, ...]
    data_page_offset: int
    dictionary_page_offset: int | None
    has_dictionary_page: bool
    total_compressed_size: int
    total_uncompressed_size: int
    is_stats_set: bool
    statistics: Statistics | None

class RowGroupMetaData:
    num_rows: int
    num_columns: int
    total_byte_size: int
    def column(self, i: int) -> ColumnChunkMetaData: ...

class ColumnSchema:
    path: str
    name: str

class ParquetSchema:
    names: list[str]
    def column(self, i: int) -> ColumnSchema: ...
    def to_arrow_schema(self) -> Schema: ...
    def __len__(self) -> int: ...

class FileMetaData:
    num_rows: int
    num_row_groups: int
    num_columns: int
    serialized_size: int
    metadata: dict[bytes, bytes] | None
    schema: ParquetSchema
    def row_group(self, i: int) -> RowGroupMetaData: ...

class ParquetWriter:
    def __init__(
        self,
        where: object,
        schema: Schema,
        *,
        version: str = ...,
        use_dictionary: bool | Sequence[str] = ...,
        compression: str | Mapping[str, str] = ...,
        compression_level: int | None = ...,
        write_statistics: bool | Sequence[str] = ...,
        store_schema: bool = ...,
        write_page_checksum: bool = ...,
        data_page_size: int | None = ...,
        column_encoding: Mapping[str, str] | None = ...,
    ) -> None: ...
    def write_table(self, table: Table, row_group_size: int | None = ...) -> None: ...
    def add_key_value_metadata(self, key_value_metadata: Mapping[str, str]) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class ParquetFile:
    metadata: FileMetaData
    schema_arrow: Schema
    num_row_groups: int
    def __init__(
        self,
        source: object,
        *,
        metadata: FileMetaData | None = ...,
        memory_map: bool = ...,
        pre_buffer: bool = ...,
        page_checksum_verification: bool = ...,
    ) -> None: ...
    def read(self, columns: Sequence[str] | None = ..., use_threads: bool = ...) -> Table: ...
    def read_row_group(self, i: int, columns: Sequence[str] | None = ..., use_threads: bool = ...) -> Table: ...
    def read_row_groups(
        self, row_groups: Sequence[int], columns: Sequence[str] | None = ..., use_threads: bool = ...
    ) -> Table: ...
    def iter_batches(
        self, batch_size: int = ..., row_groups: Sequence[int] | None = ..., columns: Sequence[str] | None = ...
    ) -> Iterator[RecordBatch]: ...
    def close(self, force: bool = ...) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

def read_table(source: object, *, columns: Sequence[str] | None = ..., filters: object = ...) -> Table: ...
def write_table(table: Table, where: object, *, row_group_size: int | None = ...) -> None: ...
def read_metadata(where: object | NativeFile) -> FileMetaData: ...
