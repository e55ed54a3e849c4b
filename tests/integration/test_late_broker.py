"""A broker that learns late of a topic's creation, or before the log of its deletion."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from statelog.errors import Damaged, IdentityChanged, PersistFailed, StatelogError
from statelog.kafka.admin import AdminSession, Leaders, Request
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import ClientConfig, client_config
from statelog.kafka.native import Refused
from statelog.log import Log, LogOptions, Where
from statelog.producer import Writer
from statelog.recovery import recover
from tests.support.rigs.log import where_at
from tests.support.services.broker import Broker

pytestmark = pytest.mark.broker

_ABOUT_TOPICS = ("describe_topics", "list_offsets")
_LATE = 5


class _Noted:
    """A stand-in for a client that records which of its methods a request calls."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Mapping[Any, Any]]:
        def note(*_arguments: object, **_options: object) -> Mapping[Any, Any]:
            self.names.add(name)
            return {}

        return note


class LateSession(AdminSession):
    """A session whose first queries of each kind after a creation meet a broker that does not know the topic."""

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config, config.request_timeout_s)
        self.left: dict[str, int] = {}
        self.refused = 0

    def ask(
        self, request: Request, limit_s: float | None = None, *, twice: bool = True, leaders: Leaders | None = None
    ) -> list[dict[Any, Any]]:
        """Ask as the real one, with that answer in between."""
        noted: Any = _Noted()
        request(noted, 1.0)
        if "create_topics" in noted.names:
            self.left.update(dict.fromkeys(_ABOUT_TOPICS, _LATE))
        for kind in [kind for kind in _ABOUT_TOPICS if kind in noted.names and self.left.get(kind)]:
            self.left[kind] -= 1
            self.refused += 1
            raise Refused("UNKNOWN_TOPIC_OR_PART", "Broker: Unknown topic or partition")
        return super().ask(request, limit_s, twice=twice, leaders=leaders)


def test_a_log_is_made_where_one_broker_is_late(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Making, opening, writing and reading a log go on past every "no such topic" of a late broker."""
    config = client_config({"bootstrap.servers": broker.bootstrap})
    kafka, late = ConfluentKafka(config), LateSession(config)
    kafka._admin = late  # pyright: ignore[reportPrivateUsage] # what a real cluster shows only now and then
    root = str(tmp_path)
    with (
        Log.create(log_name, where_at(kafka, root), LogOptions(partitions=2)) as log,
        Writer(log, "w") as writer,
    ):
        writer.put(b"k", b"v")
        writer.commit(checkpoint_id=1)
        assert recover(log).to_dict() == {b"k": b"v"}
    assert late.refused == 2 * len(_ABOUT_TOPICS) * _LATE, "for each of the two topics"
    Log.delete(log_name, Where({"bootstrap.servers": broker.bootstrap}, root))


_LOST = "does not exist any more|_DESTROY"
"""The client may close its connection together with the last partition behind it, and then says no more than that."""


class _Deletion(NamedTuple):
    """The deleted topics of the log, and the error of a later commit with its text."""

    topics: Sequence[str]
    error: type[StatelogError]
    told: str


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize(
    "gone",
    [
        _Deletion(("",), PersistFailed, _LOST),
        _Deletion((".ledger",), IdentityChanged, "the log's topic is gone"),
        _Deletion(("", ".ledger"), PersistFailed, _LOST),
    ],
    ids=["data", "ledger", "both"],
)
def test_a_topic_that_is_deleted_under_a_writer_is_told(
    broker: Broker, log_name: str, tmp_path: Path, gone: _Deletion
) -> None:
    """A topic that is deleted under a writer raises its own error, long before the message time-out of five minutes.

    A later open of the log raises, too.
    """
    place = where_at(broker.bootstrap, tmp_path)
    with Log.create(log_name, place, LogOptions(partitions=1)) as log:
        with Writer(log, "w") as writer:
            writer.put(b"k", b"1")
            writer.commit(checkpoint_id=1)
            for suffix in gone.topics:
                log.kafka.delete_topic(f"{log_name}{suffix}")
            began_s = time.monotonic()
            writer.put(b"k", b"2")
            with pytest.raises(gone.error, match=gone.told) as caught:
                writer.commit(checkpoint_id=2)
            assert time.monotonic() - began_s < 150.0, "the client waited for its own time-out"
            assert log_name in str(caught.value)
        with pytest.raises(Damaged, match="the log's topic is gone"):
            Writer(log, "again")
    Log.delete(log_name, place)
