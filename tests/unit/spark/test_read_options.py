"""Options of reads: ranges of changes, kinds of reads, and the keys and key groups that filters select."""

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, IsNotNull, LessThan, Not

from statelog.errors import ConfigError, KeyGroupMismatch
from statelog.reading.plan import AtCheckpoint, AtPosition, AtTime
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType, key_group_of
from statelog.schemas.ledger.place import LogIdentity
from statelog.spark.options import change_options, read_of, state_options, stream_options, view_options
from statelog.spark.parts import Selection, lease_terms, narrowed, selected
from statelog.spark.stream_planner import StreamPlanner
from tests.support.rigs.log import TwinLog

WHERE = {"log": "flights", "root": "s3://bucket/logs", "kafka.bootstrap.servers": "b:9092"}


def _log(
    key_type: KeyType = KeyType.LONG, rule: HashRule = HashRule.CRC32, prefix_bytes: int | None = None
) -> Descriptor:
    return Descriptor(
        name="flights",
        identity=LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l"),
        partitions=4,
        key_groups=16,
        hash_rule=rule,
        key_type=key_type,
        value_schema_id=0,
        nonce=bytes(16),
        prefix_bytes=prefix_bytes,
    )


def test_a_range_is_typed() -> None:
    """Positions, checkpoints and times are parsed as bounds. Open ends are None, by omission or by their words."""
    found = change_options({**WHERE, "startingPosition": "7", "endingWriter": "w", "endingCheckpoint": "3"})
    assert (found.start, found.end) == (AtPosition(7), AtCheckpoint("w", 3))
    found = change_options({**WHERE, "startingTime": "2026-01-31T12:00:00+01:00", "endingTime": "1769858400001"})
    assert (found.start, found.end) == (AtTime(1769857200000), AtTime(1769858400001))
    for open_ends in ({}, {"startingPosition": "earliest", "endingPosition": "latest"}):
        found = change_options({**WHERE, **open_ends})
        assert (found.start, found.end, found.lease_s) == (None, None, 300)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"startingPosition": "1", "startingTime": "5"}, "startingPosition and startingTime exclude each other"),
        ({"endingTime": "5", "endingWriter": "w", "endingCheckpoint": "1"}, "endingTime and endingWriter exclude"),
        ({"startingWriter": "w"}, "startingWriter and startingCheckpoint go together"),
        ({"endingCheckpoint": "1"}, "endingWriter and endingCheckpoint go together"),
        ({"startingPosition": "latest"}, "startingPosition is 'latest'"),
        ({"endingPosition": "-1"}, "endingPosition is '-1'"),
        ({"startingTime": "2026-01-31 12:00"}, "with an offset"),
        ({"endingTime": "yesterday"}, "endingTime is 'yesterday'"),
        ({"leaseSeconds": "1.5"}, "leaseSeconds"),
        ({"atPosition": "1"}, "unknown option atposition for a read of changes"),
        ({"keys": "a"}, "unknown option keys for a read of changes"),
    ],
)
def test_wrong_ranges_are_named(given: dict[str, str], named: str) -> None:
    """Contradicting, incomplete or unreadable ranges are refused by name."""
    with pytest.raises(ConfigError) as caught:
        change_options({**WHERE, "read": "changes", **given})
    assert named in str(caught.value)


@pytest.mark.parametrize("parse", [state_options, change_options, stream_options])
def test_options_that_all_reads_share_have_one_rule(parse: Callable[[Mapping[str, str]], Any]) -> None:
    """A state, changes and a stream parse their common options alike, and refuse the same values."""
    where = {**WHERE, "startingPosition": "earliest"} if parse is not state_options else WHERE
    found = parse({**where, "columns": "key, value", "minPartitions": "3", "keyGroups": "0:2", "leaseSeconds": "0"})
    assert (found.columns, found.min_partitions, found.key_groups) == (("key", "value"), 3, (0, 1))
    assert lease_terms(found.lease_s, "spark") == ("spark", 1, False)
    found = parse(where)
    assert (found.columns, found.min_partitions, found.key_groups) == (None, None, None)
    assert lease_terms(found.lease_s, "spark") == ("spark", found.lease_s, True)
    for name, text in (("columns", " ,"), ("minPartitions", "0"), ("keyGroups", ""), ("leaseSeconds", "-1")):
        with pytest.raises(ConfigError, match=f"the option {name} is"):
            parse({**where, name: text})


def test_kinds_of_reads() -> None:
    """The state is the default, and a view takes no other options.

    A table of Spark's catalog is refused with the way out.
    """
    assert (read_of(WHERE), read_of({**WHERE, "READ": "Changes"})) == ("state", "changes")
    with pytest.raises(ConfigError, match="unknown option columns for a read of lag"):
        view_options({**WHERE, "read": "lag", "columns": "key"})
    with pytest.raises(ConfigError, match="unknown option startingposition for a read of a state"):
        state_options({**WHERE, "startingPosition": "1"})
    for catalog in ({"provider": "statelog"}, {"owner": "me", "option.log": "flights"}):
        with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW"):
            read_of({**WHERE, **catalog})


def test_keys_are_read_by_the_type_of_the_log() -> None:
    """Texts are read as keys of the log's type, with their key groups. A text that is no such key is refused."""
    groups = {key: key_group_of(key, KeyType.LONG, 16) for key in (5, 40)}
    found = selected(_log(), None, state_options({**WHERE, "keys": "40, 5"}).keys)
    assert found == Selection(tuple(sorted(set(groups.values()))), (40, 5))
    assert selected(_log(KeyType.BYTES), None, ["a", "0x6162"]).keys == (b"a", b"ab")
    assert selected(_log(KeyType.STRING), [3], state_options({**WHERE, "keys": '["a,b"]'}).keys).keys == ("a,b",)
    for text, kind in (("x", KeyType.LONG), ("0xz", KeyType.BYTES)):
        with pytest.raises(ConfigError, match="no key of type"):
            selected(_log(kind), None, [text])
    for text in ("", "[1", "[{}]", "[]", "[true]"):
        with pytest.raises(ConfigError, match="option keys"):
            state_options({**WHERE, "keys": text})


def test_filters_narrow_and_never_widen() -> None:
    """Filters on keys or key groups select their key groups, and several the intersection.

    Unknown filters change nothing.

    Where callers place keys, a key selects all key groups.
    """
    every = selected(_log(), None, None)
    mine = key_group_of(7, KeyType.LONG, 16)

    def left(*filters: Filter, log: Descriptor = _log()) -> Selection:  # noqa: B008  # A frozen value.
        return narrowed(every, filters, log)

    assert left(EqualTo(("key",), 7)) == Selection((mine,), (7,))
    assert left(In(("key",), (7, 8)), EqualTo(("key",), 7)) == Selection((mine,), (7,))
    assert left(EqualTo(("key",), 7), EqualTo(("key",), 8)).keys == ()
    assert left(GreaterThanOrEqual(("key_group",), 3), LessThan(("key_group",), 5)) == Selection((3, 4))
    assert left(In(("key_group",), (1, 99))) == Selection((1,))
    for unknown in (IsNotNull(("key",)), Not(EqualTo(("key",), 7)), EqualTo(("n",), 7), EqualTo(("key",), "text")):
        assert left(unknown) == every
    assert left(EqualTo(("key",), 7), log=_log(rule=HashRule.CALLER)) == Selection(tuple(range(16)), (7,))
    by_prefix = _log(KeyType.STRING, HashRule.CRC32_PREFIX, prefix_bytes=2)
    theirs = key_group_of("ab", KeyType.STRING, 16)
    assert left(EqualTo(("key",), "abc"), log=by_prefix) == Selection((theirs,), ("abc",))
    assert selected(by_prefix, None, ["abd", "abe"]) == Selection((theirs,), ("abd", "abe"))


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_key_group_that_the_log_lacks_is_refused(start: str) -> None:
    """A key group that the log lacks is refused before the query has a position, wherever it begins."""
    options = stream_options({**WHERE, "startingPosition": start, "keyGroups": "0,8"})
    with TwinLog().open() as log, pytest.raises(KeyGroupMismatch, match="lacks a key group"):
        StreamPlanner(log, options)
