"""A call inside of another one, from a signal's handler, at any line of the package: refused, or over before the other.

Nothing is lost, nothing is committed under another progress, and nothing hangs.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
import pytest

from statelog.errors import ClosedError, Misuse, NestedCall, NotCommitted, StatelogError
from statelog.kafka.port import TopicSpec
from statelog.producer import Writer
from statelog.producer.guard import Life
from statelog.tables import Table, TableSettings
from tests.support.faults.signals import at_line, handled
from tests.support.rigs.log import twin_rig
from tests.support.rigs.table import TableRig, content

pytestmark = [
    pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # Python ignores the exit of a handler that runs inside of a finalizer, and says so.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Call = Callable[[Table[Any, Any], dict[str, int]], Any]
TARGET = "target"


def _in_transaction(table: Table[Any, Any], place: dict[str, int]) -> None:
    with suppress(KeyError), table.transaction():
        table[b"n"] = b"never"
        del table[b"no such key"]
    table.commit(place)


def _progress(table: Table[Any, Any]) -> dict[str, int]:
    """Return the progress of the table's present state; inside of a transaction no commit takes it."""
    n = table[b"n"]
    return {} if n == b"never" else {"n": int(n)}


def _ended(table: Table[Any, Any], place: dict[str, int]) -> None:
    table.commit_every(1e9, place)
    table.close()


def _sent(table: Table[Any, Any], place: dict[str, int]) -> None:
    table.send(TARGET, b"with the state")
    table.commit(place)


CALLS: dict[str, Call] = {
    "commit": lambda table, place: table.commit(place),
    "commit_async": lambda table, place: table.commit_async(place).result(),
    "commit_every": lambda table, place: table.commit_every(0.0, place),
    "rollback": lambda table, _: table.rollback(),
    "close": _ended,
    "transaction": _in_transaction,
    "send": _sent,
}
NESTED: dict[str, Callable[[Table[Any, Any]], Any]] = {
    "commit": lambda table: table.commit(_progress(table)).metadata["n"],
    "commit_every": lambda table: table.commit_every(0.0, _progress(table)),
    "close": lambda table: table.close(),
    "put": lambda table: table.put(b"other", b"x"),
    "send": lambda table: table.send(TARGET, b"other"),
    "get": lambda table: table.get(b"n"),
    "items": content,
}


def _sweep(stride: int, run: Callable[[int], bool]) -> int:
    """Run with the signal at every so many lines, until there are no more; return how many there are."""
    at = 0
    while run(at):
        at += stride
    return at


def _strides(stride: int) -> list[Any]:
    """Return every `stride`th line in an ordinary run, and many more in a soak."""
    return [pytest.param(stride, id="some-lines"), pytest.param(11, marks=pytest.mark.soak, id="many-lines")]


def _batch(*keys: bytes) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())})


@pytest.mark.parametrize("stride", _strides(311))
@pytest.mark.parametrize("is_raising", [False, True], ids=["goes-on", "exits"])
@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("call", CALLS)
def test_a_table(call: str, nested: str, is_raising: bool, stride: int) -> None:
    """The next incarnation finds the state of its progress, every acknowledged commit, and its message once."""

    def run(at: int) -> bool:
        rig = twin_rig("log")
        rig.cluster.create(TopicSpec(name=TARGET, partitions=1, replication_factor=1))
        tables = TableRig(rig, None)
        told: list[int] = []
        table = tables.open(settings=TableSettings(every_change=True))
        table[b"n"] = b"1"
        table.commit({"n": 1})

        def handle() -> None:
            with suppress(Misuse):  # Also for ended calls, and inside of a transaction.
                number = NESTED[nested](table)
                told.extend([number] if nested == "commit" else [])
            if is_raising:
                raise SystemExit

        table[b"n"] = b"2"
        has_come = False
        with handled(handle):
            try:
                has_come = at_line(at, lambda: CALLS[call](table, {"n": 2}))
                told += [2] if call in ("commit", "commit_async", "transaction", "send") else []
            except (SystemExit, ClosedError, NotCommitted):  # The handler's changes behind the progress are lost.
                has_come = True
        with suppress(Misuse if is_raising and call == "transaction" else NotCommitted):
            table.close()  # The exit of a handler may break off the undo itself: then the transaction is open.
        assert table.life is Life.CLOSED
        with tables.open() as again:
            n = int(again.progress["n"])
            assert again[b"n"] == b"%d" % n, f"at line {at}"
            assert n >= max(told, default=1), f"at line {at}"
        sent = [one.value for one in rig.cluster.outputs(TARGET, 0)]
        least = call == "send" and not is_raising and n == 2  # Else it may have ended before it sent anything.
        assert least <= sent.count(b"with the state") <= (n == 2), f"at line {at}"
        return has_come

    assert _sweep(stride, run) > 20  # A rollback has 33 lines.


@pytest.mark.parametrize("stride", _strides(37))
@pytest.mark.parametrize("nested", ["put", "delete", "append_batch", "persist", "commit", "close"])
def test_a_writer(nested: str, stride: int) -> None:
    """No key gets another one's value, and acknowledged commits are there."""

    def run(at: int) -> bool:
        rig = twin_rig("log")
        with rig.create() as log:
            writer = Writer(log, "w")
            acts: dict[str, Callable[[], object]] = {
                "put": lambda: writer.put(b"y", b"y"),
                "delete": lambda: writer.delete(b"y"),
                "append_batch": lambda: writer.append_batch(_batch(b"y")),
                "persist": writer.persist,
                "commit": writer.commit,
                "close": writer.close,
            }

            def handle() -> None:
                with suppress(NestedCall, ClosedError):
                    acts[nested]()

            def work() -> None:
                writer.put(b"a", b"a")
                writer.put(b"b", b"b")
                writer.delete(b"c")
                writer.append_batch(_batch(b"d"))
                writer.commit()

            is_told = True
            with handled(handle):
                try:
                    has_come = at_line(at, work)
                except ClosedError:
                    assert nested == "close"
                    is_told, has_come = False, True
            writer.close()
        state = rig.state()
        state.pop(b"y", None)
        assert all(key == value for key, value in state.items())
        assert not is_told or set(state) == {b"a", b"b", b"d"}
        return has_come

    assert _sweep(stride, run) > 100


@pytest.mark.parametrize("stride", _strides(211))
@pytest.mark.parametrize("nested", ["get", "items", "refresh", "promote", "close"])
@pytest.mark.parametrize("call", ["refresh", "items"])
def test_a_standby(call: str, nested: str, stride: int) -> None:
    """A handler reads the state of one position, or nothing; it closes nothing that is in use, and never waits."""

    def run(at: int) -> bool:
        tables = TableRig(twin_rig("log"), None)
        with tables.open() as table:
            table.update({b"a": b"1", b"b": b"1"})
            table.commit({"n": 1})
            standby = tables.standby()
            table.update({b"a": b"2", b"b": b"2"})
            table.commit({"n": 2})
            acts: dict[str, Callable[[], Any]] = {
                "get": lambda: seen.append({key: standby[key] for key in (b"a", b"b")}),
                "items": lambda: seen.append(content(standby)),
                "refresh": standby.refresh,
                "promote": lambda: standby.promote().close(),
                "close": standby.close,
            }
            seen: list[dict[bytes, bytes]] = []

            def handle() -> None:
                with suppress(Misuse):
                    acts[nested]()

            has_come = False
            with handled(handle):
                try:
                    has_come = at_line(at, standby.refresh if call == "refresh" else lambda: content(standby))
                except ClosedError:
                    assert nested in ("close", "promote")
                    has_come = True
            standby.close()
            assert all(state in [{b"a": n, b"b": n} for n in (b"1", b"2")] for state in seen)
        return has_come

    assert _sweep(stride, run) > 10


@pytest.mark.parametrize("call", CALLS)
def test_a_handler_that_ends_a_call(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that ends a call between layers fails the table, or later puts are part of the next commit.

    Without the guard a put went into a layer that no commit sends.
    """
    refresh, left = cast("Any", Table)._refresh, 0

    def ended(table: Table[Any, Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise TimeoutError
        refresh(table)

    at, came = 1, True
    while came:
        rig = twin_rig("log")
        rig.cluster.create(TopicSpec(name=TARGET, partitions=1, replication_factor=1))
        tables = TableRig(rig, None)
        table = tables.open()
        table[b"n"] = b"1"
        table.commit({"n": 1})
        table[b"n"] = b"2"
        with monkeypatch.context() as patch, suppress(TimeoutError):
            left = at
            patch.setattr(Table, "_refresh", ended)
            CALLS[call](table, {"n": 2})
        came = left <= 0
        if table.life is Life.OPEN:
            table[b"behind"] = b"it"
            table.commit({"n": 3})
            with suppress(StatelogError):
                table.close()
            with tables.open() as again:
                assert again[b"behind"] == b"it"
        else:
            table.close()
        at += 1
    assert at > 2
