"""`export` keeps a Delta Lake table equal to a log, whatever happens between and during two calls."""

import os
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from statelog.errors import AlreadyExists, BeyondEnd, ConfigError, StoreUnavailable
from statelog.lake import delta, export
from statelog.lake.delta import DeltaTarget
from statelog.log import accept_ledger_loss
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType
from tests.support.rigs.log import TwinLog, settings_for, twin_rig
from tests.support.rigs.timed import NOON_MS, TimedLog

_VISITS = """{"type": "record", "name": "Visit", "fields": [
    {"name": "count", "type": "long"},
    {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}"""
_WITH_PAGE = _VISITS.replace("]}", ', {"name": "page", "type": "string", "default": "/"}]}')

_GRADE = """{"type": "record", "name": "Visit", "fields": [
    {"name": "grade", "type": {"type": "enum", "name": "Grade", "symbols": ["A", "B"], "default": "A"}}]}"""


def _listed(table: Path) -> list[dict[str, Any]]:
    """Return the table's rows, in no order."""
    opened: Any = DeltaTable(table)  # delta-rs annotates pyarrow's types only partly.
    rows: list[dict[str, Any]] = opened.to_pyarrow_table().to_pylist()
    return rows


def _rows(table: Path) -> dict[Any, Any]:
    """Return the table's rows by key. Fail if a key comes twice."""
    rows = _listed(table)
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


def _at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def test_a_table_is_the_state_at_the_position_of_each_export(tmp_path: Path) -> None:
    """The table equals the state after each of many random commits of puts, changes and deletes, or after several."""
    rng, made, table = random.Random(7), TwinLog(), tmp_path / "table"
    for _ in range(12):
        for _ in range(rng.randrange(3)):
            keys = rng.sample([b"k%d" % number for number in range(20)], rng.randrange(1, 8))
            made.write({key: None if rng.random() < 0.3 else rng.randbytes(3) for key in keys})
        with made.open() as log:
            done = export(log, str(table))
            assert done.position == log.ledger.end()
        assert _rows(table) == made.model
        assert not done.is_rewritten or done.previous_position is None


def test_what_a_merge_did_is_counted(tmp_path: Path) -> None:
    """An export reports inserted, updated and deleted rows, and the position that the table held before."""
    made, table = TwinLog(), str(tmp_path / "table")
    made.write({b"a": b"1", b"b": b"1"})
    with made.open() as log:
        first = export(log, table)
    made.write({b"a": b"2", b"b": None, b"c": b"1", b"never": None})
    with made.open() as log:
        done = export(log, table)
        again = export(log, table)
    assert (first.is_rewritten, first.inserted) == (True, 2)
    assert (done.previous_position, done.inserted, done.updated, done.deleted) == (first.position, 1, 1, 1)
    assert (again.position, again.inserted, again.updated, again.deleted) == (done.position, 0, 0, 0)


@pytest.mark.parametrize("is_first", [True, False], ids=["state", "changes"])
def test_a_schema_that_evolves_while_an_export_is_planned(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A symbol that only the newer schema has is never written as the older schema's default.

    The columns are the same, so no later export would mend it.
    """
    rig, table = twin_rig("log"), tmp_path / "table"
    with rig.create(value_schema=_GRADE) as log, Writer(log, "w") as writer:
        writer.put(b"k", {"grade": "B"})
        writer.commit()
        if not is_first:
            export(log, str(table))
    planned = "recover" if is_first else "plan_changes"
    plan = getattr(delta, planned)

    def after_an_evolution(*given: Any, **more: Any) -> Any:
        with rig.open() as log:
            log.evolve_value_schema(_GRADE.replace('"B"', '"B", "C"'))
            with Writer(log, "w") as writer:
                writer.put(b"k", {"grade": "C"})
                writer.commit()
        return plan(*given, **more)

    monkeypatch.setattr(delta, planned, after_an_evolution)
    with rig.open() as log:
        export(log, str(table))
    assert _listed(table) == [{"key": b"k", "grade": "C"}]


_NAMES = ["a b", "100%", "a%zz", "ü€", "a&b=c;d,e+f", "{a}`<*>'\"", "a:b", "..a", "~"]


@pytest.mark.parametrize("given", ["path", "url", "local", "relative", "slash"])
@pytest.mark.parametrize("name", _NAMES)
def test_a_local_table_lies_where_its_path_says(
    name: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local table is made, merged into and read in the given directory, whatever its name and form."""
    monkeypatch.chdir(tmp_path)
    made, table = TwinLog(), tmp_path / name
    slash, local = f"{table}/", table.as_uri().replace("///", "//localhost/")
    text = {"path": str(table), "url": table.as_uri(), "local": local, "relative": f"./{name}", "slash": slash}[given]
    for number in range(2):
        made.write({b"a": b"%d" % number})
        with made.open() as log:
            assert export(log, text).is_rewritten == (number == 0)
    assert (table / "_delta_log").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert _rows(table) == made.model


@pytest.mark.parametrize(
    "name", ["a[1]", "a#b", "a?b", "a|b", "a^b", "a%20b", "a%23b", "a\\b", "a\nb", "a\x7fb", "a\udcffb"]
)
@pytest.mark.parametrize("is_url", [False, True])
def test_a_path_that_the_library_cannot_keep_is_refused(name: str, is_url: bool, tmp_path: Path) -> None:
    """A path that the library cannot represent is refused before anything is written."""
    table = tmp_path / name / "table"
    with TwinLog().open() as log, pytest.raises(ConfigError, match="delta-rs cannot use a path") as refused:
        export(log, table.as_uri() if is_url else table)
    assert refused.value.facts["table"] == ascii(str(table))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "file:relative", "file://host/a", "file:///a#b", "file:///a?b"])
def test_a_text_that_names_no_local_table_is_refused(text: str) -> None:
    """A path with a fragment or a query is refused. The library would cut it off and write to another table."""
    with TwinLog().open() as log, pytest.raises(ConfigError, match="neither a path nor a file URL"):
        export(log, text)


@pytest.mark.parametrize(
    "url", ["s3://bucket/a b[1]", "abfss://c@a.dfs.core.windows.net/x%20y", "az://c/x", "memory:///a"]
)
def test_the_url_of_a_remote_table_is_used_as_it_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL of a remote table is used unchanged. Only local paths become URLs."""
    seen: list[str] = []

    def opened(_self: DeltaTarget, _log: object, url: str, _options: object) -> None:
        seen.append(url)
        raise StoreUnavailable("seen")

    monkeypatch.setattr(DeltaTarget, "__init__", opened)
    with TwinLog().open() as log, pytest.raises(StoreUnavailable, match="seen"):
        export(log, url)
    assert seen == [url]


def test_a_panic_of_the_library_is_an_error_of_ours() -> None:
    """A panic of the library is an error of ours. Its own exception is no Exception, and would end a daemon."""
    with TwinLog().open() as log, pytest.raises(StoreUnavailable, match="delta-rs panicked") as told:
        export(log, "memory:///a[1]")
    assert not isinstance(told.value.__cause__, Exception)


def test_an_idle_export_makes_no_version(tmp_path: Path) -> None:
    """An export without new commits makes no version."""
    made, table = TwinLog(), str(tmp_path / "table")
    made.write({b"a": b"1"})
    with made.open() as log:
        export(log, table)
        export(log, table)
    assert DeltaTable(table).version() == 0


def test_a_table_behind_truncation_is_written_anew(tmp_path: Path) -> None:
    """A table whose next changes were truncated is rewritten from the snapshot."""
    made, table = TwinLog(), tmp_path / "table"
    made.write({b"a": b"1", b"gone": b"1"})
    with made.open() as log:
        export(log, table)
    for number in range(4):
        made.write({b"a": b"%d" % number, b"gone": None})
        made.now_s += 10_000.0
        with made.open() as log:
            made.environment.run(run_round, log, settings_for(tmp_path))
    with made.open() as log:
        done = export(log, table)
    assert done.is_rewritten
    assert _rows(table) == made.model


def test_typed_values_are_columns_and_evolve(tmp_path: Path) -> None:
    """A new field has its default, also in rows that did not change."""
    rig, table = twin_rig("visits"), tmp_path / "table"
    with rig.create(key_type=KeyType.STRING, value_schema=_VISITS) as log, Writer(log, "w") as writer:
        writer.put("a", {"count": 1, "seen": _at(1)})
        writer.commit()
        export(log, str(table))
        log.evolve_value_schema(_WITH_PAGE)
    with rig.open() as log, Writer(log, "w") as writer:
        writer.put("b", {"count": 2, "seen": _at(2), "page": "/b"})
        writer.commit()
        done = export(log, str(table))
    rows = {row["key"]: row for row in _listed(table)}
    assert done.is_rewritten
    assert {key: (row["count"], row["page"]) for key, row in rows.items()} == {"a": (1, "/"), "b": (2, "/b")}
    assert rows["a"]["seen"] == _at(1)


def test_text_does_not_replace_a_table(tmp_path: Path) -> None:
    """A text in place of the flag does not replace a table, although it is true in Python."""
    untyped: Any = export
    with TwinLog().open() as log, pytest.raises(ConfigError, match="replace is of type str"):
        untyped(log, tmp_path, replace="false")
    assert not list(tmp_path.iterdir())


def test_times_of_day_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Times of day are refused before anything is written, since Delta Lake lacks them. The error names the column."""
    schema = _VISITS.replace("timestamp-millis", "time-micros")
    with (
        twin_rig("visits").create(key_type=KeyType.STRING, value_schema=schema) as log,
        pytest.raises(ConfigError, match="column seen"),
    ):
        export(log, str(tmp_path / "table"))
    assert not (tmp_path / "table").exists()


_TWINS = """{"type": "record", "name": "Twins", "fields": [
    {"name": "seen", "type": "int"}, {"name": "Seen", "type": "int"}]}"""


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ('{"name": "Key", "type": "int"}', "key and Key"),
        (f'{{"name": "x", "type": {_TWINS}}}', "seen and Seen"),
        (f'{{"name": "x", "type": {{"type": "array", "items": {_TWINS}}}}}', "seen and Seen"),
        (f'{{"name": "x", "type": {{"type": "map", "values": {_TWINS}}}}}', "seen and Seen"),
    ],
    ids=["beside the key", "record", "array", "map"],
)
def test_names_that_differ_in_case_alone_are_refused(tmp_path: Path, field: str, named: str) -> None:
    """Names that differ only in case are refused with both names: Delta Lake takes them for one column.

    One name at two depths is two columns.
    """
    schema = _VISITS.replace("]}", f", {field}]}}")
    with (
        twin_rig("visits").create(key_type=KeyType.STRING, value_schema=schema) as log,
        pytest.raises(ConfigError, match=f"columns {named} apart"),
    ):
        export(log, str(tmp_path / "table"))
    assert not (tmp_path / "table").exists()


def test_a_field_may_have_any_name_that_avro_takes(tmp_path: Path) -> None:
    """A field may have any valid Avro name. The merge's own column for deletes has a name that no field can have."""
    table, name = tmp_path / "table", "__statelog_deleted"
    schema = f'{{"type": "record", "name": "Page", "fields": [{{"name": "{name}", "type": "boolean"}}]}}'
    with twin_rig("pages").create(value_schema=schema) as log, Writer(log, "w") as writer:
        for value in (True, False):
            writer.put(b"a", {name: value})
            writer.commit()
            export(log, table)
    assert _listed(table) == [{"key": b"a", name: False}]


def test_keys_of_callers_key_groups_are_told_apart(tmp_path: Path) -> None:
    """One key in two key groups is two rows, and a change is merged into its own row."""
    rig, table = twin_rig("placed"), tmp_path / "table"
    with rig.create(hash_rule=HashRule.CALLER) as log, Writer(log, "w") as writer:
        for group in (1, 2):
            writer.append(group, b"a", b"1")
        writer.commit()
        export(log, str(table))
        writer.append(2, b"a", b"2")
        writer.commit()
        export(log, str(table))
    rows = _listed(table)
    assert {(row["key_group"], row["value"]) for row in rows} == {(1, b"1"), (2, b"2")}


def test_two_exporters_at_once_apply_nothing_twice(tmp_path: Path) -> None:
    """Two exporters with the same table, new or not, apply nothing twice.

    The later one starts again and finds nothing to do.
    """
    made, table = TwinLog(), tmp_path / "table"
    for number in range(6):
        made.write({b"a%d" % number: b"1", b"both": b"%d" % number})
        both, failures = Barrier(2), list[BaseException]()

        def work(both: Barrier = both, failures: list[BaseException] = failures) -> None:
            try:
                with made.open() as log:
                    both.wait(30.0)
                    export(log, str(table))
            except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
                failures.append(error)

        threads = [Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert _rows(table) == made.model


def test_a_failure_on_the_way_leaves_the_table_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error from reading the log passes through, and the next export carries on."""
    made, table = TwinLog(), tmp_path / "table"
    made.write({b"a": b"1"})
    with made.open() as log:
        export(log, str(table))
    made.write({b"a": b"2"})
    real = DeltaTarget.merge

    def failing(self: DeltaTarget, rows: Iterable[pa.RecordBatch], *arguments: Any) -> Any:
        def cut() -> Iterator[pa.RecordBatch]:
            yield from rows
            raise StoreUnavailable("the store went away", path="x")

        return real(self, cut(), *arguments)

    monkeypatch.setattr(DeltaTarget, "merge", failing)
    with made.open() as log, pytest.raises(StoreUnavailable, match="the store went away"):
        export(log, str(table))
    assert _rows(table) == {b"a": b"1"}
    monkeypatch.undo()
    with made.open() as log:
        export(log, str(table))
    assert _rows(table) == made.model


def test_a_foreign_table_is_refused_and_replaced_on_request(tmp_path: Path) -> None:
    """A table with other rows, or of another log, is refused, and replaced only on request."""
    made, table = TwinLog(), tmp_path / "table"
    made.write({b"a": b"1"})
    write_deltalake(table, pa.table({"mine": [1, 2]}))
    with made.open() as log:
        with pytest.raises(AlreadyExists, match="not an export of this log"):
            export(log, str(table))
        assert DeltaTable(table).version() == 0
        assert export(log, str(table), replace=True).is_rewritten
    assert _rows(table) == made.model


@pytest.mark.parametrize("change", ["append", "delete", "restore"])
def test_what_others_did_to_the_table_is_told(tmp_path: Path, change: str) -> None:
    """Rows that others added, removed or restored since the last export are refused, until the table is replaced."""
    made, table = TwinLog(), str(tmp_path / "table")
    for number in range(3):
        made.write({b"a": b"%d" % number, b"b%d" % number: b"1"})
        with made.open() as log:
            export(log, table)
    if change == "append":
        write_deltalake(table, pa.table({"key": [b"foreign"], "value": [b"1"]}), mode="append")
    elif change == "delete":
        DeltaTable(table).delete()
    else:
        DeltaTable(table).restore(1)
    DeltaTable(table).optimize.compact()
    made.write({b"c": b"1"})
    with made.open() as log:
        with pytest.raises(
            AlreadyExists,
            match=f"somebody else changed the table.*: {'WRITE' if change == 'append' else change.upper()}",
        ):
            export(log, table)
        assert export(log, table, replace=True).is_rewritten
        assert not export(log, table).is_rewritten
    assert _rows(Path(table)) == made.model


def test_maintenance_between_two_exports_is_welcome(tmp_path: Path) -> None:
    """Compaction, ordering, vacuum and settings leave the rows as they are.

    If the table's history no longer has the last export, all rows are written once.
    """
    made, table = TwinLog(), str(tmp_path / "table")
    for number in range(3):
        made.write({b"a": b"%d" % number, b"b%d" % number: b"1"})
        with made.open() as log:
            export(log, table)
    DeltaTable(table).optimize.compact()
    DeltaTable(table).optimize.z_order(["key"])
    DeltaTable(table).vacuum(0, enforce_retention_duration=False, dry_run=False)
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    made.write({b"c": b"1"})
    with made.open() as log:
        assert not export(log, table).is_rewritten
        DeltaTable(table).optimize.compact()
        DeltaTable(table).create_checkpoint()
        for path in (Path(table) / "_delta_log").glob("*.json"):
            os.utime(path, (1, 1))
        DeltaTable(table).cleanup_metadata()
        assert export(log, table).is_rewritten
        assert not export(log, table).is_rewritten
    assert _rows(Path(table)) == made.model


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.usefixtures("at_once")
def test_a_table_ahead_of_its_log_is_a_loss(tmp_path: Path) -> None:
    """A table ahead of its log's end reveals a loss of exported commits.

    After a person accepts it, the export asks for a re-created table.
    """
    made, table = TwinLog(), str(tmp_path / "table")
    made.write({b"a": b"1"})
    made.write({b"a": b"2"})
    with made.open() as log:
        export(log, table)
    made.cluster.lose_tail("log.ledger", 0, 2)
    with made.open() as log, pytest.raises(BeyondEnd):
        export(log, table)
    with made.open() as log:
        accept_ledger_loss(log, reason="a disk is gone", operator="me")
        with pytest.raises(BeyondEnd, match="replace=True"):
            export(log, table)
        assert export(log, table, replace=True).is_rewritten
        assert not export(log, table).is_rewritten
    assert _rows(Path(table)) == {}


def test_an_interrupt_is_no_other_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C right after a table was made ends the export. The next export finds the table whole."""
    made, table = TwinLog(), tmp_path / "table"
    made.write({b"a": b"1"})

    def interrupted(*given: Any, **named: Any) -> None:
        write_deltalake(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr("deltalake.write_deltalake", interrupted)
    with made.open() as log, pytest.raises(KeyboardInterrupt):
        export(log, str(table))
    monkeypatch.undo()
    with made.open() as log:
        assert not export(log, str(table)).is_rewritten
    assert _rows(table) == made.model


def test_dues_are_a_column_if_they_are_included(tmp_path: Path) -> None:
    """A table has dues if they are included, through whole writes and merges; other exports have none."""
    made, plain, timed = TimedLog(), str(tmp_path / "plain"), str(tmp_path / "timed")

    def dues() -> dict[bytes, int | None]:
        with made.open() as log:
            export(log, plain)
            export(log, timed, include_due=True)
        found = {row["key"]: row["due"] for row in _listed(Path(timed))}
        return {key: None if due is None else round(due.timestamp() * 1000) for key, due in found.items()}

    made.put({b"a": (b"1", NOON_MS), b"b": (b"1", None)})
    assert dues() == {b"a": NOON_MS, b"b": None}
    made.put({b"a": (b"2", None), b"b": (b"2", NOON_MS + 250), b"c": (b"2", NOON_MS + 1)})
    assert dues() == {b"a": None, b"b": NOON_MS + 250, b"c": NOON_MS + 1}
    made.put({b"c": None})
    assert dues() == {b"a": None, b"b": NOON_MS + 250}
    assert {tuple(row) for row in _listed(Path(plain))} == {("key", "value")}
    with made.open() as log:
        assert export(log, timed).is_rewritten
    assert {tuple(row) for row in _listed(Path(timed))} == {("key", "value")}
