"""The key groups in which a table searches a range or a prefix, where key groups go by prefix."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

LENGTH = 3
ALL = range(128)
TEXTS = st.text(st.sampled_from("a?\x7f\x80\xbf\xff\u07ff\ud7ff\ue000\uffff\U00010000\U0010ffff"), max_size=5)
BYTES = st.lists(st.sampled_from([0, 97, 98, 255]), max_size=5).map(bytes)


def _rule(key_type: KeyType) -> KeyRule:
    return KeyRule(
        Descriptor(
            name="log",
            identity=LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l"),
            partitions=4,
            key_groups=len(ALL),
            hash_rule=HashRule.CRC32_PREFIX,
            key_type=key_type,
            value_schema_id=0,
            nonce=b"nonce",
            prefix_bytes=LENGTH,
        ),
        None,
    )


RULES: dict[type, KeyRule] = {bytes: _rule(KeyType.BYTES), str: _rule(KeyType.STRING)}


@given(prefix=BYTES | TEXTS)
def test_a_prefix_that_is_long_enough_is_looked_for_in_one_key_group(prefix: Any) -> None:
    """A long enough prefix is searched in the key group of its keys, also at the last character.

    A shorter one may be anywhere.
    """
    rule, size = RULES[type(prefix)], len(prefix if isinstance(prefix, bytes) else prefix.encode())
    groups = [group for group, _, _ in rule.group_bounds(ALL, *rule.prefix_bounds(prefix))]
    assert groups == ([rule.group(prefix)] if size >= LENGTH else list(ALL))


@given(keys=st.lists(BYTES, min_size=3, max_size=3) | st.lists(TEXTS, min_size=3, max_size=3))
def test_no_key_of_a_range_lies_elsewhere(keys: list[Any]) -> None:
    """Every key between two bounds, or above the lower one, is in a key group that is searched."""
    start, key, end = sorted(keys)
    rule = RULES[type(key)]
    for behind in (None, *([end] if key < end else [])):
        assert rule.group(key) in {group for group, _, _ in rule.group_bounds(ALL, start, behind)}
    assert rule.group(key) in {group for group, _, _ in rule.group_bounds(ALL, None, end)}
    assert rule.quick_raw()(key) == rule.raw(key)


@pytest.mark.parametrize(("prefix", "looks"), [(b"use", 1), (b"user-1/", 1), (b"us", len(ALL))])
def test_rocksdb_seeks_once(tmp_path: Path, prefix: bytes, looks: int) -> None:
    """RocksDB seeks once, in the prefix's key group. For a shorter prefix it seeks in every one."""
    home, rule = StateDirectory(tmp_path, "log", "table"), RULES[bytes]
    backend = RocksdbStore(home, rule, ValueRule(OPAQUE), TableSettings())
    wanted = [prefix + b"%d" % number for number in range(10)]
    backend.apply(dict.fromkeys([*wanted, b"other", b"u"], b""), StatePlace(Place(1)))
    look = vars(RocksdbStore)["_raw_range"]
    with patch.object(RocksdbStore, "_raw_range", autospec=True, side_effect=look) as seeks:
        assert [key for key, _ in backend.range(*rule.prefix_bounds(prefix))] == wanted
    assert seeks.call_count == looks
    backend.close()
    home.close()
