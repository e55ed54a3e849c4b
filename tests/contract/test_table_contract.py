"""The promises of a table, in a dict and in RocksDB, on the in-memory twins and on a real broker alike."""

import datetime
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import pytest

from statelog.errors import (
    ClosedError,
    ConfigError,
    Fenced,
    InvalidChange,
    InvalidMetadata,
    KeyGroupMismatch,
    Misuse,
    NotCommitted,
    ValueTooLarge,
)
from statelog.pending import Pending
from statelog.producer import Writer
from statelog.recovery import AtPosition, plan_changes, read_changes, recover
from statelog.schemas.key_groups import key_group_of, partition_of
from statelog.schemas.ledger.state import LastCommit
from statelog.tables.setup import Loading, TableSettings, TableTuning
from tests.support.processes.starts import in_fork
from tests.support.rigs.log import LogRig
from tests.support.rigs.table import TableRig, content


def test_it_is_a_mapping(tables: TableRig) -> None:
    """Every method of a dict works as in a dict, before a commit and after it."""
    model: dict[bytes, bytes] = {}
    with tables.open() as table:
        for turn in range(2):
            for mapping in (model, table):
                mapping.update({b"a": b"1", b"b": b"2", b"c": b"3"})
                mapping[b"b"] = b"22"
                del mapping[b"a"]
                assert mapping.pop(b"c") == b"3"
                assert mapping.pop(b"never", b"default") == b"default"
                assert mapping.setdefault(b"d", b"4") == b"4"
                assert mapping.get(b"a") is None
                assert b"d" in mapping
                assert b"a" not in mapping
                with pytest.raises(KeyError):
                    del mapping[b"a"]
                with pytest.raises(KeyError):
                    mapping[b"a"]
            assert content(table) == model
            assert (len(table), sorted(table), sorted(table.values())) == (2, sorted(model), sorted(model.values()))
            assert table == model
            table.commit({"turn": turn})
            assert content(table) == model
            assert len(table) == 2
        table.clear()
        assert not table
        table.commit(table.progress)
    with tables.open() as table:
        assert content(table) == {}


def test_it_is_back_with_its_progress(tables: TableRig) -> None:
    """The next incarnation has state and progress of the last commit; later changes are discarded, with an error."""
    with tables.open() as table:
        assert table.progress == {}
        assert table.last_commit is None
        table[b"k"] = b"1"
        table.commit({"offset": 7, "share": 0.5, "name": "x", "done": True})
        table[b"k"] = b"2"
        with pytest.raises(NotCommitted, match=rf"{tables.rig.name} was closed .*changed_keys=1.*`commit`"):
            table.close()
    with tables.open() as table:
        assert content(table) == {b"k": b"1"}
        assert table.progress == {"offset": 7, "share": 0.5, "name": "x", "done": True}
        table.commit({"offset": 8})  # Progress alone is a commit, too.
    with tables.open() as table:
        assert (table.progress, content(table)) == ({"offset": 8}, {b"k": b"1"})
        assert (table.opening.from_position is not None) is tables.is_kept
        assert table.opening.rows_read == (0 if tables.is_kept else 1) or tables.loading is not Loading.FIRST


def test_commits_under_way(tables: TableRig) -> None:
    """Outcomes of commits in flight come in order, also of several checkpoints in one; the state shows all at once."""
    with tables.open(settings=TableSettings(_tuning=TableTuning(commits_under_way_max=2))) as table:
        commits: list[Pending[LastCommit]] = []
        for i in range(6):
            table[b"n"] = b"%d" % i
            table[b"k%d" % i] = b"x"
            commits.append(table.commit_async({"n": i}))
            assert table[b"n"] == b"%d" % i
            assert sum(not one.is_over for one in commits) <= 2
        assert commits[-1].result().metadata == {"n": 5}
        assert all(one.done() for one in commits)
        offsets = [one.result().offset for one in commits]
        assert offsets == sorted(offsets)
        assert table.progress == {"n": 5}
    with tables.open() as table:
        assert content(table) == {b"n": b"5", **{b"k%d" % i: b"x" for i in range(6)}}


def test_rollback_and_transactions(tables: TableRig) -> None:
    """A rollback undoes all since the last commit, in flight or over; a transaction all since it began. They nest."""
    with tables.open() as table:
        table[b"a"] = b"1"
        under_way = table.commit_async({"n": 1})
        table[b"a"] = b"2"
        table.delete(b"a")
        table.rollback()
        assert content(table) == {b"a": b"1"}
        with table.transaction():
            table[b"a"] = b"3"
            with pytest.raises(RuntimeError, match="mine"), table.transaction():
                del table[b"a"]
                table[b"b"] = b"x"
                assert content(table) == {b"b": b"x"}
                raise RuntimeError("mine")
            assert content(table) == {b"a": b"3"}
            with table.transaction():
                table[b"c"] = b"4"
            with pytest.raises(Misuse, match="transaction"):
                table.commit(table.progress)
        assert content(table) == {b"a": b"3", b"c": b"4"}
        with pytest.raises(RuntimeError), table.transaction():
            table.clear()
            table.rollback()
            table[b"d"] = b"5"
            assert len(table) == 3
            raise RuntimeError
        assert under_way.result().metadata == {"n": 1}
        table.commit({"n": 2})
        table[b"e"] = b"6"
        table.rollback()
    with tables.open() as table:
        assert content(table) == {b"a": b"3", b"c": b"4"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (TableSettings(), [(b"a", b"2"), (b"b", None), (b"same", b"1")]),
        (TableSettings(every_change=True), [(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"b", None), (b"same", b"1")]),
        (TableSettings(skip_equal=True), [(b"a", b"2")]),
        (
            TableSettings(every_change=True, skip_equal=True),
            [(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"b", None)],
        ),
    ],
    ids=["last", "every", "last-new", "every-new"],
)
def test_what_is_logged(tables: TableRig, settings: TableSettings, expected: list[tuple[bytes, bytes | None]]) -> None:
    """A commit logs the last change of a key; on request all of them, or none that changes nothing."""
    with tables.open() as table:
        table[b"same"] = b"1"
        table.commit()
        start = table.position
    with tables.open(settings=settings) as table:
        for key, value in [(b"a", b"1"), (b"a", b"2"), (b"b", b"1")]:
            table[key] = value
        table.delete(b"b")
        with pytest.raises(RuntimeError), table.transaction():
            table[b"undone"] = b"x"
            raise RuntimeError
        table[b"same"] = b"1"
        table.commit()
        assert content(table) == {b"a": b"2", b"same": b"1"}
    assert sorted(_changes(tables, start), key=lambda one: one[0]) == expected


def test_ranges(tables: TableRig) -> None:
    """Ranges are by key, in whatever key group it lies, committed or not."""
    with tables.open() as table:
        for i in range(50):
            table[b"k%02d" % i] = b"%d" % i
        table.commit()
        for i in range(0, 50, 5):
            del table[b"k%02d" % i]
        table[b"k05x"] = b"new"
        left = sorted(content(table).items())
        assert list(table.range()) == left
        assert list(table.range(b"k05", b"k11")) == [one for one in left if b"k05" <= one[0] < b"k11"]
        assert [key for key, _ in table.prefix(b"k0")] == [key for key, _ in left if key.startswith(b"k0")]
        assert list(table.prefix(b"\xff")) == list(table.prefix(b"\xff", reverse=True)) == []
        assert list(table.range(reverse=True)) == left[::-1]
        assert list(table.range(b"k05", b"k11", reverse=True)) == list(table.range(b"k05", b"k11"))[::-1]
        assert next(table.prefix(b"k0", reverse=True)) == max(one for one in left if one[0].startswith(b"k0"))
        table[b"\xff\xff"] = b"last"
        assert list(table.prefix(b"\xff")) == [(b"\xff\xff", b"last")]
        table.commit()


def test_numbers_as_keys(tables: TableRig) -> None:
    """Numbers as keys are in the order of numbers, below zero too."""
    numbers = [-(1 << 63), -257, -1, 0, 1, 255, 256, (1 << 63) - 1]
    with tables.open(key_type="long") as table:
        table.update({number: b"%d" % number for number in numbers[::2]})
        table.commit()
        table.update({number: b"%d" % number for number in numbers[1::2]})
        for start in (None, *numbers):
            for end in (None, *numbers):
                wanted = [one for one in numbers if (start is None or one >= start) and (end is None or one < end)]
                assert [key for key, _ in table.range(start, end)] == wanted
                assert [key for key, _ in table.range(start, end, reverse=True)] == wanted[::-1]
        for wrong in (True, 1 << 63, "1", b"1", 1.0, None):
            with pytest.raises(InvalidChange):
                table.get(wrong)
        with pytest.raises(InvalidChange, match="prefix"):
            table.prefix(1)
        table.commit()
    with tables.open() as table:
        assert [key for key, _ in table.range(-300, 256)] == [-257, -1, 0, 1, 255]


def test_text_as_keys(tables: TableRig) -> None:
    """Text as keys is in the order of its characters; a key without bytes is refused at its put."""
    words = ["", "a", "ä", "äb", "z", "\ud7ff", "\U0010ffff", "\U0010ffffz"]
    with tables.open(key_type="string") as table:
        table.update({word: word.encode() for word in words})
        with pytest.raises(InvalidChange, match="Unicode"):
            table["\ud800"] = b""
        table.commit()
        assert [key for key, _ in table.range()] == sorted(words)
        assert [key for key, _ in table.prefix("ä")] == ["ä", "äb"]
        assert [key for key, _ in table.range(reverse=True)] == sorted(words)[::-1]
        assert [key for key, _ in table.prefix("\U0010ffff")] == ["\U0010ffff", "\U0010ffffz"]
        assert [key for key, _ in table.prefix("\U0010ffff", reverse=True)] == ["\U0010ffffz", "\U0010ffff"]
        assert [key for key, _ in table.prefix("\ud7ff")] == ["\ud7ff"]


TYPED = """{"type": "record", "name": "Order", "fields": [
    {"name": "amount", "type": "long"},
    {"name": "rate", "type": "float", "default": 0.5},
    {"name": "id", "type": ["null", {"type": "string", "logicalType": "uuid"}], "default": null},
    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}], "default": null},
    {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}, "default": {}}]}"""


def test_typed_values(tables: TableRig) -> None:
    """A value reads back before its commit as after a restart; changing a returned value changes no state."""
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    uuid = "00000000-0000-4000-8000-00000000000a"
    full: dict[str, Any] = {"amount": 1, "rate": 0.1, "id": uuid, "at": at, "tags": {"x": [1, 2]}}
    with tables.open(value_schema=TYPED, key_type="string") as table:
        table["full"], table["short"] = full, {"amount": 2}
        full["tags"]["x"].append(3)
        before = content(table)
        table["full"]["tags"]["x"].append(4)
        next(iter(table.values()))["amount"] = 9
        assert content(table) == before
        assert before["short"] == {"amount": 2, "rate": 0.5, "id": None, "at": None, "tags": {}}
        assert before["full"]["tags"] == {"x": [1, 2]}
        table.commit()
        assert content(table) == before
        for wrong in (b"1", None, {}, {"amount": "1"}, {"amount": True}, {"amount": 1 << 63}, {"amount": 1, "new": 2}):
            with pytest.raises(InvalidChange):
                table["wrong"] = wrong
        table.delete("short")
        table.commit()
    with tables.open() as table:
        assert content(table) == {"full": before["full"]}
        table["full"] = table["full"]  # A value that was read can be put.
        table.commit()


def test_a_share_of_the_partitions(tables: TableRig) -> None:
    """Two tables own a half each: neither fences the other, nor answers for the other's keys."""
    with (
        tables.open(owned=[0, 1], writer="low") as low,
        tables.open(owned=[2, 3], writer="high") as high,
    ):
        for i in range(100):
            key = b"%d" % i
            mine, other = (low, high) if key_group_of(key, "bytes", 16) < 8 else (high, low)
            mine[key] = b"x"
            for ask in (other.get, other.delete, other.__contains__, other.pop):
                with pytest.raises(KeyGroupMismatch):
                    ask(key)
            with pytest.raises(KeyGroupMismatch):
                other[key] = b"x"
        low.commit({"low": 1})
        high.commit({"high": 1})
        assert len(low) + len(high) == 100
        assert list(low.key_groups) == list(range(8))
        some = dict(low.items(key_groups=[3, 5]))
        assert some == {key: b"x" for key in low if key_group_of(key, "bytes", 16) in (3, 5)}
        assert len(low.items(key_groups=[3, 5])) == len(some) > 0
        with pytest.raises(KeyGroupMismatch):
            iter(low.items(key_groups=[8]))
    with tables.open(owned=[2, 3], writer="high") as high:
        assert high.progress == {"high": 1}
        assert len(high) == 100 - len(_low_keys(100))
    with pytest.raises(ConfigError, match="name"):
        tables.open(owned=[0, 1])


def _low_keys(count: int) -> list[bytes]:
    """Return keys below `count` that lie in the lower half of the key groups."""
    return [b"%d" % i for i in range(count) if key_group_of(b"%d" % i, "bytes", 16) < 8]


def test_key_groups_that_the_caller_names(tables: TableRig) -> None:
    """A key is a pair, or plain in a table of one key group: an input's partition, say, owned by itself."""
    made = {"hash_rule": "caller", "partitions": 4, "key_groups": 4}
    with tables.open(**made) as table:
        table[1, b"k"], table[2, b"k"], table[2, b"l"] = b"1", b"2", b"3"
        table.commit()
        assert content(table) == {(1, b"k"): b"1", (2, b"k"): b"2", (2, b"l"): b"3"}
        assert list(table.range((1, b"z"), (2, b"l"))) == [((2, b"k"), b"2")]
        assert list(table.range(reverse=True)) == list(table.range())[::-1]
        assert list(table.prefix((2, b""))) == [((2, b"k"), b"2"), ((2, b"l"), b"3")]
        for wrong in (b"k", (1,), (True, b"k"), (1, "k")):
            with pytest.raises(InvalidChange):
                table.get(wrong)
        with pytest.raises(KeyGroupMismatch):
            table[4, b"k"] = b""
    with tables.open(key_group=2, **made) as two, tables.open(key_group=1, **made) as one:
        assert (content(one), content(two)) == ({b"k": b"1"}, {b"k": b"2", b"l": b"3"})
        one[b"new"], two[b"k"] = b"4", b"5"
        assert (one.commit({"n": 1}).metadata, two.commit({"n": 2}).metadata) == ({"n": 1}, {"n": 2})
        assert [key for key, _ in two.range(b"l")] == [b"l"]
    with tables.open(key_group=2, **made) as two:
        assert (content(two), two.progress) == ({b"k": b"5", b"l": b"3"}, {"n": 2})


@pytest.mark.parametrize("key_type", ["bytes", "string"])
def test_key_groups_by_prefix(tables: TableRig, key_type: str) -> None:
    """Put, get, prefix and range by key-group prefix work as in a dict, for longer and shorter prefixes. All keys of a
    prefix are recovered with its key group, and a share has them all.
    """
    made: dict[str, Any] = {"hash_rule": "crc32-prefix", "prefix_bytes": 3, "key_type": key_type}
    texts = [user + rest for user in ("", "ab", "é", "üÿ", "u01", "u02") for rest in ("", "/1", "/2", "ÿ")]
    texts += ["u", "u0", "u01/", "üÿ/", "zz", "é\x80"]
    bounds: list[Any] = texts if key_type == "string" else [text.encode() for text in texts]
    model = {key: str(number).encode() for number, key in enumerate(bounds[:-6])}
    with tables.open(**made) as table:
        table.update(model)
        for turn in range(2):
            assert {key: table.get(key) for key in bounds} == {key: model.get(key) for key in bounds}
            for first in bounds:
                assert list(table.prefix(first)) == [one for one in sorted(model.items()) if one[0].startswith(first)]
                for last in bounds:
                    between = [one for one in sorted(model.items()) if first <= one[0] < last]
                    assert list(table.range(first, last)) == between
            table.commit({"turn": turn})
    with tables.open(**made) as table, tables.rig.open() as log:
        assert content(table) == model
        for first in bounds:
            assert list(table.prefix(first)) == [one for one in sorted(model.items()) if one[0].startswith(first)]
        user = "u01" if key_type == "string" else b"u01"
        group = log.descriptor.key_group_of(user)
        begun = dict(table.prefix(user))
        assert len(begun) == 4
        assert begun.items() <= recover(log, key_groups=[group]).to_dict().items()
        part = partition_of(group, log.descriptor.partitions, log.descriptor.key_groups)
    with tables.standby() as standby:
        assert dict(standby.prefix(user)) == begun
    with tables.open(owned=[part], writer="share", **made) as share:
        assert dict(share.prefix(user)) == begun
        share[user] = b"shared"
        share.commit()


def test_a_newer_owner_fences_the_former(rig: LogRig) -> None:
    """A former owner's next commit raises Fenced, and its reads say why, and of which log. Its directory is its own."""
    tables = TableRig(rig, None)
    former = tables.open()
    former[b"k"] = b"former"
    former.commit()
    with tables.open() as table:
        assert content(table) == {b"k": b"former"}
        former[b"k"] = b"late"
        with pytest.raises(Fenced, match=f"log={rig.name}, writer=table"):
            former.commit()
        for use in (lambda: former.get(b"k"), former.commit, lambda: list(former), lambda: len(former)):
            with pytest.raises(ClosedError) as raised:
                use()
            assert isinstance(raised.value.__cause__, Fenced)
            assert raised.value.facts == {"log": rig.name, "writer": "table"}
        former.close()
        table[b"k"] = b"newer"
        table.commit()
    with tables.open() as table:
        assert content(table) == {b"k": b"newer"}


def test_a_commit_that_is_refused_leaves_its_changes(tables: TableRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is refused before it is sent leaves its changes to the next commit."""
    with tables.open() as table:
        table[b"k"] = b"v"
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "put", Mock(side_effect=InvalidChange("no")))
            with pytest.raises(InvalidChange):
                table.commit()
        assert (content(table), table.last_commit) == ({b"k": b"v"}, None)
        table.commit()
    with tables.open() as table:
        assert content(table) == {b"k": b"v"}


def test_misuse(tables: TableRig) -> None:
    """Each misuse is a typed error, and the table goes on with its state."""
    with tables.open() as table:
        table[b"k"] = b"v"
        for wrong in ("k", 1, bytearray(b"k"), (1, b"k")):
            uses: list[Callable[[Any], Any]] = [table.get, table.delete, table.__getitem__, table.__contains__]
            for use in (*uses, table.pop, table.prefix, table.range):
                with pytest.raises(InvalidChange):
                    use(wrong)
            with pytest.raises(InvalidChange):
                table[wrong] = b""
        for value in ("v", None, 1, bytearray(b"v")):
            with pytest.raises(InvalidChange):
                table[b"k"] = value
        for use in (
            partial(table.put, b"k", bytes(16 << 20)),
            partial(table.put, bytes(16 << 20), b""),
            partial(table.delete, bytes(16 << 20)),
        ):
            with pytest.raises(ValueTooLarge):
                use()
        with pytest.raises(InvalidMetadata):
            table.commit(cast("Any", {"offset": object()}))
        for change in (lambda: table.put(b"n", b""), lambda: table.delete(b"k"), table.commit, table.rollback):
            with pytest.raises(Misuse, match="iterated"):
                for _ in table:
                    change()
            table[b"k"] = b"v"
            table[b"k2"] = b"v"
        assert content(table)[b"k"] == b"v"
        assert _error_in_thread(lambda: table.get(b"k")) is ClosedError
        assert _error_in_thread(lambda: table.put(b"k", b"")) is ClosedError
        assert _error_in_thread(table.commit) is ClosedError
        table.commit()
    for late in (lambda: table.get(b"k"), lambda: table.put(b"k", b""), table.commit, lambda: iter(table)):
        with pytest.raises(ClosedError):
            late()
    table.close()


def test_a_fork_has_no_table(tables: TableRig) -> None:
    """A fork has no table: the child's copy is of no use, and closing it does not harm the parent's."""
    with tables.open() as table:
        table[b"k"] = b"v"
        table.commit()

        def use() -> None:
            with pytest.raises(ClosedError):
                table.get(b"k")
            with pytest.raises(ClosedError):
                table.put(b"k", b"child")
            table.close()

        assert in_fork(use) == 0
        table[b"k"] = b"parent"
        table.commit()
    with tables.open() as table:
        assert content(table) == {b"k": b"parent"}


def test_what_others_read(tables: TableRig) -> None:
    """A table is a log: a recovery has its state and its progress at the position that the table names."""
    with tables.open() as table:
        table[b"k"] = b"v"
        table.commit({"offset": 3})
        with tables.rig.open() as log, recover(log, at=AtPosition(table.position)) as recovery:
            assert recovery.to_dict() == {b"k": b"v"}
            last = recovery.last_commit("table")
    assert last is not None
    assert last.metadata == {"offset": 3}


def _changes(tables: TableRig, start: int) -> list[tuple[bytes, bytes | None]]:
    """Return all changes that were logged behind a position, in order."""
    with tables.rig.open() as log:
        batches = list(read_changes(log, plan_changes(log, AtPosition(start))))
    return [
        one
        for batch in batches
        for one in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    ]


def _error_in_thread(use: Callable[[], Any]) -> type[BaseException] | None:
    found: list[type[BaseException]] = []

    def run() -> None:
        try:
            use()
        except BaseException as error:  # noqa: BLE001 - what it is, is the test's question
            found.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0] if found else None
