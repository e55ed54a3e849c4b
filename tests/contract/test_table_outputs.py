"""What a table promises of the messages that it sends, on both backends, on twins and on a real broker."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from statelog.errors import ClosedError, Fenced, InvalidChange, Misuse, NotCommitted, NotFound, ValueTooLarge
from statelog.tables import Loading, Table, TableSettings
from tests.support.rigs.outputs import Target, made_target
from tests.support.rigs.table import TableRig, content
from tests.support.waiting import wait_for


@pytest.fixture
def target(tables: TableRig) -> Iterator[Target]:
    """Yield a topic to send to."""
    with made_target(tables.rig) as made:
        yield made


def test_messages_leave_with_their_commit(tables: TableRig, target: Target) -> None:
    """Messages of a commit come out as they were sent, in their order, and those of no commit never."""
    with tables.open() as table:
        table[b"k"] = b"1"
        table.send(target.topic, b"one", key=b"k", headers={"kind": "text", "none": None}, partition=1)
        table.send(target.topic, "zwölf", partition=1)
        table.send(target.topic, None, key="k", headers=[("a", b"1"), ("a", b"2")], partition=1)
        assert content(table) == {b"k": b"1"}
        table.commit({"n": 1})
        table.send(target.topic, b"alone", partition=1)
        table.commit({"n": 2})
        assert target.await_values(4) == [b"one", "zwölf".encode(), None, b"alone"]
    one, two, three, _ = target.read()
    assert (one.key, three.key) == (b"k", b"k")
    assert one.headers[:2] == (("kind", b"text"), ("none", None))
    assert three.headers[:2] == (("a", b"1"), ("a", b"2"))
    marks = [dict(each.headers)["statelog"] or b"" for each in target.read()]
    assert [mark.rpartition(b"/")[2] for mark in marks] == [b"0", b"1", b"2", b"0"]
    assert {mark.rsplit(b"/", 2)[0] for mark in marks} == {f"{tables.rig.name}/table".encode()}
    assert two.partition == 1


def test_what_is_undone_is_not_sent(tables: TableRig, target: Target) -> None:
    """Rollback, a transaction that raises and a close without a commit undo messages together with changes."""
    with tables.open() as table:
        table.commit({"n": 0})
        table.send(target.topic, b"rolled back")
        table.rollback()
        with pytest.raises(RuntimeError), table.transaction():
            table.send(target.topic, b"undone")
            raise RuntimeError
        with table.transaction():
            table.send(target.topic, b"outer", partition=0)
            with table.transaction():
                table.send(target.topic, b"inner", partition=0)
        table.commit({"n": 1})
        table.send(target.topic, b"never committed")
        with pytest.raises(NotCommitted, match=r"messages=1"):
            table.close()
    with tables.open() as table:
        table.send(target.topic, b"last", partition=0)
        table.commit({"n": 2})
        assert target.await_values(3) == [b"outer", b"inner", b"last"]


def test_a_deferred_progress_has_its_messages(tables: TableRig, target: Target) -> None:
    """A close commits the messages below the last deferred progress, and discards those after it."""
    with tables.open() as table:
        table.commit_every(3600.0, {"n": 0})
        table[b"a"] = b"1"
        table.send(target.topic, b"first", partition=0)
        table.commit_every(3600.0, {"n": 1})
        table[b"b"] = b"2"
        table.send(target.topic, b"after it", partition=0)
        with pytest.raises(NotCommitted, match=r"changed_keys=1.*messages=1"):
            table.close()
    with tables.open() as table:
        assert table.progress == {"n": 1}
        assert content(table) == {b"a": b"1"}
        table.send(target.topic, b"next", partition=0)
        table.commit({"n": 2})
        assert target.await_values(2) == [b"first", b"next"]


def test_a_message_makes_a_progress_old(tables: TableRig, target: Target) -> None:
    """A call that names no progress is refused after a message, as after a change: it belongs to a later place."""
    with tables.open() as table:
        table.commit({"n": 1})
        table.send(target.topic, b"1", partition=0)
        with pytest.raises(Misuse, match="this call names none"):
            table.commit()
        table.commit({"n": 2})
        assert target.await_values(1) == [b"1"]


def test_sending_while_it_is_iterated(tables: TableRig, target: Target) -> None:
    """A loop over the table may send; a change ends it, as ever."""
    with tables.open() as table:
        table.update({b"a": b"1", b"b": b"2"})
        table.commit({"n": 1})
        before = table.changes
        for value in table.values():
            table.send(target.topic, value, partition=0)
        assert table.changes == before + 2
        table.commit({"n": 2})
        assert sorted(target.await_numbers(2)) == [1, 2]
        with pytest.raises(Misuse, match="while it was iterated"):
            for key in table:
                table.send(target.topic, b"3", partition=0)
                table.delete(key)
        table.rollback()


def test_many_commits_and_many_messages(tables: TableRig, target: Target) -> None:
    """Several pending commits, with messages of every size, come out in their order."""
    with tables.open() as table:
        for number in range(40):
            table[b"n"] = b"%d" % number
            table.send(target.topic, b"%d" % number, headers={"filling": b"x" * (1000 * number)}, partition=0)
            table.commit_async({"n": number})
        table.commit({"n": 40})
        assert target.await_numbers(40) == list(range(40))


def test_the_next_owner_goes_on(tables: TableRig, target: Target) -> None:
    """Whoever opens the table next sends on behind the last message, and a fenced owner sends nothing more."""
    for life in range(3):
        with tables.open() as table:
            table.send(target.topic, b"%d" % life, partition=0)
            table.commit({"life": life})
    assert target.await_numbers(3) == [0, 1, 2]
    first = tables.open(**_apart(tables, "first"))
    first.send(target.topic, b"3", partition=0)
    first.commit({"life": 3})
    with tables.open(**_apart(tables, "second")) as second:
        first.send(target.topic, b"-1", partition=0)
        with pytest.raises(Fenced):
            first.commit({"life": -1})
        first.close()
        second.send(target.topic, b"4", partition=0)
        second.commit({"life": 4})
        assert target.await_numbers(5) == [0, 1, 2, 3, 4]


def test_a_standby_takes_over(tables: TableRig, target: Target) -> None:
    """A promoted standby publishes what its former owner has committed, and sends on."""
    with tables.open() as table:
        table.send(target.topic, b"0", partition=0)
        table.commit({"n": 0})
        with tables.standby() as standby:
            table.send(target.topic, b"1", partition=0)
            table.commit({"n": 1})
            with standby.promote() as promoted:
                promoted.send(target.topic, b"2", partition=0)
                promoted.commit({"n": 2})
                assert target.await_numbers(3) == [0, 1, 2]
        with pytest.raises(Fenced):
            table.commit({"n": 3})


def test_at_least_once(tables: TableRig, target: Target) -> None:
    """Without transactions the messages come out, too, with the same header."""
    with tables.open(settings=TableSettings(outputs="at-least-once")) as table:
        for number in range(5):
            table.send(target.topic, b"%d" % number, partition=0)
            table.commit({"n": number})
        assert target.await_numbers(5) == list(range(5))
    marks = [dict(each.headers)["statelog"] or b"" for each in target.read()]
    places = [tuple(map(int, mark.rsplit(b"/", 2)[1:])) for mark in marks]
    assert places == sorted(set(places))


def test_timers_send(tables: TableRig, target: Target) -> None:
    """What a timer sends is in one commit with the end of its due; a timer that raises sends nothing."""
    if tables.loading is Loading.ON_DEMAND:
        pytest.skip("rows of such a table have no due")

    def remind(table: Table[bytes, bytes], key: bytes, value: bytes) -> None:
        table.send(target.topic, value, key=key, partition=0)
        if value == b"bad":
            raise RuntimeError

    with tables.open() as table:
        table.put(b"a", b"1", due=1.0)
        table.put(b"b", b"bad", due=2.0)
        table.commit({"n": 1})
        with pytest.raises(RuntimeError):
            table.run_due(remind)
        table.delete(b"b")
        table.commit({"n": 2})
        assert target.await_values(1) == [b"1"]
        assert (table.due(b"a"), table[b"a"], table.run_due(remind)) == (None, b"1", 0)


def test_statistics(tables: TableRig, target: Target) -> None:
    """Statistics tell what is not published yet."""
    with tables.open() as table:
        assert (table.statistics().unpublished_messages, table.statistics().unpublished_s) == (0, 0.0)
        table.send(target.topic, b"0", partition=0)
        assert table.statistics().unpublished_messages == 0
        table.commit({"n": 0})
        target.await_values(1)
        wait_for(lambda: table.statistics().unpublished_messages == 0)
        assert table.statistics().unpublished_s == 0.0


Refused = tuple[Callable[[str], tuple[Any, ...]], type[Exception], str]
REFUSED: list[Refused] = [
    (lambda topic: ("", b"v"), InvalidChange, "not the name of a topic"),
    (lambda topic: (b"bytes", b"v"), InvalidChange, "not the name of a topic"),
    (lambda topic: ("no such topic!", b"v"), InvalidChange, "not the name of a topic"),
    (lambda topic: (f"{topic}-never-made", b"v"), NotFound, "there is no topic"),
    (lambda topic: (topic, 7), InvalidChange, "bytes, text or None, not int"),
    (lambda topic: (topic, b"v", 7), InvalidChange, "bytes, text or None, not int"),
    (lambda topic: (topic, b"v", None, {"statelog": b""}), InvalidChange, "statelog's own"),
    (lambda topic: (topic, b"v", None, [b"x"]), InvalidChange, "headers"),
    (lambda topic: (topic, b"v", None, None, 2), InvalidChange, "partition"),
    (lambda topic: (topic, b"v", None, None, -1), InvalidChange, "partition"),
    (lambda topic: (topic, b"x" * (16 << 20)), ValueTooLarge, "larger than"),
]
"""Messages to a topic, and the refusal of each."""


@pytest.mark.parametrize(("message", "error", "says"), REFUSED)
def test_what_is_refused(
    tables: TableRig, target: Target, message: Callable[[str], tuple[Any, ...]], error: type[Exception], says: str
) -> None:
    """What is no message is refused at the call, and the table goes on as it was."""
    with tables.open() as table:
        table.commit({"n": 1})
        before = table.changes
        with pytest.raises(error, match=says):
            table.send(*message(target.topic))
        assert table.changes == before
        table.commit()
    with pytest.raises(ClosedError):
        table.send(target.topic, b"v")


def _apart(tables: TableRig, name: str) -> dict[str, Any]:
    """Return the directory of another machine."""
    return {} if tables.directory is None else {"directory": tables.directory.with_name(name)}
