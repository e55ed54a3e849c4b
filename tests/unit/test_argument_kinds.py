"""Wrong kinds of arguments, such as an address for a `Where` or a dict for options, are refused with what to pass."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import statelog
from statelog import materializer
from statelog.cli.which_state import parse_from
from statelog.errors import ClosedError, ConfigError, InvalidChange, StoreUnavailable
from statelog.kafka.config import client_config
from statelog.kafka.native import ProcessGuard
from statelog.lake import export
from statelog.log import Log, Where, accept_data_loss, accept_ledger_loss
from statelog.log.config import file_layer
from statelog.log.where import log_names
from statelog.operate.listening import listening_at
from statelog.recovery import (
    AtCheckpoint,
    AtPosition,
    AtTime,
    RecoverySettings,
    newest_changes,
    plan_changes,
    read_changes,
    read_rocksdb_state,
    recover_snapshot,
    split_changes,
)
from statelog.schemas.ledger.records import LossRange
from statelog.spark.options import state_options, write_options
from statelog.store.fsspec import open_store
from statelog.tables import InputTopic, TableSettings, WorkerHooks
from statelog.testing import Twin

_SCHEMA = '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}'


def untyped(value: object) -> Any:
    """Return a value for calls that a type checker would refuse."""
    return value


@pytest.fixture
def log(statelog_twin: Twin) -> Log:
    """Return a log of bytes, in memory."""
    return statelog.open("visits", statelog_twin.where(), create=True)


_DOORS: list[Callable[[Any], object]] = [
    lambda where: statelog.open("visits", where),
    lambda where: statelog.table("visits", where),
    lambda where: statelog.standby("visits", where),
    lambda where: statelog.worker("visits", where, topic="words"),
    lambda where: recover_snapshot("visits", where),
    lambda where: Log.delete("visits", where),
    log_names,
]


@pytest.mark.parametrize("call", _DOORS)
@pytest.mark.parametrize("where", ["secret:9092", {"bootstrap.servers": "secret:9092"}, None])
def test_where_is_a_where(call: Callable[[Any], object], where: object) -> None:
    """Every entry point says that it takes a `Where`, and does not show the wrong value."""
    with pytest.raises(ConfigError, match=r"where is of type \w+, and not Where") as refused:
        call(where)
    assert "secret" not in str(refused.value)
    assert "Where(" in refused.value.hint


def _aged(where: Where) -> object:
    with statelog.standby("visits", where, poll_s=None) as standby:
        return standby.get(b"alice", max_age_s=untyped("1s"))


_REFUSED: list[tuple[Callable[[Log, Where], object], str]] = [
    (lambda _, where: statelog.open("other", where, create=untyped({"partitions": 2})), "create is of type dict"),
    (lambda _, where: statelog.table("other", where, create=untyped("yes")), "create is of type str"),
    (lambda _, where: statelog.worker("other", where, topic=untyped(["words"])), "topic is of type list"),
    (lambda _, where: statelog.worker("other", where, topic="words", hooks=untyped(print)), "hooks is of type"),
    (
        lambda _, where: statelog.worker("x", where, topic="words", create=True, standbys=untyped(True)),
        "standbys is of type bool",
    ),
    (lambda _, where: statelog.table("visits", where, settings=untyped({"cache_bytes": 1})), "settings is of type"),
    (lambda _, where: statelog.standby("visits", where, settings=untyped({"poll_s": 1})), "settings is of type"),
    (lambda _, where: statelog.worker("x", where, topic="words", settings=untyped({"x": 1})), "settings is of type"),
    (lambda _, where: statelog.table("visits", where, settings=untyped({})), "settings is of type dict"),
    (lambda _, where: statelog.worker("x", where, topic="words", settings=untyped({})), "settings is of type dict"),
    (lambda log, _: statelog.recover(log, settings=untyped({})), "settings is of type dict"),
    (lambda log, _: list(read_changes(log, plan_changes(log), settings=untyped({}))), "settings is of type dict"),
    (lambda _, where: statelog.standby("visits", where, poll_s=untyped("1s")), "poll_s is of type str"),
    (
        lambda _, __: TableSettings(uncommitted_bytes_max=untyped(math.nan)),
        "uncommitted_bytes_max has an item that is no",
    ),
    (lambda _, __: TableSettings(cache_bytes=untyped("1G")), "cache_bytes has an item that is no whole number"),
    (lambda _, __: WorkerHooks(tick_s=untyped("1s")), "tick_s is of type str"),
    (lambda _, __: WorkerHooks(on_tick=untyped(1.0)), "a hook of type float cannot be called"),
    (lambda _, __: InputTopic(untyped(["words"])), "the input topic is of type list"),
    (lambda _, __: InputTopic("words", accept_loss=untyped("false")), "accept_loss is of type str, and not bool"),
    (lambda _, __: InputTopic("words", consumer=untyped("words")), "consumer is of type str"),
    (lambda _, __: TableSettings(skip_equal=untyped("no")), "skip_equal is of type str, and not bool"),
    (lambda _, __: TableSettings(writer=untyped({})), "writer is of type dict"),
    (lambda _, __: TableSettings(recovery=untyped({})), "recovery is of type dict"),
    (lambda _, where: _aged(where), "max_age_s is of type str"),
    (lambda _, where: statelog.table("visits", where, partitions=untyped(3)), "partitions is of type int"),
    (lambda log, _: statelog.Writer(log, "web", partitions=untyped(3)), "partitions is of type int"),
    (
        lambda _, where: statelog.table("visits", where, partitions=untyped("0")),
        "partitions has an item that is no whole number",
    ),
    (
        lambda log, _: statelog.Writer(log, "web", partitions=untyped([0.5])),
        "partitions has an item that is no whole number",
    ),
    (lambda _, where: statelog.standby("visits", where, partitions=[99]), "the log has no such partition"),
    (lambda log, _: statelog.recover(log, key_groups=untyped(5)), "key_groups is of type int"),
    (lambda log, _: statelog.recover(log, key_groups=untyped([0.5])), "key_groups has an item that is no whole number"),
    (
        lambda _, where: statelog.table("visits", where, backend="rocksdb", directory="s3://bucket/state"),
        "a path on the local disk is needed here",
    ),
    (
        lambda _, where: statelog.table("visits", where, backend="rocksdb", directory=untyped(b"/tmp/state")),
        "a path on the local disk is of type bytes",
    ),
    (
        lambda _, where: statelog.worker("x", where, topic="words", create=True, directory=untyped(5)),
        "a path on the local disk is of type int",
    ),
    (lambda log, _: statelog.Writer(log, "web", partitions=[99]), "the log has no such partition"),
    (lambda _, __: statelog.Writer(untyped("visits"), "web"), "log is of type str, and not Log"),
    (lambda _, __: statelog.recover(untyped("visits")), "log is of type str, and not Log"),
    (lambda log, _: statelog.recover(log, at=untyped("10min")), "at is of type str, and not AtPosition"),
    (
        lambda log, _: statelog.recover(log, settings=RecoverySettings(holder=untyped(7))).to_dict(),
        "holder is of type int, and not str",
    ),
    (
        lambda log, _: statelog.recover(log, settings=RecoverySettings(holder="\udcff")).to_dict(),
        "holder is not valid Unicode",
    ),
    (lambda _, __: materializer.run_round(untyped("visits")), "log is of type str, and not Log"),
    (lambda log, _: materializer.run_round(log, untyped({})), "settings is of type dict"),
    (lambda _, __: materializer.Materializer(untyped("visits")), "log is of type str, and not Log"),
    (lambda log, _: materializer.Materializer(log, untyped({})), "settings is of type dict"),
    (lambda log, _: materializer.Materializer(log, control=untyped(log)), "control is of type Log, and not Control"),
    (lambda log, _: materializer.Materializer(log, rates=untyped(32e6)), "rates is of type float, and not Rates"),
    (lambda _, __: materializer.install_signal_handlers(untyped(None)), "control is of type NoneType"),
    (lambda _, __: materializer.tail_now(untyped("visits")), "log is of type str, and not Log"),
    (lambda _, __: materializer.claim_root(untyped("visits")), "log is of type str, and not Log"),
    (lambda _, __: export(untyped("visits"), "/tables/visits"), "log is of type str, and not Log"),
    (lambda log, _: export(log, untyped(None)), "table is of type NoneType"),
    (lambda log, _: export(log, "/tables/visits", settings=untyped({})), "settings is of type dict"),
    (
        lambda log, _: export(log, "/tables/visits", include_key_group=untyped("false")),
        "include_key_group is of type str, and not bool",
    ),
    (
        lambda log, _: export(log, "/tables/visits", storage_options={"timeout": untyped(5)}),
        r"storage_options\['timeout'\] is of type int",
    ),
    (lambda log, _: export(log, "/tables/visits", storage_options=untyped(3)), "storage_options is of type int"),
    (lambda log, _: list(read_changes(untyped("visits"), plan_changes(log))), "log is of type str, and not Log"),
    (lambda _, __: read_rocksdb_state(untyped(3)), "a path on the local disk is of type int"),
    (lambda log, _: statelog.recover(log).to_parquet("\udcff"), "is not one that can be written to"),
    (lambda log, _: statelog.recover(log).to_rocksdb("a\0b"), "is not one that can be written to"),
    (lambda _, __: materializer.MaterializerSettings(scratch=Path("/tmp/\udcff")), "is not one that can be written to"),
    (lambda log, _: statelog.recover(log, at=AtPosition(untyped("7"))), "position is of type str"),
    (lambda log, _: statelog.recover(log, at=AtPosition(untyped(1.5))), "position is of type float"),
    (lambda log, _: statelog.recover(log, at=AtCheckpoint("web", untyped("7"))), "checkpoint_id is of type str"),
    (lambda log, _: statelog.recover(log, at=AtTime(untyped("10min"))), "timestamp_ms is of type str"),
    (lambda log, _: statelog.recover(log, at_least=untyped("7")), "at_least is of type str"),
    (lambda log, _: statelog.recover(log, resume=untyped("{}")), "resume is of type str, and not Cursor"),
    (lambda log, _: statelog.recover(log, settings=untyped({"lease": False})), "settings is of type dict"),
    (lambda log, _: plan_changes(log, untyped("7")), "start is of type str, and not AtPosition"),
    (lambda _, __: plan_changes(untyped("visits")), "log is of type str, and not Log"),
    (lambda log, _: list(read_changes(log, untyped(None))), "plan is of type NoneType, and not Plan"),
    (lambda log, _: list(newest_changes(log, untyped(None))), "plan is of type NoneType, and not Plan"),
    (lambda log, _: split_changes(plan_changes(log), untyped(1.5)), "tasks is 1.5"),
    (
        lambda log, _: accept_data_loss(log, untyped([(0, 1, 2)]), reason="a disk", operator="me"),
        "a range is of type tuple, and not LossRange",
    ),
    (
        lambda log, _: accept_data_loss(log, [LossRange(0, untyped("1"), 2)], reason="a disk", operator="me"),
        "start_offset of a range is '1'",
    ),
    (lambda log, _: accept_data_loss(log, untyped(7), reason="a disk", operator="me"), "ranges is of type int"),
    (lambda log, _: accept_ledger_loss(log, reason=untyped(None), operator="me"), "reason is of type NoneType"),
    (lambda log, _: accept_ledger_loss(log, reason="a disk", operator=untyped(7)), "operator is of type int"),
    (lambda _, __: accept_ledger_loss(untyped("x"), reason="a disk", operator="me"), "log is of type str, and not"),
    (lambda log, _: log.evolve_value_schema(untyped({"type": "record"})), "value_schema is of type dict"),
    (lambda log, _: log.change_schema(untyped("x")), "value_schema_id is 'x'"),
    (lambda _, __: Where.from_env(untyped(3)), "environment is of type int, and not Mapping"),
    (lambda _, where: Where(where.kafka, untyped(None)), "root is of type NoneType, and not a path"),
    (lambda _, where: Where(where.kafka, "/logs", storage_options=untyped("key")), "storage_options is of type str"),
    (
        lambda _, where: Where(where.kafka, "/logs", storage_options=untyped({5: "x"})),
        "a name in storage_options is",
    ),
    (
        lambda _, __: open_store("s3://bucket", "visits", {"client_kwargs": "x"}).read("descriptor.avro"),
        "The storage options do not fit",
    ),
    (lambda _, where: Where(where.kafka, "/logs", allow_unsafe="replication"), "allow_unsafe is 'replication'"),
    (lambda _, where: Where(where.kafka, "/logs", allow_unsafe=untyped(True)), "allow_unsafe is True"),
    (lambda _, __: Where({"bootstrap.servers": untyped(["kafka:9092"])}, "/logs"), "bootstrap.servers is not text"),
    (lambda _, __: Where({"bootstrap_servers": "kafka:9092"}, "/logs"), "dots, not underscores"),
]


@pytest.mark.parametrize(("call", "told"), _REFUSED)
def test_the_argument_of_another_kind_is_named(
    statelog_twin: Twin, log: Log, call: Callable[[Log, Where], object], told: str
) -> None:
    """A wrong argument is named with its type and the right one, and is no AttributeError from the inside."""
    statelog_twin.create_topic("words", partitions=2)
    with log, pytest.raises(ConfigError, match=told) as refused:
        call(log, statelog_twin.where())
    assert refused.value.hint


_DIGITS = "9" * 5000
_SPARK = {"log": "visits", "root": "/logs", "kafka.bootstrap.servers": "kafka:9092"}
_NUMBERS: list[Callable[[], object]] = [
    lambda: write_options({**_SPARK, "writerId": "w", "batchId": _DIGITS}, streaming=False),
    lambda: write_options({**_SPARK, "writerId": "w", "partitions": f"0/{_DIGITS}"}, streaming=False),
    lambda: state_options({**_SPARK, "atPosition": _DIGITS}),
    lambda: state_options({**_SPARK, "atTime": _DIGITS}),
    lambda: state_options({**_SPARK, "keyGroups": f"0-{_DIGITS}"}),
    lambda: Where.from_env({"STATELOG_KEEP": _DIGITS}),
    lambda: file_layer(f"[materializer]\nkeep = {_DIGITS}", "statelog.toml"),
    lambda: client_config({"bootstrap.servers": "kafka:9092", "message.timeout.ms": _DIGITS}),
    lambda: listening_at(f"127.0.0.1:{_DIGITS}"),
    lambda: parse_from(_DIGITS, 0.0),
]


@pytest.mark.parametrize("call", _NUMBERS)
def test_a_number_that_python_does_not_read_is_no_number(call: Callable[[], object]) -> None:
    """A number above 4,300 digits, for which `int` raises ValueError, is refused by our own error."""
    with pytest.raises(ConfigError) as refused:
        call()
    assert refused.value.hint or refused.value.facts


def test_a_directory_that_no_disk_takes(statelog_twin: Twin, tmp_path: Path) -> None:
    """A worker refuses an impossible directory as a table does."""
    pytest.importorskip("rocksdict")
    statelog_twin.create_topic("words", partitions=2)
    with pytest.raises(StoreUnavailable, match="the local disk failed"):
        statelog.worker(
            "counts",
            statelog_twin.where(),
            topic="words",
            create=True,
            backend="rocksdb",
            directory=tmp_path / ("x" * 300),
        )


def test_a_root_may_be_a_path(tmp_path: Path) -> None:
    """A root as a path is the same root, and the same key of a cache, as its text."""
    assert Where.local(tmp_path) == Where.local(str(tmp_path))
    assert Where.local(tmp_path).root == str(tmp_path)


def test_a_root_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statelog_twin: Twin) -> None:
    """A root may begin with `~`, which no shell expands in a file or a variable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    where = Where(statelog_twin.where().kafka, "~/logs", allow_unsafe=statelog_twin.where().allow_unsafe)
    with statelog.open("visits", where, create=True):
        assert [one.name for one in tmp_path.iterdir()] == ["home"]
        assert log_names(where) == ["visits"]
    with pytest.raises(ConfigError, match="a home directory that is not known"):
        statelog.open("visits", Where(where.kafka, "~nobody-is-called-so/logs"))


def test_a_value_of_another_type_says_what_to_do(statelog_twin: Twin, log: Log) -> None:
    """The hints for wrong values say what to do: encode text, delete for None, and convert a data frame to Arrow."""
    with log, statelog.Writer(log, "web") as writer:
        for value, hint in (("1", "Encode it"), (1, "Encode it"), (None, "delete it")):
            with pytest.raises(InvalidChange, match=hint):
                writer.put(b"alice", untyped(value))
        with pytest.raises(InvalidChange, match=r"from_pandas\(frame, preserve_index=False\)"):
            writer.append_batch(untyped({"key": [b"alice"]}))
        writer.append_batch(pa.table({"key": [b"alice"], "value": [b"1"]}))
        writer.commit()
    with statelog.table("visits", statelog_twin.where()) as table:
        for value, hint in (("1", "Encode it"), (None, "delete it")):
            with pytest.raises(InvalidChange, match=hint):
                table[b"alice"] = untyped(value)
    typed = statelog.LogOptions(value_schema=_SCHEMA)
    with statelog.table("points", statelog_twin.where(), create=typed) as points:
        with pytest.raises(InvalidChange, match="an object where the schema has int"):
            points[b"origin"] = {"x": object()}
        with pytest.raises(InvalidChange, match="delete it"):
            points[b"origin"] = untyped(None)


@pytest.mark.parametrize("key_group", ["0", 0.5])
def test_a_key_group_is_a_whole_number(statelog_twin: Twin, key_group: object) -> None:
    """A key group must be a whole number."""
    by_caller = statelog.LogOptions(partitions=2, key_groups=2, hash_rule="caller")
    with pytest.raises(ConfigError, match="key_group has an item that is no whole number"):
        statelog.table("parts", statelog_twin.where(), create=by_caller, key_group=untyped(key_group))


def test_what_a_worker_takes(statelog_twin: Twin) -> None:
    """A worker takes a topic by name or as an InputTopic."""
    statelog_twin.create_topic("words", partitions=2)
    with statelog.worker("counts", statelog_twin.where(), topic=InputTopic("words"), create=True) as worker:
        assert worker


def test_a_client_is_closed_with_its_log() -> None:
    """A recovery that is read behind the block of its log raises an error that says what closed the client."""
    guard = ProcessGuard("Kafka client")
    guard.close()
    with pytest.raises(ClosedError, match="inside its `with` block"):
        guard.check()
