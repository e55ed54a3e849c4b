"""The promises of a table of JSON values: the values themselves, each read a fresh one, and nothing that JSON lacks."""

from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable

import statelog
from statelog.errors import ConfigError, InvalidChange, ValueTooLarge
from statelog.lake import export
from statelog.log import LogOptions
from statelog.materializer import run_round
from statelog.materializer.copy import copy_log
from statelog.producer import Writer
from statelog.recovery import read, recover, recover_snapshot
from statelog.tables import TableSettings
from statelog.testing import Twin
from statelog.testing.cluster import MemoryCluster
from tests.support.rigs.log import settings_for, twin_rig
from tests.support.rigs.table import TableRig, content

STATE: dict[str, Any] = {
    "count": 3,
    "text": "é",
    "no": False,
    "share": 0.5,
    "tags": ["a", None, {"deep": [1]}],
    "empty": {},
    "zero": 0,
}
KINDS: dict[str, Any] = {"key_type": "string", "value_type": "json"}


def test_it_is_a_mapping_of_values(tables: TableRig) -> None:
    """Every method gives and takes values, falsy ones too: before a commit, after it, and in the next incarnation."""
    with tables.open(**KINDS) as table:
        table.update(STATE)
        for turn in range(2):
            table["count"] = table.get("count", 0) + 1
            assert table.get("never") is None
            assert table.setdefault("tags", []) == STATE["tags"]
            assert table.setdefault(f"new-{turn}", []) == []
            assert table.pop(f"new-{turn}") == []
            assert (table["no"], table["zero"], "zero" in table) == (False, 0, True)
            table.commit({"turn": turn})
        expected = {**STATE, "count": 5}
        assert content(table) == expected
        with pytest.raises(ZeroDivisionError), table.transaction():
            table["tags"] = 1 / (table["zero"] - table["zero"])
        with table.transaction():
            table["text"] = {"was": table["text"]}
        table.commit_every(0.0, {"turn": 2})
    expected["text"] = {"was": "é"}
    with tables.open(**KINDS) as table:
        assert content(table) == expected
        assert list(table.range("s", "u")) == [(key, expected[key]) for key in ("share", "tags", "text")]
        assert list(table.prefix("t", reverse=True)) == [(key, expected[key]) for key in ("text", "tags")]
        assert sorted(map(str, table.values())) == sorted(map(str, expected.values()))
        assert dict(table.items(range(16))) == expected


def test_a_value_that_is_changed_in_place_changes_nothing(tables: TableRig) -> None:
    """A value that is changed in place changes no state: not before the commit, after it, or in the next incarnation.

    The value at the put counts, and no read shares it.
    """
    given: dict[str, Any] = {"seen": [1]}
    with tables.open(**KINDS) as table:
        table["a"] = given
        given["seen"].append(2)
        for _ in range(2):
            table["a"]["seen"].append(3)
            next(iter(table.values()))["seen"].clear()
            dict(table.range())["a"].clear()
            assert table["a"] == {"seen": [1]}
            table.commit({"n": 1})
    with tables.open(**KINDS) as table:
        table["a"]["seen"].append(4)
        assert table["a"] == {"seen": [1]}
        changed = table["a"]
        changed["seen"].append(5)
        table["a"] = changed
        table.commit({"n": 2})
    with tables.open(**KINDS) as table:
        assert table["a"] == {"seen": [1, 5]}


def test_what_json_lacks_is_never_buffered(tables: TableRig) -> None:
    """A value that JSON lacks is refused at the put, with its key and path; it is never buffered.

    The table goes on, and the next incarnation has none of it.
    """
    with tables.open(**KINDS) as table:
        table["a"] = 1
        for value in (None, b"x", (1,), {1: 2}, {"x": [float("nan")]}, {1}, "\ud800"):
            with pytest.raises(InvalidChange) as caught:
                table["bad"] = value
            assert caught.value.facts["key"] == "'bad'"
            assert str(caught.value.facts["field"]).startswith("value")
            with pytest.raises(InvalidChange):
                table["a"] = value
        with pytest.raises(ValueTooLarge):
            table["bad"] = "x" * (17 << 20)
        assert content(table) == {"a": 1}
        table.commit({"n": 1})
    with tables.open(**KINDS) as table:
        assert content(table) == {"a": 1}


def test_every_change_and_skip_equal(tables: TableRig) -> None:
    """Values that are equal in Python, but not as text, are different values."""
    with tables.open(settings=TableSettings(skip_equal=True), **KINDS) as table:
        for value in (1, 1, 1.0, True):
            table["a"] = value
            table.commit({"n": 1})
        assert table["a"] is True
    with tables.open(settings=TableSettings(every_change=True), **KINDS) as table:
        table["a"], table["b"] = [], {}
        table.commit({"n": 2})
        assert content(table) == {"a": [], "b": {}}


def test_a_standby_has_them_and_is_promoted(tables: TableRig) -> None:
    """A standby reads values, fresh ones, and goes on as the table after its promotion."""
    with tables.open(**KINDS) as table:
        table.update(STATE)
        table.commit({"n": 1})
        with tables.standby() as standby:
            assert content(standby) == STATE
            standby["tags"].append("mine")
            assert standby["tags"] == STATE["tags"]
            table["count"] = 9
            table.commit({"n": 2})
            standby.refresh()
            assert (standby["count"], standby.get_with_age("count").value) == (9, 9)
            promoted = standby.promote()
    with promoted:
        promoted["count"] += 1
        with pytest.raises(InvalidChange):
            promoted["count"] = b"10"
        promoted.commit({"n": 3})
        assert promoted["count"] == 10


def test_snapshots_and_readers_have_them(tmp_path: Path) -> None:
    """A round, Delta Lake and Parquet store the text; a dict has the values, also without Kafka."""
    rig = twin_rig("log")
    tables = TableRig(rig, None)
    with tables.open(**KINDS) as table:
        table.update(STATE)
        table.commit({"n": 1})
    with rig.open() as log:
        run_round(log, settings_for(tmp_path))
        with Writer(log, "other") as writer:
            writer.put("more", [1])
            writer.put("more", [1, 2])
            with pytest.raises(InvalidChange, match="bytes") as caught:
                writer.put("more", b"3")
            assert caught.value.facts["key"] == "'more'"
            writer.delete("empty")
            writer.commit()
        expected = {name: value for name, value in STATE.items() if name != "empty"} | {"more": [1, 2]}
        assert recover(log).to_dict() == expected
        assert recover_snapshot("log", rig.where()).to_dict() == STATE
        found = recover(log).to_arrow(ordered=True)
        texts = dict(zip(found.column("key").to_pylist(), found.column("value").to_pylist(), strict=True))
        assert texts["tags"] == '["a",null,{"deep":[1]}]'
        assert recover(log).to_parquet(tmp_path / "state.parquet") == len(expected)
        export(log, str(tmp_path / "lake"))
    rows: Any = cast("Any", DeltaTable(str(tmp_path / "lake"))).to_pyarrow_table()
    assert dict(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)) == texts


def test_a_worker_counts() -> None:
    """A worker's tables have the values, on the twin of a topic and a group."""
    twin = Twin()
    twin.send("words", b"to", b"be", b"to")
    options = LogOptions(key_type="string", value_type="json")
    with twin.environment(), statelog.worker("counts", twin.where(), topic="words", create=options) as worker:
        twin.when_idle = worker.stop
        for message, table in worker:
            word = (message.value() or b"").decode()
            table[word] = table.get(word, 0) + 1
            worker.commit_every(1.0)
    assert {key: n for (_, key), n in read("counts", twin.where()).to_dict().items()} == {"to": 2, "be": 1}


def test_every_opener_agrees() -> None:
    """The log says the kind of its values: an opener that passes other options, or a schema, is refused."""
    rig, schema = twin_rig("log"), '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    with pytest.raises(ConfigError, match="JSON values or a value schema"):
        statelog.open("log", rig.where(), create=LogOptions(value_type="json", value_schema=schema))
    with pytest.raises(ConfigError, match="value_type"):
        statelog.open("log", rig.where(), create=LogOptions(value_type="xml"))
    with statelog.table("log", rig.where(), create=LogOptions(value_type="json")) as table:
        table[b"a"] = 1
    for create in (False, True, LogOptions(value_type="json")):
        with statelog.table("log", rig.where(), create=create) as table:
            assert table[b"a"] == 1
    for other in (LogOptions(value_type="bytes"), LogOptions(value_schema=schema)):
        with pytest.raises(ConfigError, match="other options"):
            statelog.open("log", rig.where(), create=other)


def test_a_copy_has_them(tmp_path: Path) -> None:
    """A copy has the values, and the fact that they are JSON."""
    rig, other = twin_rig("log"), twin_rig("copy", cluster=MemoryCluster(cluster_id="another"))
    with TableRig(rig, None).open(**KINDS) as table:
        table.update(STATE)
        table.commit({"n": 1})
    with rig.open() as log:
        copy_log(log, "copy", other.where(), finish=True, settings=settings_for(tmp_path))
    with statelog.table("copy", other.where()) as table:
        assert content(table) == STATE
