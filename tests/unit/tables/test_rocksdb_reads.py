"""The cost of a table's reads in RocksDB, in bytes read from its files."""

from pathlib import Path

import pyarrow as pa
import pytest
import rocksdict

from statelog.schemas.changes.changes import PUT, change_schema
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import LogIdentity, Place
from statelog.schemas.values.schema import OPAQUE
from statelog.tables import TableSettings
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.keys import KeyRule
from statelog.tables.state.rocksdb import RocksdbStore
from statelog.tables.state.store import StatePlace
from statelog.tables.state.values import ValueRule

KEYS = 500_000
GROUP = 3
RULE = KeyRule(
    Descriptor(
        name="log",
        identity=LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l"),
        partitions=1,
        key_groups=8,
        hash_rule=HashRule.CALLER,
        key_type=KeyType.BYTES,
        value_schema_id=0,
        nonce=b"nonce",
    ),
    frozenset([GROUP]),
    GROUP,
)


def _one_large_file(database: Path, scratch: Path) -> None:
    """Make one large file, as compaction does: its filter has 625 kB."""
    blocks, options = rocksdict.BlockBasedOptions(), rocksdict.Options(raw_mode=True)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    file = rocksdict.SstFileWriter(options)
    file.open(str(scratch))
    for number in range(KEYS):
        file[GROUP.to_bytes(2, "big") + number.to_bytes(4, "big")] = b""
    file.finish()
    with rocksdict.Rdict(str(database), options) as made:
        made.ingest_external_file([str(scratch)])


def _bytes_read() -> int:
    """Return the bytes that this process has read, from files and others, cached by the kernel or not."""
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def test_the_filter_of_a_large_file_stays_in_the_cache(tmp_path: Path) -> None:
    """The filter of a large file stays in the cache. With many shards, every get would read it from the file."""
    home = StateDirectory(tmp_path, "log", "table")
    _one_large_file(home.database, tmp_path / "large.sst")
    backend = RocksdbStore(home, RULE, ValueRule(OPAQUE), TableSettings(cache_bytes=4 << 20))
    assert backend.get((7).to_bytes(4, "big")) == b""
    before = _bytes_read()
    for number in range(0, KEYS, KEYS // 100):
        assert backend.get(number.to_bytes(4, "big")) == b""
        assert backend.get(number.to_bytes(5, "big")) is None
    assert _bytes_read() - before < 4 << 20
    backend.close()
    home.close()


def test_what_was_committed_last_is_read_back_without_the_database(tmp_path: Path) -> None:
    """Own recent commits, deletes included, are read from memory.

    A load of other commits is read from the database again.
    """
    home = StateDirectory(tmp_path, "log", "table")
    backend = RocksdbStore(home, RULE, ValueRule(OPAQUE), TableSettings())
    backend.apply({b"put": b"1", b"gone": None}, StatePlace(Place(1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "_database", None)
        assert (backend.get(b"put"), backend.get(b"gone")) == (b"1", None)
    newer = {"key_group": [GROUP] * 2, "op": [PUT] * 2, "key": [b"put", b"gone"], "value": [b"2", b"3"]}
    backend.load(pa.Table.from_pydict(newer, change_schema(KeyType.BYTES)))
    assert (backend.get(b"put"), backend.get(b"gone")) == (b"2", b"3")
    backend.close()
    home.close()
