"""A writer can be opened in one thread, handed over, and adopted once by another."""

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from statelog.errors import ClosedError
from statelog.producer import Writer
from statelog.producer.guard import Guard, Life
from tests.support.rigs.log import twin_rig

T = TypeVar("T")


def _elsewhere(work: Callable[[], T]) -> T:
    """Return the result of work in another thread."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def _is_refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except ClosedError:
        return True
    return False


def test_the_thread_that_opens_it_is_refused_from_then_on() -> None:
    """After the handover the opening thread is refused.

    The thread that adopts the writer owns it, and no other can adopt it.
    """
    rig = twin_rig("log")
    with rig.create() as log:
        writer = Writer(log, "w")
        adopt = writer.hand_over()
        assert _is_refused(lambda: writer.put(b"k", b"v"))

        def adopted() -> None:
            adopt()
            adopt()  # Allowed: this thread owns it already.
            writer.put(b"k", b"v")
            assert writer.commit().checkpoint.id == 1

        done, go = threading.Event(), threading.Event()

        def owner() -> None:
            adopted()
            done.set()
            go.wait(60.0)
            writer.close()

        thread = threading.Thread(target=owner)
        thread.start()
        assert done.wait(60.0)
        for call in (adopt, writer.hand_over, lambda: writer.put(b"k", b"v"), writer.commit, writer.close):
            assert _is_refused(call)
        go.set()
        thread.join()
        assert writer.life is Life.CLOSED


def test_nobody_s_is_closed_by_anybody() -> None:
    """A handed-over writer that nobody adopted can be closed from any thread, and cannot be adopted afterwards."""
    rig = twin_rig("log")
    with rig.create() as log:
        writer = _elsewhere(lambda: Writer(log, "w"))
        with pytest.raises(ClosedError):
            writer.hand_over()  # This thread does not own it.
        writer.close()  # The owning thread has ended.
        opened, adopt = _elsewhere(lambda: _handed_over(Writer(log, "w")))
        opened.close()
        with pytest.raises(ClosedError):
            adopt()


def _handed_over(writer: Writer) -> tuple[Writer, Callable[[], None]]:
    return writer, writer.hand_over()


def test_parts_are_adopted_with_it() -> None:
    """Parts are adopted together with the whole, by the same thread."""
    whole, part = (Guard(what, "w", log="x", again="", apart="") for what in ("whole", "part"))
    adopt = whole.hand_over(part.hand_over())
    assert not whole.is_owned
    assert not part.is_owned
    assert _elsewhere(lambda: (adopt(), whole.is_owned, part.is_owned)) == (None, True, True)
    assert not part.is_owned
    for guard in (whole, part):
        guard.end()
