"""The session of admin clients decides which refusals get a new client, and which questions are repeated."""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from statelog.kafka import admin
from statelog.kafka.admin import LOST, AdminSession, Leaders, Request
from statelog.kafka.config import ClientConfig, client_config
from statelog.kafka.native import Refused

_ANSWER: list[dict[Any, Any]] = [{"": "an answer"}]
_made: list[AdminSession] = []
_DROPPED = Refused("_DESTROY_BROKER", "Local: Broker handle destroyed without termination")


class _Clients:
    """A stand-in for the class of admin clients: each question takes a second and gets the next of `answers`."""

    def __init__(self, answers: Sequence[Refused | None]) -> None:
        self.answers: Iterator[Refused | None] = iter(answers)
        self.now_s = 0.0
        self.made = 0
        self.limits_s: list[float] = []

    def __call__(self, _config: ClientConfig, _clock: object) -> "_Client":
        self.made += 1
        return _Client(self)

    def clock(self) -> float:
        return self.now_s


class _Client:
    def __init__(self, clients: _Clients) -> None:
        self.native = object()
        self.is_proven = False
        self._clients = clients

    def ask(self, _request: Request, limit_s: float, _leaders: Leaders | None) -> list[dict[Any, Any]]:
        self._clients.limits_s.append(limit_s)
        self._clients.now_s += 1.0
        refused = next(self._clients.answers)
        if refused is not None:
            raise refused
        self.is_proven = True
        return _ANSWER


def _session(monkeypatch: pytest.MonkeyPatch, *answers: Refused | None) -> tuple[AdminSession, _Clients]:
    clients = _Clients(answers)
    monkeypatch.setattr(admin, "AdminClient", clients)
    _made.append(AdminSession(client_config({"bootstrap.servers": "b:1"}), 8.0, clients.clock))
    return _made[-1], clients


@pytest.fixture(autouse=True)
def _closed_at_the_end() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


def _request(_client: object, _limit_s: float) -> Sequence[Any]:
    return []


@pytest.mark.parametrize("name", sorted(LOST))
def test_a_client_that_lost_its_way_is_replaced(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A client that stops answering is replaced after a quarter of the time. The new client gets all of it."""
    session, clients = _session(monkeypatch, None, Refused(name, "away"), None)
    session.ask(_request)
    assert session.ask(_request) == _ANSWER
    assert (clients.made, clients.limits_s) == (2, [8.0, 2.0, 8.0])


@pytest.mark.parametrize("proven", [False, True])
def test_a_clear_refusal_is_the_answer(monkeypatch: pytest.MonkeyPatch, *, proven: bool) -> None:
    """A clear refusal is final, and no other client is made."""
    session, clients = _session(monkeypatch, *[None] * proven, Refused("INVALID_CONFIG", "no"))
    for _ in range(proven):
        session.ask(_request)
    with pytest.raises(Refused, match="INVALID_CONFIG"):
        session.ask(_request)
    assert clients.made == 1


def test_a_new_client_that_gets_no_answer_had_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new client that gets no answer has used all the time, and its error is raised."""
    session, clients = _session(monkeypatch, Refused("_TIMED_OUT", "no answer"))
    with pytest.raises(Refused, match="_TIMED_OUT"):
        session.ask(_request)
    assert clients.made == 1


def test_a_question_to_a_broker_that_is_none_any_more_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question to a removed broker is repeated at once, also on a new client, while there is time."""
    session, clients = _session(monkeypatch, _DROPPED, _DROPPED, None)
    assert session.ask(_request) == _ANSWER
    assert clients.made == 3


def test_dropped_questions_are_asked_again_only_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped questions are not repeated after the caller's time is over, and the caller gets the reason."""
    session, clients = _session(monkeypatch, *[_DROPPED] * 9)
    with pytest.raises(Refused, match="_DESTROY_BROKER"):
        session.ask(_request)
    assert clients.now_s == 8.0


@pytest.mark.parametrize(("text", "asked"), [("waiting for controller", 2), ("no response", 1)])
def test_what_may_have_been_sent_is_not_sent_twice(monkeypatch: pytest.MonkeyPatch, text: str, asked: int) -> None:
    """A question that may have been sent is not repeated, unless the client says that it found no broker."""
    session, clients = _session(monkeypatch, None, Refused("_TIMED_OUT", text), None)
    session.ask(_request)
    if asked == 1:
        with pytest.raises(Refused):
            session.ask(_request, twice=False)
    else:
        assert session.ask(_request, twice=False) == _ANSWER
    assert len(clients.limits_s) == 1 + asked


@pytest.mark.parametrize("cuts", [1, 3, 4])
def test_a_question_whose_connection_breaks_is_asked_again(monkeypatch: pytest.MonkeyPatch, cuts: int) -> None:
    """A question whose connection breaks is repeated, also during a rolling restart, but not for ever."""
    session, clients = _session(monkeypatch, *[Refused("_TRANSPORT", "broken")] * cuts, None)
    if cuts > 3:
        with pytest.raises(Refused, match="_TRANSPORT"):
            session.ask(_request)
    else:
        assert session.ask(_request) == _ANSWER
    assert len(clients.limits_s) == min(cuts, 3) + 1


def test_what_was_under_way_when_its_connection_broke_is_not_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that was under way when its connection broke may have been executed, and is not repeated."""
    session, clients = _session(monkeypatch, Refused("_TRANSPORT", "broken"), None)
    with pytest.raises(Refused, match="_TRANSPORT"):
        session.ask(_request, twice=False)
    assert len(clients.limits_s) == 1


def test_sessions_share_a_client_that_gave_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions with the same settings share a client that has answered, and the last session closes it.

    An unshared session has its own.
    """
    session, clients = _session(monkeypatch, *[None] * 5)
    config = client_config({"bootstrap.servers": "b:1"})
    unproven = AdminSession(config, 8.0, clients.clock)
    others = client_config({"bootstrap.servers": "b:2"})
    more = [AdminSession(config, 8.0, clients.clock), AdminSession(others, 8.0, clients.clock)]
    alone = AdminSession(config, 8.0, clients.clock, shares=False)
    _made.extend([unproven, *more, alone])
    for one in (session, *more, alone, unproven):
        one.ask(_request)
    assert clients.made == 3
    assert _current(session) is _current(more[0]) is _current(unproven)
    left = weakref.ref(_current(session))
    for one in (session, more[0]):
        one.close()
    assert left() is not None
    unproven.close()
    assert left() is None


def test_what_one_session_gives_up_the_others_give_up_for_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that one session replaces is replaced for all. Others share the new one only after its first answer."""
    first, clients = _session(monkeypatch, *[None] * 6)
    second = AdminSession(client_config({"bootstrap.servers": "b:1"}), 8.0, clients.clock)
    _made.append(second)
    first.ask(_request)
    second.ask(_request)
    shared = _current(second)
    first.drop()
    second.ask(_request)
    assert _current(second) is shared
    first.ask(_request)
    assert _current(first) is not shared
    second.ask(_request)
    assert _current(second) is _current(first)
    assert clients.made == 2


def _current(session: AdminSession) -> Any:
    return vars(session)["_current"]
