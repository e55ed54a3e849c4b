"""The options of a table's RocksDB database, and the column families that it has. Imports rocksdict.

Invariant: all column families share one cache, and stay together within the settings' memory.
"""

from pathlib import Path
from typing import NamedTuple

import rocksdict

from statelog.recovery.rocksdb_target import rocksdb_options
from statelog.store.disk.disk import is_there, local_disk
from statelog.tables.setup import TableSettings

_MEMTABLE_BLOOM = 0.01
"""The part of a memtable that is its filter, because most keys are not in it. It has ten bits for each of the smallest
changes, and fits in the processor's cache; a search without a result takes 1 µs.
"""
_ANY_CHARGE = 0
"""Makes a cache of few shards. RocksDB's other cache has 64: the filter of a large file does not fit in one, and every
get would read it from the file, in 50 µs.
"""
_LEVELS = 7
"""RocksDB's own number. The files of the first level are few, and soon merged: to compress them would take a third of
the time that writing them does.
"""
_OPEN_FILES_MAX = 512
_REPLAYED = 4
"""An open after a kill replays the write-ahead log, at 10 ms of a processor for each MiB. So the log is limited to this
part of the memory for changes. The files get smaller, which costs writes nothing measurable.
"""


class FamilyOptions(NamedTuple):
    """The options of the state, of the records, and of the dues."""

    state: rocksdict.Options
    records: rocksdict.Options
    dues: rocksdict.Options


def families_of(path: Path) -> list[str]:
    """Return the names of a database's column families; none if there is no database. Raises the library's errors."""
    with local_disk(path):
        if not is_there(path / "CURRENT"):
            return []
    return rocksdict.Rdict.list_cf(str(path))


def options_of(settings: TableSettings) -> FamilyOptions:
    """Return the options of each column family."""
    cache = rocksdict.Cache.new_hyper_clock_cache(settings.cache_bytes, _ANY_CHARGE)

    def made() -> rocksdict.Options:
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_cache(cache)
        blocks.set_cache_index_and_filter_blocks(True)
        options = rocksdb_options(blocks)
        plain, lz4 = rocksdict.DBCompressionType.none(), rocksdict.DBCompressionType.lz4()
        options.set_compression_per_level([plain, *[lz4] * (_LEVELS - 1)])
        options.set_write_buffer_size(settings.write_buffer_bytes)
        options.set_max_write_buffer_number(2)
        options.set_memtable_prefix_bloom_ratio(_MEMTABLE_BLOOM)
        options.set_memtable_whole_key_filtering(True)
        options.set_max_total_wal_size(settings.write_buffer_bytes // _REPLAYED)
        options.set_max_open_files(_OPEN_FILES_MAX)
        options.set_atomic_flush(True)
        options.set_keep_log_file_num(2)
        return options

    return FamilyOptions(made(), made(), made())
